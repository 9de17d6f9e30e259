"""A dev set out of the training file, the same whatever the order of its rows."""

from __future__ import annotations

import hashlib

from albert_tf.errors import UserError
from pipelines.tasks.task import Task


def split_off_dev(task: Task, examples: list, fraction: float) -> tuple[list, list]:
    """Divides examples into train and dev by a hash of what `Task.group` returns.

    Copies of a text, and the questions about one, are on the same side. A row that is added moves
    no other. So the share is met on average only.

    Args:
      fraction: the share of dev, between 0 and 1.

    Raises:
      ValueError: if a side is empty.
    """
    train, dev = [], []
    for example in examples:
        digest = hashlib.sha256(task.group(example).encode("utf-8", "replace")).digest()
        is_dev = int.from_bytes(digest[:8], "big") < fraction * 2**64
        (dev if is_dev else train).append(example)
    if not train or not dev:
        raise UserError(
            f"--dev_fraction={fraction} of {len(examples):,} rows leaves no row for "
            f"{'dev' if train else 'training'}: choose another share, or give --dev_file"
        )
    return train, dev
