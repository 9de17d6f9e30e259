"""A dev set out of the training file, the same whatever the order of its rows."""

from __future__ import annotations

import hashlib
import unicodedata

from albert_tf.errors import UserError
from pipelines.tasks.task import Task


def comparable(text: str) -> str:
    """Returns what texts share that a model may read as one.

    They differ only in case, accents, white space or Unicode's compatible forms.
    """
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(mark for mark in plain if unicodedata.category(mark) != "Mn")
    # NUL divides the texts of a pair.
    return "\0".join(" ".join(part.split()) for part in text.casefold().split("\0"))


def split_off_dev(task: Task, examples: list, fraction: float) -> tuple[list, list]:
    """Divides examples into train and dev by a hash of the comparable text of `Task.group`.

    Copies of a text, and the questions about one, are on the same side. A row that is added moves
    no other. So the share is met on average only.

    Args:
      fraction: the share of dev, between 0 and 1.

    Raises:
      ValueError: if a side is empty.
    """
    train, dev = [], []
    for example in examples:
        group = comparable(task.group(example))
        digest = hashlib.sha256(group.encode("utf-8", "replace")).digest()
        is_dev = int.from_bytes(digest[:8], "big") < fraction * 2**64
        (dev if is_dev else train).append(example)
    if not train or not dev:
        raise UserError(
            f"--dev_fraction={fraction} of {len(examples):,} rows leaves no row for "
            f"{'dev' if train else 'training'}: choose another share, or give --dev_file"
        )
    return train, dev
