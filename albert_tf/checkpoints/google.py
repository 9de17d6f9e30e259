"""Reads checkpoints with Google's TF1 variable names, and TF-Hub modules.

Encoders of TensorFlow's Model Garden, which TF2-Hub publishes as SavedModels, can also be read.
They do not store the number of layers and heads, so albert_config.json must be in the directory of
saved_model.pb or in assets/. Only the variables of a SavedModel are read, never its code.
"""

import os
import re

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import name_map, reference_config, saved_model
from albert_tf.checkpoints.model_directory import CONFIG_FILE
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.unreadable import refuse_unreadable

# Variables of a training checkpoint that are not weights: optimizer slots and the global step.
_SLOT = re.compile(r"/(adam|lamb)_[mv]$|^global_step$")

# Maps patterns of Model Garden's names to Google's TF1 names. The first matching pattern is used.
# Source: official.nlp.modeling.networks.AlbertEncoder and official.nlp.tools.export_tfhub.
_BLOCK = "bert/encoder/transformer/group_0/inner_group_0/"
_MODEL_GARDEN = (
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
_MARK = "transformer/self_attention/query/kernel"  # exists only in Model Garden's encoders


def find(path: str) -> tuple[str, str] | None:
    """Returns a checkpoint's prefix and the directory with its config and vocabulary, or None.

    `path` may be a prefix, a directory with one checkpoint, or a TF-Hub module's directory.
    """
    if tf.io.gfile.exists(path + ".index"):
        found = path, os.path.dirname(path)
    elif tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
        found = saved_model.variables_prefix(path), os.path.join(path, "assets")
    elif indexes := files.find(os.path.join(path, ""), "*.index"):
        if len(indexes) > 1:
            raise UserError(
                f"{path!r} holds {len(indexes)} checkpoints: name one of them by prefix"
            )
        found = indexes[0].removesuffix(".index"), path
    else:
        return None
    files.check_directory_name(path)
    return found


def read(path: str, allow_missing: str | None = None) -> name_map.Imported:
    """Reads the config and weights at `path`, which can be any path that `find` accepts.

    Optimizer slots and global_step are skipped. The prefix `module/` and Keras' layer norm names
    are accepted, because other code writes them. For `allow_missing` see `name_map.to_ours`.
    """
    found = find(path)
    if found is None:
        raise UserError(f"no checkpoint at {path!r}")
    prefix, directory = found
    places = [path, directory]  # directories to search for the config
    configs = [os.path.join(place, CONFIG_FILE) for place in places]
    bert_configs = [os.path.join(place, reference_config.BERT_FILE) for place in places]
    config_file = next(filter(tf.io.gfile.exists, configs + bert_configs), configs[-1])
    config = reference_config.read(config_file)
    table = name_map.BERT_TABLE if config_file in bert_configs else None
    with refuse_unreadable(f"{prefix!r} is not a readable checkpoint"):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        slots = {name for name in shapes if _SLOT.search(name)}
        keys = saved_model.variable_keys(reader)
        if _MARK in keys:
            tensors = {
                _googles_name(name): _without_heads(name, reader.get_tensor(key))
                for name, key in keys.items()
            }
        else:
            keys = _keys(sorted({*shapes} - slots))
            tensors = {name: reader.get_tensor(key) for name, key in keys.items()}
    weights = name_map.to_ours(tensors, config, "google", prefix, allow_missing, table)
    num_slots = len(slots - {"global_step"})
    notes = [f"left out: {num_slots} optimizer slots"] if num_slots else []
    return name_map.Imported(config, weights, directory, notes)


def _keys(keys: list[str]) -> dict[str, str]:
    """Returns a dict mapping Google's variable names to a checkpoint's keys.

    Keras numbers layer normalizations (`layer_normalization_7`) across the whole model. The lowest
    number in a scope is Google's LayerNorm, the next one LayerNorm_1.
    """
    names = {re.sub("^module/", "", key): key for key in keys}
    pattern = re.compile(r"(.*/)layer_normalization(?:_(\d+))?(/.*)")
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    numbers: dict[str, set[int]] = {}
    for match in matches:
        numbers.setdefault(match[1], set()).add(int(match[2] or 0))
    for match in matches:
        rank = sorted(numbers[match[1]]).index(int(match[2] or 0))
        name = f"{match[1]}LayerNorm{f'_{rank}' if rank else ''}{match[3]}"
        names[name] = names.pop(match[0])
    return names


def _googles_name(name: str) -> str:
    for pattern, replacement in _MODEL_GARDEN:
        if re.fullmatch(pattern, name):
            name = re.sub(pattern, replacement, name)
            # Model Garden's type_embeddings are called token_type_embeddings in Google's code.
            return name.replace("type_embeddings", "token_type_embeddings")
    return name


def _without_heads(name: str, array: np.ndarray) -> np.ndarray:
    """Joins the axes of heads and head size, which Model Garden's attention has."""
    if array.ndim == 3:
        is_output = "attention_output/" in name  # [heads, head_size, hidden]
        return array.reshape([-1, array.shape[-1]] if is_output else [len(array), -1])
    return array.ravel() if name.endswith("/bias") else array
