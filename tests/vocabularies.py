"""SentencePiece models for tests."""

import sentencepiece

from albert_tf.text.settings import TextSettings, preprocess

ENGLISH = TextSettings()
CONTROL_PIECES = ("[CLS]", "[SEP]", "[MASK]")


def train(prefix, lines, vocab_size, control_pieces=CONTROL_PIECES, text=ENGLISH, **options):
    """Trains as train_vocab does, on text that is prepared by the settings `text`."""
    prefix.parent.mkdir(exist_ok=True)
    lines = [preprocess(line, text) for line in lines]
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
