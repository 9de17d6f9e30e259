"""Reads and writes models in the format of Hugging Face's transformers, without that package.

A pre-trained model is saved as a BERT if it shares no weights, has E == H and uses the exact gelu.
"""

import os
import re
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import tensorflow as tf

from albert_tf.checkpoints import name_map, reference_config, sentence_transformers
from albert_tf.checkpoints.model_directory import TASK_FILE
from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS, Kind
from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown
from albert_tf.storage.unreadable import refuse_unreadable
from albert_tf.text import tokenizer_json
from albert_tf.text.huggingface_files import SPECIAL, TOKENIZER_CONFIG_FILE
from albert_tf.text.tokenization import AlbertTokenizer

CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"

# Some Hugging Face files store a variable under two names. Maps the second name to the first.
_ALIASES = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_NOT_WEIGHTS = r"(?:albert|bert)\.embeddings\.(?:position_ids|token_type_ids)"
# Early conversions of BERT from TensorFlow kept TensorFlow's names for layer norm variables.
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
# Variables that the classes AlbertForMaskedLM and BertForMaskedLM do not have.
_NOT_IN_MASKED_LM = r"^(albert\.pooler|sop_classifier|bert\.pooler|cls\.seq_relationship)\."
# Hugging Face's ALBERT always has this projection, even if embedding_size == hidden_size (E == H).
_PROJECTION = tuple(
    f"albert.encoder.embedding_hidden_mapping_in.{name}" for name in ("weight", "bias")
)


def read(
    directory: str, allow_missing: str | None = None, task: dict | None = None
) -> name_map.Imported:
    """Reads a model's config and weights.

    `task` is the content of task.json of a fine-tuned model. `allow_missing` applies to pre-trained
    ones, see `name_map.to_ours`.
    """
    path = os.path.join(directory, SAFETENSORS_FILE)
    config_file = os.path.join(directory, CONFIG_FILE)
    config, values = reference_config.read(config_file), files.read_json(config_file)
    family = values.get("model_type", "albert")
    table, skipped = name_map.BERT_TABLE if family == "bert" else None, _NOT_WEIGHTS
    if task:
        kind, allow_missing = KINDS[task["kind"]], None
        table = name_map.fine_tuned_table(kind, table)
        skipped += "" if kind.has_pooler else rf"|{family}\.pooler\..*"
    notes = []
    if family == "albert" and values.get("hidden_act") == "gelu" and config.hidden_act == "gelu":
        # Hugging Face's configs for ALBERT v1 have "gelu", but training used the tanh form.
        notes.append('config.json has "gelu", which is read as the tanh form of ALBERT\'s code')
    if (epsilon := values.get("layer_norm_eps", 1e-12)) != 1e-12:
        notes.append(f"config.json has layer_norm_eps {shown(epsilon)}; here it is always 1e-12")
    if {"AlbertForMaskedLM", "BertForMaskedLM"} & {*(values.get("architectures") or ())}:
        allow_missing = "|".join(filter(None, [allow_missing, _NOT_IN_MASKED_LM]))
    tensors = _read_tensors(path)
    if not any(name.startswith(f"{family}.") for name in tensors):
        # Models without heads (AlbertModel, BertModel) have names without this prefix.
        tensors = {f"{family}.{name}": array for name, array in tensors.items()}
    tensors = {
        re.sub(r"\.(gamma|beta)$", lambda match: _OLD_NAMES[match[0]], name): array
        for name, array in tensors.items()
        if not re.fullmatch(skipped, name)
    }
    _drop_aliases(tensors, path)
    if family == "albert" and config.embedding_size == config.hidden_size:
        _drop_identity_projection(tensors, config, path)
    weights = name_map.to_ours(tensors, config, "torch", path, allow_missing, table)
    return name_map.Imported(config, weights, notes)


def _read_tensors(path: str) -> dict[str, np.ndarray]:
    message = f"{path!r} is damaged or no file of its kind"
    with (
        files.local_file(path) as local,
        refuse_unreadable(message, safetensors.SafetensorError),
    ):
        return safetensors.numpy.load_file(local)


