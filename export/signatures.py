"""The signatures of an exported model: named, shaped and explained here and nowhere else.

A dimension is a number, the name of a config field (`hidden_size`, `vocab_size`), or a name whose
size each request chooses: `batch`, `seq_len`, `predictions`, `masks`.

Source: `tokens`, `mlm`, `sop` and `tokenization_info` are those of the reference's TF-Hub modules.
Deviation: `mlm_logits` is `[batch, predictions, vocab_size]`; the reference flattens the first two.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

NUM_CANDIDATES = 5


@dataclasses.dataclass(frozen=True)
class Field:
    """One input or output: its dtype, its dimensions, what it means."""

    dtype: tf.DType
    shape: tuple[str | int, ...]
    meaning: str


@dataclasses.dataclass(frozen=True)
class Signature:
    """What one signature answers, from what."""

    meaning: str
    inputs: dict[str, Field]
    outputs: dict[str, Field]

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs as TensorFlow describes them; a named dimension is open."""
        return {
            name: tf.TensorSpec([d if isinstance(d, int) else None for d in f.shape], f.dtype, name)
            for name, f in self.inputs.items()
        }


_TEXT = Field(
    tf.string, ("batch",), "UTF-8; bytes that are none become U+FFFD; any length, may be empty"
)
_TOKENS = {
    "input_ids": Field(tf.int32, ("batch", "seq_len"), "piece ids: [CLS] A [SEP] B [SEP], padded"),
    "input_mask": Field(tf.int32, ("batch", "seq_len"), "1 = real, 0 = padding"),
    "segment_ids": Field(tf.int32, ("batch", "seq_len"), "0 up to the first [SEP], then 1"),
}
_ENCODED = {
    "sequence_output": Field(
        tf.float32, ("batch", "seq_len", "hidden_size"), "the last block's output, every position"
    ),
    "pooled_output": Field(tf.float32, ("batch", "hidden_size"), "the pooler's output at [CLS]"),
}

# What every kind of model answers.
COMMON = {
    "tokens": Signature("Encodes piece ids.", _TOKENS, _ENCODED),
    "tokenization_info": Signature(
        "Says how to tokenize for `tokens`.",
        {},
        {
            "vocab_file": Field(tf.string, (), "path of the SentencePiece model"),
            "do_lower_case": Field(tf.bool, (), "whether text is lower-cased first"),
        },
    ),
}

PRETRAINING = {
    "serving_default": Signature(
        "Reads a text, or two: how likely is the second to follow the first? Too long a pair "
        "loses pieces at the end of the longer text, too long a text at its end.",
        {
            "text": _TEXT,
            "text_pair": dataclasses.replace(
                _TEXT, meaning=_TEXT.meaning + ": empty (or blank) for a text alone"
            ),
        },
        {
            "in_order_probability": Field(
                tf.float32,
                ("batch",),
                "probability that text_pair follows text and not text follows text_pair; 0.5 for a "
                "text alone, which has no order (the model never learned one for it)",
            ),
            "pooled_output": _ENCODED["pooled_output"],
            "mean_pooled_output": Field(
                tf.float32,
                ("batch", "hidden_size"),
                "mean of the last block's output over all real positions, [CLS] and [SEP] included",
            ),
        },
    ),
    "fill_mask": Signature(
        "Fills each [MASK] in a text. A [MASK] past the longest length is cut off unanswered.",
        {"text": dataclasses.replace(_TEXT, meaning=_TEXT.meaning + "; any number of [MASK]")},
        {
            "pieces": Field(
                tf.string,
                ("batch", "masks", NUM_CANDIDATES),
                "likeliest pieces, best first, `▁` where a word begins; masks = the most in the "
                'batch, "" past a text\'s own',
            ),
            "probabilities": Field(
                tf.float32,
                ("batch", "masks", NUM_CANDIDATES),
                "their probabilities among all pieces; 0 past a text's own masks",
            ),
            "num_masks": Field(tf.int32, ("batch",), "how many [MASK] of the text are answered"),
        },
    ),
    **COMMON,
    "mlm": Signature(
        "Encodes piece ids and scores every piece at the given positions.",
        {
            **_TOKENS,
            "mlm_positions": Field(
                tf.int32, ("batch", "predictions"), "positions, 0 is [CLS]; at least one a row"
            ),
        },
        {
            **_ENCODED,
            "mlm_logits": Field(
                tf.float32, ("batch", "predictions", "vocab_size"), "scores before the softmax"
            ),
        },
    ),
    "sop": Signature(
        "Encodes piece ids and judges the order of the two segments.",
        _TOKENS,
        {
            **_ENCODED,
            "sop_log_probs": Field(
                tf.float32, ("batch", 2), "log-probabilities: 0 in order, 1 swapped"
            ),
        },
    ),
}
