"""Reads checkpoints with Google's TF1 variable names, and TF-Hub modules.

Only the variables of a module are read, never its code.
"""

import os
import re

import tensorflow as tf

from albert_tf.checkpoints import name_map, reference_config
from albert_tf.checkpoints.model_directory import CONFIG_FILE
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.unreadable import refuse_unreadable

# Variables of a training checkpoint that are not weights: optimizer slots and the global step.
_SLOT = re.compile(r"/(adam|lamb)_[mv]$|^global_step$")


def find(path: str) -> tuple[str, str] | None:
    """Returns a checkpoint's prefix and the directory with its config and vocabulary, or None.

    `path` may be a prefix, or a directory with one checkpoint.
    """
    if tf.io.gfile.exists(path + ".index"):
        return path, os.path.dirname(path)
    indexes = files.find(os.path.join(path, ""), "*.index")
    if len(indexes) > 1:
        raise UserError(f"{path!r} holds {len(indexes)} checkpoints: name one of them by prefix")
    return (indexes[0].removesuffix(".index"), path) if indexes else None


def read(prefix: str, directory: str, allow_missing: str | None = None) -> name_map.Imported:
    """Reads the weights of the checkpoint `prefix`, and the config in `directory`.

    Optimizer slots and global_step are skipped. The prefix `module/` and Keras' layer norm names
    are accepted, because other code writes them. For `allow_missing` see `name_map.to_ours`.
    """
    files.check_directory_name(prefix)
    config_file = os.path.join(directory, CONFIG_FILE)
    bert_config = os.path.join(directory, reference_config.BERT_FILE)
    table = None
    if not tf.io.gfile.exists(config_file) and tf.io.gfile.exists(bert_config):
        config_file, table = bert_config, name_map.BERT_TABLE
    config = reference_config.read(config_file)
    with refuse_unreadable(f"{prefix!r} is not a readable checkpoint"):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        slots = {name for name in shapes if _SLOT.search(name)}
        keys = _keys(sorted({*shapes} - slots))
        tensors = {name: reader.get_tensor(key) for name, key in keys.items()}
    weights = name_map.to_ours(tensors, config, "google", prefix, allow_missing, table)
    num_slots = len(slots - {"global_step"})
    notes = [f"left out: {num_slots} optimizer slots"] if num_slots else []
    return name_map.Imported(config, weights, notes)


def _keys(keys: list[str]) -> dict[str, str]:
    """Returns a dict mapping Google's variable names to a checkpoint's keys.

    Keras numbers layer normalizations (`layer_normalization_7`) across the whole model. The lowest
    number in a scope is Google's LayerNorm, the next one LayerNorm_1.
    """
    names = {key.removeprefix("module/"): key for key in keys}
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
