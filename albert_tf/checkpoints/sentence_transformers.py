"""Reads and writes the files in which sentence-transformers 2 to 6 records pooling and length."""

import json
import os

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown
from albert_tf.storage.unreadable import refuse_unreadable

MODULES_FILE, _LENGTH_FILE = "modules.json", "sentence_bert_config.json"
_PARTS = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
# Keys of version 2, one of which is true. Version 6 has the key `pooling_mode`.
_KEYS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}


def write(directory: str, task: dict, hidden_size: int) -> None:
    """Writes the files for an embedder. `task` is the content of its task.json."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{part}"}
        for i, (part, path) in enumerate(_PARTS.items())
    ]
    pooling = {"word_embedding_dimension": hidden_size}
    pooling |= {key: name == task["pooling"] for name, key in _KEYS.items()}
    length = {"max_seq_length": task["max_seq_length"], "do_lower_case": False}
    files.write_json(os.path.join(directory, MODULES_FILE), modules)
    files.write_json(os.path.join(directory, "1_Pooling/config.json"), pooling)
    files.write_json(os.path.join(directory, _LENGTH_FILE), length)


def read_task(directory: str, longest: int) -> dict:
    """Returns what task.json would contain for a model with modules.json.

    `longest` is the length if none is recorded. A model that does not normalise its vectors gets
    other dot products, but equal cosines. Raises a UserError for what an embedder does not have.
    """
    path = os.path.join(directory, MODULES_FILE)
    with refuse_unreadable(f"{path}: expected a list of parts", TypeError):
        parts = json.loads(tf.io.read_file(path).numpy())
        paths = {str(of["type"]).rpartition(".")[2]: str(of["path"]) for of in parts}
    if [*paths] not in ([*_PARTS], [*_PARTS][:2]):
        raise UserError(
            f"{path}: parts {', '.join(paths)}, expected {', '.join(_PARTS)}: remove this file to "
            "read the encoder alone"
        )
    path = os.path.join(directory, paths["Pooling"], "config.json")
    values = files.read_json(path)
    modes = [key for key in values if key.startswith("pooling_mode_") and values[key] is True]
    used = values.get("pooling_mode") or modes
    pooling = [name for name, key in _KEYS.items() if used in (name, [name], [key])]
    if not pooling:
        raise UserError(f"{path}: pooling {shown(used)}, expected one of {', '.join(_KEYS)}")
    settings: dict = {}
    for path in (_LENGTH_FILE, "config_sentence_transformers.json"):
        settings |= files.read_json_if_exists(os.path.join(directory, path))
    if settings.get("do_lower_case") or settings.get("default_prompt_name"):
        raise UserError(
            f"{directory}: do_lower_case or default_prompt_name, which an embedder lacks: unset it"
        )
    task = {"task": "embedding", "kind": "embedder", "pooling": pooling[0], "has_pairs": False}
    return {**task, "max_seq_length": min(settings.get("max_seq_length") or longest, longest)}
