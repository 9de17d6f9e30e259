"""The files beside a model that takes piece ids: its vocabulary and an application's settings.

OUTPUT without its ending names them: base.onnx has base.json, and base.spiece.model or for
WordPiece base.vocab.txt.
"""

from __future__ import annotations

import json
import os

from albert_tf.storage import files
from .modules.serving_module import ServedCheckpoint


def description(served: ServedCheckpoint, output: str) -> dict:
    """Returns what an application must know of the model `output`: the content of its .json."""
    tokenizer, task = served.tokenizer, served.task
    ids = (
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    )
    return {
        "kind": served.kind,
        "max_seq_length": served.max_seq_length,
        "vocab_file": os.path.basename(_vocab_file(served, output)),
        "vocab_sha256": tokenizer.sha256,
        "do_lower_case": tokenizer.do_lower_case,
        "special_pieces": {tokenizer.id_to_piece(i): i for i in ids},
        "has_pairs": task.get("has_pairs"),
        "labels": task.get("labels"),
    }


def write(served: ServedCheckpoint, output: str) -> None:
    """Writes the vocabulary and the description beside `output`, which is written after them."""
    files.write_atomically(_vocab_file(served, output), served.tokenizer.model_bytes)
    text = json.dumps(description(served, output), indent=2) + "\n"
    files.write_atomically(f"{os.path.splitext(output)[0]}.json", text)


def _vocab_file(served: ServedCheckpoint, output: str) -> str:
    return f"{os.path.splitext(output)[0]}.{served.tokenizer.vocabulary_name}"
