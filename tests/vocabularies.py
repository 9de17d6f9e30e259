"""SentencePiece models for tests."""

import json
import shutil

import sentencepiece

from albert_tf.text.settings import TextSettings

ENGLISH = TextSettings()
CONTROL_PIECES = ("[CLS]", "[SEP]", "[MASK]")


def train(prefix, lines, vocab_size, control_pieces=CONTROL_PIECES, text=ENGLISH, **options):
    """Writes a model, and the settings `text` beside it, whatever the case of the lines is."""
    prefix.parent.mkdir(exist_ok=True)
    record = json.dumps({"settings": text._asdict()} if text else {})
    prefix.with_suffix(".json").write_text(record)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        control_symbols=list(control_pieces),
        minloglevel=2,
        **options,
    )
    return prefix.with_suffix(".model")


def unrecorded(vocabulary, directory):
    """Returns the path of a copy whose settings nothing records."""
    return shutil.copy(vocabulary, directory / "unrecorded.model")
