"""Tables as users have them: their parts, and the task that reads one."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma

import zstandard

from albert_tf.jobs import program
from pipelines.tasks.classification import ClassificationTask, Columns

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TWO = "text,label\nfine,pos\nbad,neg\n"
AS_TWO = [("fine", "pos"), ("bad", "neg")]
TSV = "text\tlabel\nfine\tpos\nbad\tneg\n"
OBJECTS = [{"text": "fine", "label": "pos"}, {"text": "bad", "label": "neg"}]
LINES = "".join(json.dumps(record) + "\n" for record in OBJECTS)
BIG = "word " * 40_000


def task_of(directory, name, content, columns=None, **arguments):
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    columns = {"text": "text", "label": "label", **(columns or {})}
    columns = Columns(**columns)
    return ClassificationTask("classification", {"train": str(path)}, columns, **arguments)


def text_and_label(examples):
    return [(example.text, example.label) for example in examples]


def assert_is_one_line(error):
    assert program.is_user_error(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 700
