"""Reads and writes the files in which sentence-transformers records pooling and length.

They stand beside the model of transformers: modules.json lists the parts, 1_Pooling/config.json and
sentence_bert_config.json have their settings. The names of version 2 are written, which version 6
reads, too.
"""

import json
import os

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown
from albert_tf.storage.unreadable import refuse_unreadable

MODULES_FILE = "modules.json"
_LENGTH_FILE, _POOLING_DIR = "sentence_bert_config.json", "1_Pooling"
_PARTS = ("Transformer", "Pooling", "Normalize")
# Keys of version 2, one of which is true. Version 6 has the key `pooling_mode`.
_KEYS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}


def write(directory: str, task: dict, hidden_size: int) -> None:
    """Writes the files for an embedder. `task` is the content of its task.json."""
    paths = ("", _POOLING_DIR, "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{part}"}
        for i, (path, part) in enumerate(zip(paths, _PARTS))
    ]
    files.write_json(os.path.join(directory, MODULES_FILE), modules)
    pooling = {key: name == task["pooling"] for name, key in _KEYS.items()}
    pooling_file = os.path.join(directory, _POOLING_DIR, "config.json")
    files.write_json(pooling_file, {"word_embedding_dimension": hidden_size, **pooling})
    length = {"max_seq_length": task["max_seq_length"], "do_lower_case": False}
    files.write_json(os.path.join(directory, _LENGTH_FILE), length)


def read_task(directory: str, longest: int) -> dict:
    """Returns what task.json would contain for a model with modules.json.

    `longest` is the length if none is recorded. Vectors are always normalised here, so a model
    without this part gets other dot products, but the same cosines. Raises a UserError for parts or
    settings that an embedder does not have.
    """
    path = os.path.join(directory, MODULES_FILE)
    with refuse_unreadable(f"{path}: expected a list of parts", TypeError):
        parts = json.loads(tf.io.read_file(path).numpy())
        paths = {str(of["type"]).rpartition(".")[2]: str(of["path"]) for of in parts}
    if [*paths] not in ([*_PARTS], [*_PARTS[:2]]):
        raise UserError(
            f"{path}: parts {', '.join(paths)}, expected {', '.join(_PARTS)}: remove this file to "
            "read the encoder alone"
        )
    path = os.path.join(directory, paths["Pooling"], "config.json")
    values = files.read_json(path)
    used = values.get("pooling_mode") or [
        key for key in values if key.startswith("pooling_mode_") and values[key] is True
    ]
    names = {key: name for name, key in _KEYS.items()}
    [*pooling] = {names.get(key, key) for key in ([used] if isinstance(used, str) else used)}
    if len(pooling) != 1 or pooling[0] not in _KEYS:
        raise UserError(f"{path}: pooling {shown(used)}, expected one of {', '.join(_KEYS)}")
    sizes, usage = (
        files.read_json_if_exists(os.path.join(directory, name))
        for name in (_LENGTH_FILE, "config_sentence_transformers.json")
    )
    if sizes.get("do_lower_case") or usage.get("default_prompt_name"):
        raise UserError(
            f"{directory!r}: do_lower_case or default_prompt_name is set, which an embedder lacks: "
            "unset it, and change the texts yourself"
        )
    length = sizes.get("max_seq_length")
    return {
        "task": "embedding",
        "kind": "embedder",
        "pooling": pooling[0],
        "has_pairs": False,
        "max_seq_length": min(length or longest, longest),
    }
