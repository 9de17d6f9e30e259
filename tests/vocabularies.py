"""SentencePiece models for tests."""

import sentencepiece

CONTROL_PIECES = ("[CLS]", "[SEP]", "[MASK]")


def train(prefix, lines, vocab_size, control_pieces=CONTROL_PIECES, **options):
    prefix.parent.mkdir(exist_ok=True)
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
