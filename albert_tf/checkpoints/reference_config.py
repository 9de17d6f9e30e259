"""Reads and writes the reference's and Hugging Face's configs, which describe sharing by groups.

Both share all weights within a group of layers, and no weights between groups:

| parameter_sharing here | foreign config |
|---|---|
| "all" | the same `num_hidden_groups` and `inner_group_num` |
| "none" | `num_hidden_groups` = `num_hidden_layers`: each layer is a group; read as "none" |
| "attention", "ffn" | written like "none"; the shared weights are copied to every group |

A BERT is read as "none" with E == H.
"""

import dataclasses
import os

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown

# "gelu" in Hugging Face's ALBERT configs can be the exact or the tanh form, see huggingface.read.
# This additional key is unambiguous.
OUR_ACTIVATION = "albert_tf_hidden_act"
BERT_FILE = "bert_config.json"  # config file of Google's BERT models

# These keys are required, because their defaults differ between programs.
_REQUIRED_KEYS = (
    "vocab_size embedding_size hidden_size num_hidden_layers num_attention_heads intermediate_size"
).split()


def on_their_side(config: AlbertConfig) -> AlbertConfig:
    """Returns the equivalent config for code that shares weights only within groups."""
    if config.parameter_sharing == "all":
        return config
    return dataclasses.replace(
        config, num_hidden_groups=config.num_hidden_layers, parameter_sharing="all"
    )


def values(config: AlbertConfig) -> dict:
    """Returns the content of a config file in the reference's format."""
    fields = dataclasses.asdict(on_their_side(config))
    del fields["parameter_sharing"]
    return fields


def read(path: str) -> AlbertConfig:
    """Reads an `albert_config.json`, `bert_config.json` or Hugging Face's `config.json`."""
    if not tf.io.gfile.exists(path):
        raise UserError(f"no config at {path!r}: the weights alone do not define the model's shape")
    config, found = AlbertConfig.read(path), files.read_json(path)
    is_google_bert = os.path.basename(path) == BERT_FILE
    family = found.get("model_type", "bert" if is_google_bert else "albert")
    if family not in ("albert", "bert"):
        raise UserError(f"{path}: model_type {shown(family)}, expected 'albert' or 'bert'")
    if family == "bert":
        found.setdefault("embedding_size", config.hidden_size)
    if absent := [key for key in _REQUIRED_KEYS if key not in found]:
        raise UserError(f"{path}: not the config of an ALBERT: it lacks {', '.join(absent)}")
    if family == "bert":
        if (kind := found.get("position_embedding_type", "absolute")) != "absolute":
            raise UserError(f"{path}: position_embedding_type {shown(kind)}, expected 'absolute'")
        if found.get("is_decoder"):
            raise UserError(f"{path}: is_decoder is true, expected an encoder")
        # "gelu" is the tanh form in Google's code and the exact form in Hugging Face's.
        is_exact = found.get("hidden_act", "gelu") == "gelu" and not is_google_bert
        return dataclasses.replace(
            config,
            embedding_size=config.hidden_size,
            num_hidden_groups=1,
            inner_group_num=1,
            hidden_act="gelu_erf" if is_exact else config.hidden_act,
            parameter_sharing="none",
        )
    activation = found.get(OUR_ACTIVATION, config.hidden_act)
    # Foreign code shares all weights within a group and no others.
    config = dataclasses.replace(config, hidden_act=activation, parameter_sharing="all")
    if config.num_hidden_groups == config.num_hidden_layers > 1:
        return dataclasses.replace(config, num_hidden_groups=1, parameter_sharing="none")
    return config
