"""Names of ALBERT encoders exported by TensorFlow's Model Garden: the SavedModels of TF2-Hub.

The number of layers and heads is not in these SavedModels, so albert_config.json must be beside
saved_model.pb or in assets/.

Source: official.nlp.modeling.networks.AlbertEncoder and official.nlp.tools.export_tfhub.
"""

from __future__ import annotations

import re

from albert_tf.checkpoints import saved_model

# Patterns of Model Garden's names, tried in this order, and Google's names of the same variables.
_BLOCK = "bert/encoder/transformer/group_0/inner_group_0/"
_NAMES = (
    (r"(word|type)_embeddings/embeddings", r"bert/embeddings/\1_embeddings"),
    (r"position_embedding/embeddings", "bert/embeddings/position_embeddings"),
    (r"embeddings/layer_norm/(\w+)", r"bert/embeddings/LayerNorm/\1"),
    (r"embedding_projection/(\w+)", r"bert/encoder/embedding_hidden_mapping_in/\1"),
    (
        r"transformer/self_attention/attention_output/(\w+)",
        rf"{_BLOCK}attention_1/output/dense/\1",
    ),
    (r"transformer/self_attention/(\w+)/(\w+)", rf"{_BLOCK}attention_1/self/\1/\2"),
    (r"transformer/self_attention_layer_norm/(\w+)", rf"{_BLOCK}LayerNorm/\1"),
    (r"transformer/intermediate/(\w+)", rf"{_BLOCK}ffn_1/intermediate/dense/\1"),
    (r"transformer/output/(\w+)", rf"{_BLOCK}ffn_1/intermediate/output/dense/\1"),
    (r"transformer/output_layer_norm/(\w+)", rf"{_BLOCK}LayerNorm_1/\1"),
    (r"pooler_transform/(\w+)", r"bert/pooler/dense/\1"),
    (r"(?:bert/)?(cls/predictions/output_bias)/bias", r"\1"),
    (r"(?:bert/)?(cls/predictions/transform/.*)", r"\1"),
)
_MARK = "transformer/self_attention/query/kernel"


def keys(reader) -> dict[str, str] | None:
    """Returns Google's name, else theirs -> key of the values; None for another kind of file."""
    found = saved_model.variable_keys(reader)
    if _MARK not in found:
        return None
    return {_googles_name(name) or name: key for name, key in found.items()}


def _googles_name(name: str) -> str | None:
    for pattern, replacement in _NAMES:
        if re.fullmatch(pattern, name):
            name = re.sub(pattern, replacement, name)
            return name.replace("type_embeddings", "token_type_embeddings")
    return None