def write(directory: str, model: tf.keras.Model, task: dict | None = None) -> None:
    """Writes config.json and model.safetensors for transformers' from_pretrained.

    An ALBERT with E == H gets an identity projection, because Hugging Face's ALBERT always has an
    embedding projection. `task` is the content of task.json, or None for a pre-trained model. It is
    also written, because config.json has no keys for some of its settings.
    """
    config, weights = model.config, name_map.arrays(model)
    family, architecture, table, of_task = "albert", "AlbertForPreTraining", None, {}
    if task is not None:
        kind = KINDS[task["kind"]]
        architecture, table = kind.architecture, name_map.fine_tuned_table(kind)
        of_task = _values_of_task(config, task, kind)
        if not kind.our_head:
            sentence_transformers.write(directory, task, config.hidden_size)
        files.write_json(os.path.join(directory, TASK_FILE), task)
    elif _is_bert(config):
        family, architecture, table = "bert", "BertForPreTraining", name_map.BERT_TABLE
    tensors = name_map.from_ours(weights, config, "torch", table)
    if family == "albert" and config.embedding_size == config.hidden_size:
        kernel, bias = _PROJECTION
        tensors[kernel] = np.eye(config.hidden_size, dtype=np.float32)
        tensors[bias] = np.zeros(config.hidden_size, np.float32)
    values = {
        "architectures": [architecture],
        "model_type": family,
        **config_values(config),
        # The ids of <pad>, [CLS] and [SEP] in ALBERT's vocabularies.
        "pad_token_id": 0,
        **({"bos_token_id": 2, "eos_token_id": 3} if family == "albert" else {}),
        **of_task,
    }
    if family == "bert":
        for key in ("embedding_size", "num_hidden_groups", "inner_group_num"):
            del values[key]
    data = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    files.write_atomically(os.path.join(directory, SAFETENSORS_FILE), data)
    files.write_json(os.path.join(directory, CONFIG_FILE), values)


def _values_of_task(config: AlbertConfig, task: dict, kind: Kind) -> dict:
    """Returns the entries of config.json that describe the task."""
    values: dict[str, Any] = {"classifier_dropout_prob": config.classifier_dropout_prob}
    # In Hugging Face's config, the single output of a regression model has a label, too.
    if labels := task.get("labels", ["LABEL_0"] if kind.problem_type else None):
        values["id2label"] = {str(place): label for place, label in enumerate(labels)}
        values["label2id"] = {label: place for place, label in enumerate(labels)}
    if kind.problem_type:
        values["problem_type"] = kind.problem_type
    return values


def config_values(config: AlbertConfig) -> dict:
    """Converts a config to the keys and values of Hugging Face's AlbertConfig."""
    names = {"gelu": "gelu_new", "gelu_erf": "gelu"}
    return {
        **reference_config.values(config),
        "hidden_act": names.get(config.hidden_act, config.hidden_act),
        reference_config.OUR_ACTIVATION: config.hidden_act,
        "layer_norm_eps": 1e-12,
    }


def _is_bert(config: AlbertConfig) -> bool:
    # Models trained here are saved as ALBERTs, because even bert_base uses the tanh form of gelu.
    shares_nothing = config.parameter_sharing == "none" and config.inner_group_num == 1
    has_projection = config.embedding_size != config.hidden_size
    return config.hidden_act == "gelu_erf" and shares_nothing and not has_projection


def write_tokenizer(directory: str, tokenizer: AlbertTokenizer, max_length: int) -> None:
    """Writes the vocabulary, tokenizer.json and Hugging Face's tokenizer_config.json.

    transformers' AutoTokenizer reads tokenizer.json; its class AlbertTokenizer would convert
    spiece.model itself, into other pieces. Without `model_input_names`, transformers 5 returns no
    token_type_ids. Without `max_length`, truncation=True would truncate nothing.
    """
    vocabulary = tokenizer.vocabulary
    path = os.path.join(directory, vocabulary.file_name)
    files.write_atomically(path, vocabulary.model_bytes)
    tokenizer_json.write(os.path.join(directory, tokenizer_json.FILE_NAME), vocabulary)
    special = dict(zip(SPECIAL, vocabulary.special))
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": max_length,
        **vocabulary.settings._asdict(),
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if tokenizer.is_wordpiece:
        values["strip_accents"] = not vocabulary.settings.keep_accents
        values["tokenize_chinese_chars"] = True
    else:
        values["remove_space"] = True
        # transformers' ALBERT names these two pieces twice.
        values.update(bos_token=special["cls_token"], eos_token=special["sep_token"])
    files.write_json(os.path.join(directory, TOKENIZER_CONFIG_FILE), values)


def _drop_aliases(tensors: dict[str, np.ndarray], path: str) -> None:
    for alias, name in _ALIASES.items():
        if alias in tensors:
            array = tensors.pop(alias)
            if not np.array_equal(tensors.setdefault(name, array), array):
                raise UserError(
                    f"{path}: {alias} differs from {name}; in ALBERT they are one variable"
                )


def _drop_identity_projection(
    tensors: dict[str, np.ndarray], config: AlbertConfig, path: str
) -> None:
    kernel, bias = _PROJECTION
    if kernel not in tensors or bias not in tensors:
        return
    if not np.array_equal(tensors[kernel], np.eye(config.hidden_size)) or tensors[bias].any():
        raise UserError(
            f"{path}: {kernel} is not the identity, but embedding_size equals hidden_size: such a "
            "model has no projection here and in Google's code"
        )
    del tensors[kernel], tensors[bias]
