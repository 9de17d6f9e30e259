"""ALBERT encoders exported by TensorFlow's Model Garden: the SavedModels of TF2-Hub.

A SavedModel is a program: this module only reads its variables and runs nothing. The number of
layers and heads is not in them, so albert_config.json must be beside saved_model.pb or in assets/.

Source: official.nlp.modeling.networks.AlbertEncoder and official.nlp.tools.export_tfhub.
"""

from __future__ import annotations

import math
import os
import re

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import model_directory, name_map, reference_config, saved_model
from albert_tf.checkpoints.model_directory import CONFIG_FILE
from albert_tf.storage.errors import UserError

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


def find(path: str) -> bool:
    """Returns whether `path` is an ALBERT encoder of Model Garden."""
    if not saved_model.is_saved_model(path):
        return False
    try:
        reader = tf.train.load_checkpoint(saved_model.variables_prefix(path))
        return _MARK in saved_model.variable_keys(reader)
    except model_directory.UNREADABLE as error:
        model_directory.reraise_store_error(error)
        return False


def read(
    path: str, allow_missing: str | None = None, allow_unused: str | None = None
) -> name_map.Imported:
    """Reads config and weights, under Google's names; strictness as in `name_map.to_ours`."""
    assets = os.path.join(path, "assets")
    places = [os.path.join(directory, CONFIG_FILE) for directory in (path, assets)]
    config = reference_config.read(next(filter(tf.io.gfile.exists, places), places[0]))
    prefix = saved_model.variables_prefix(path)
    shapes = {variable.google: variable.shape for variable in name_map.variables(config)}
    tensors = {}
    with model_directory.refuse_unreadable(f"{prefix!r} does not hold its config's weights"):
        num_bytes = model_directory.length_of_data(prefix)
        name_map.check_size(config, num_bytes, "google", allow_missing)
        reader = tf.train.load_checkpoint(prefix)
        found, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for their_name, key in saved_model.variable_keys(reader).items():
            name = _googles_name(their_name)
            if name not in shapes:
                tensors[their_name] = np.empty(0)  # to_ours ignores or refuses it
                continue
            # Attention kernels have shape [hidden, heads, size]: compare the numbers of values, and
            # do it before memory is allocated for the shape that the index declares.
            if math.prod(found[key]) != math.prod(shapes[name]) or not dtypes[key].is_floating:
                raise UserError(
                    f"{their_name} is {dtypes[key].name} of shape {found[key]}, but by "
                    f"the config it should be {math.prod(shapes[name])} floats"
                )
            tensors[name] = reader.get_tensor(key).reshape(shapes[name])
    weights = name_map.to_ours(tensors, config, "google", prefix, allow_missing, allow_unused)
    return name_map.Imported(config, weights, assets, [])


def _googles_name(name: str) -> str | None:
    for pattern, replacement in _NAMES:
        if re.fullmatch(pattern, name):
            name = re.sub(pattern, replacement, name)
            return name.replace("type_embeddings", "token_type_embeddings")
    return None
