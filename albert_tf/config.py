"""Hyperparameters of ALBERT and of the BERT baselines with which it is compared."""

import dataclasses
import difflib
import sys
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown

SHARING_MODES = ("all", "attention", "ffn", "none")
ACTIVATIONS = ("gelu", "gelu_erf", "relu")


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """Hyperparameters of an encoder, named as in the published `albert_config.json` files.

    Attributes:
      vocab_size: number of pieces in the vocabulary (V).
      embedding_size: width of the embedding tables (E). If E == H, there is no projection.
      hidden_size: width of the encoder (H).
      num_hidden_layers: number of layers.
      num_hidden_groups: number of groups of consecutive layers. Each group has its own weights.
      inner_group_num: number of blocks per layer. Each block has its own weights.
      num_attention_heads: number of attention heads. Each head has width H / num_attention_heads.
      intermediate_size: width of the feed-forward layer.
      hidden_act: activation of the feed-forward layer: "gelu" (tanh form, used by ALBERT),
        "gelu_erf" (exact form, used by Hugging Face's BERTs) or "relu".
      hidden_dropout_prob: dropout rate of embeddings, attention output and feed-forward output.
      attention_probs_dropout_prob: dropout rate of the attention probabilities.
      classifier_dropout_prob: dropout rate before the classifier of a fine-tuning task.
      max_position_embeddings: number of rows of the position table, the maximum sequence length.
      type_vocab_size: number of rows of the segment-type table.
      initializer_range: standard deviation of the truncated normal initializer.
      parameter_sharing: weights that the layers of a group share: "all", "attention" only, "ffn"
        only, or "none" (each layer has its own weights, as in BERT).

    Source: Lan et al. 2020, section 3 and table 1; the reference's modeling.AlbertConfig.
    Deviation: the reference has no `parameter_sharing`. Layers of a group always share all weights.
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    parameter_sharing: str = "all"

    def __post_init__(self):
        for fault in self._faults():
            raise UserError(f"config: {fault}")

    def _faults(self) -> Iterator[str]:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # JSON's true and false become bool, which is a subclass of int.
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            is_whole = is_number and isinstance(value, int)
            if field.type is int and not (is_whole and value >= 1):
                yield f"{field.name} is {shown(value)}, expected a whole number >= 1"
            if field.type is float and not (is_number and 0 <= value <= sys.float_info.max):
                yield f"{field.name} is {shown(value)}, expected a number >= 0"
            if field.name.endswith("_prob") and value >= 1:
                yield f"{field.name} is {value!r}, expected 0 <= p < 1"
        if self.hidden_size % self.num_attention_heads:
            heads = f"num_attention_heads {self.num_attention_heads}"
            yield f"hidden_size {self.hidden_size} is not a multiple of {heads}"
        if self.hidden_act not in ACTIVATIONS:
            yield f"hidden_act {shown(self.hidden_act)} is not one of {ACTIVATIONS}"
        if self.parameter_sharing not in SHARING_MODES:
            yield f"parameter_sharing {shown(self.parameter_sharing)} is not one of {SHARING_MODES}"
        if self.num_hidden_groups > self.num_hidden_layers:
            layers = f"num_hidden_layers {self.num_hidden_layers}"
            yield f"num_hidden_groups {self.num_hidden_groups} is more than {layers}"

    @classmethod
    def named(cls, name: str) -> "AlbertConfig":
        """Returns the config of a published model. ALBERT names without `_v1` mean version 2."""
        if name not in _NAMED_SIZES:
            raise UserError(f"no config is named {name!r}; known: {', '.join(_NAMED_SIZES)}")
        return cls(**_NAMED_SIZES[name])

    @classmethod
    def for_vocabulary(
        cls, name_or_path: str, vocab_size: int, spm_model_file: str
    ) -> "AlbertConfig":
        """Returns the config of a published model with this `vocab_size`, or reads a file.

        Raises a UserError if `name_or_path` is neither a name nor a file, or if the file has a
        different vocab_size.
        """
        if name_or_path in _NAMED_SIZES:
            return dataclasses.replace(cls.named(name_or_path), vocab_size=vocab_size)
        if not tf.io.gfile.exists(name_or_path):
            raise UserError(
                f"--albert_config={name_or_path!r} is neither a file nor one of "
                f"{', '.join(_NAMED_SIZES)}"
            )
        config = cls.read(name_or_path)
        if config.vocab_size != vocab_size:
            raise UserError(
                f"{name_or_path!r} has vocab_size {config.vocab_size}, but the vocabulary "
                f"{spm_model_file!r} has {vocab_size} pieces: they must be equal"
            )
        return config

    @classmethod
    def read(cls, path: str) -> "AlbertConfig":
        """Reads an `albert_config.json`. Converts Hugging Face's "gelu_new" to "gelu" (tanh form).

        Unknown keys are ignored, because published files contain some (`net_structure_type`). But
        an unknown key that resembles a missing known key raises a UserError, as a misspelling.
        """
        values = files.read_json(path)
        known = {field.name for field in dataclasses.fields(cls)}
        if misspelt := {
            key: close[0]
            for key in values.keys() - known - {"classifier_dropout"}  # in Hugging Face configs
            if (close := difflib.get_close_matches(key, known - values.keys(), cutoff=0.8))
        }:
            key, meant = min(misspelt.items())
            raise UserError(f"{path}: {key!r} is not known; is {meant!r} meant?")
        values = {key: value for key, value in values.items() if key in known}
        if values.get("hidden_act") == "gelu_new":
            values["hidden_act"] = "gelu"
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: {error}") from error

    def write(self, path: str) -> None:
        """Writes this config as an `albert_config.json`."""
        files.write_json(path, dataclasses.asdict(self))


def _albert(layers, hidden, heads, dropout, **others):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        **others,
    }


def _bert(layers, hidden, heads):
    return _albert(layers, hidden, heads, 0.1, embedding_size=hidden, parameter_sharing="none")


_NAMED_SIZES = {
    "albert_base": _albert(12, 768, 12, dropout=0.0),
    "albert_large": _albert(24, 1024, 16, dropout=0.0),
    "albert_xlarge": _albert(24, 2048, 16, dropout=0.0),
    "albert_xxlarge": _albert(12, 4096, 64, dropout=0.0),
    "albert_base_v1": _albert(12, 768, 12, dropout=0.1),
    "albert_large_v1": _albert(24, 1024, 16, dropout=0.1),
    "albert_xlarge_v1": _albert(24, 2048, 16, dropout=0.1),
    "albert_xxlarge_v1": _albert(12, 4096, 64, dropout=0.0),
    "bert_base": _bert(12, 768, 12),
    "bert_large": _bert(24, 1024, 16),
    "bert_xlarge": _bert(24, 2048, 16),
}
NAMES = tuple(_NAMED_SIZES)
