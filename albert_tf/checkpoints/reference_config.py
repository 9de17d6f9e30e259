"""The config files of the reference and of Hugging Face, which share by groups of layers alone.

| sharing here | on their side |
|---|---|
| "all" | the same `num_hidden_groups` and `inner_group_num` |
| "none" | `num_hidden_groups` = `num_hidden_layers`: a group of its own for each layer |
| "attention", "ffn" | written like "none", the shared half copied into every group |

So a model with as many groups as layers comes back as "none", the form that keeps its meaning when
the depth changes; its outputs are the same.
"""

from __future__ import annotations

import dataclasses
import json

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError

# Without these a config means whatever its reader takes as defaults.
_REQUIRED_KEYS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


def on_their_side(config: AlbertConfig) -> AlbertConfig:
    """Returns the config that gives the same model on their side, where groups alone share."""
    if config.parameter_sharing == "all":
        return config
    return dataclasses.replace(
        config, num_hidden_groups=config.num_hidden_layers, parameter_sharing="all"
    )


def values(config: AlbertConfig) -> dict:
    """Returns the keys and values of their config file."""
    fields = dataclasses.asdict(on_their_side(config))
    del fields["parameter_sharing"]
    return fields


def read(path: str) -> AlbertConfig:
    """Reads an `albert_config.json` or `config.json` of theirs; groups = layers is "none" here.

    Raises:
      ValueError: if there is none, or it lacks a key of the model's shape.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"no config at {path!r}: the weights alone do not tell the model's shape")
    config = AlbertConfig.read(path)
    with tf.io.gfile.GFile(path) as file:
        found = json.loads(file.read())
    if absent := [key for key in _REQUIRED_KEYS if key not in found]:
        raise UserError(f"{path}: not the config of an ALBERT: it lacks {', '.join(absent)}")
    config = dataclasses.replace(config, parameter_sharing="all")  # theirs know groups alone
    if config.num_hidden_groups == config.num_hidden_layers > 1:
        return dataclasses.replace(config, num_hidden_groups=1, parameter_sharing="none")
    return config
