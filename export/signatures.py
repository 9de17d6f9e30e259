"""The signatures of an exported model: named, shaped and explained here and nowhere else.

A dimension is a number, the name of a config field (`hidden_size`, `vocab_size`), what a task has
(`labels`, `choices`), or the export's `max_seq_length`. The size of `batch`, `seq_len`,
`predictions` and `words` depends on the request. The size of an output may depend on the sizes of
inputs, never on their values: TF Serving joins and splits requests by rows.

`python -m export.signature_table` prints the table of export/README.md.

Source: `tokens`, `mlm`, `sop` and `tokenization_info` come from the reference's TF-Hub modules;
`examples` takes what its exported classifiers take. The others are our own.
Deviation: `mlm_logits` is `[batch, predictions, vocab_size]`; the reference flattens the first two.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from albert_tf.text.limits import CHARS_PER_PIECE
from .text.limits import MAX_CONTEXT_CHARS

NUM_CANDIDATES = 5
# [MASK] of a text that `fill_mask` fills.
MAX_MASKS = 20
# Positions that `score` computes for all texts of a request: a sequence for each of their pieces.
MAX_SCORED_POSITIONS = 2**21
# The score of an answer where there is none, as in the reference.
NO_ANSWER_SCORE = -2e6


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
    tf.string,
    ("batch",),
    "UTF-8; bytes that are none become U+FFFD; may be empty; of more than the longest sequence "
    f"times {CHARS_PER_PIECE} characters, white space before them apart, the rest is cut off",
)
_LONG_TEXT = Field(
    tf.string,
    ("batch",),
    "UTF-8; bytes that are none become U+FFFD; may be empty; read up to "
    f"{MAX_CONTEXT_CHARS:,} characters",
)
_TOO_LONG = (
    "Too long a pair loses pieces at the end of the longer text, too long a text at its end."
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
_EMBEDDED = {
    "pooled_output": _ENCODED["pooled_output"],
    "mean_pooled_output": Field(
        tf.float32,
        ("batch", "hidden_size"),
        "mean of the last block's output over all real positions, [CLS] and [SEP] included",
    ),
}

_UNKNOWN_SHARE = {
    "unknown_share": Field(
        tf.float32,
        ("batch",),
        "share of the pieces that the vocabulary cannot spell (<unk>) among those that the model "
        "reads of the row's texts, each piece once for every window and choice that shows it; 1 "
        "for empty texts: near 1 the other outputs do not depend on them",
    )
}

# Of the signatures that take piece ids.
_ERROR = {
    "error": Field(
        tf.string,
        ("batch",),
        '"" for a row that is answered; else what is wrong with it: a value out of range, no '
        'tf.Example. The other outputs of such a row are NaN, -1 or ""',
    )
}

_PADDED = {
    name: dataclasses.replace(field, shape=("batch", "max_seq_length"))
    for name, field in _TOKENS.items()
}

# What every kind of model answers.
COMMON = {
    "tokens": Signature("Encodes piece ids.", _TOKENS, {**_ENCODED, **_ERROR}),
    "pooled": Signature(
        "Encodes piece ids into one vector a row: `tokens` with less work in the last block.",
        _TOKENS,
        {"pooled_output": _ENCODED["pooled_output"], **_ERROR},
    ),
    "tokenize": Signature(
        "Tokenizes a text, or two, into the inputs of `tokens`. Columns that are padding in all "
        f"rows may be cut off. {_TOO_LONG}",
        {
            "text": _TEXT,
            "text_pair": dataclasses.replace(
                _TEXT,
                meaning=_TEXT.meaning + ": empty (or blank) for a text alone; of a model "
                "fine-tuned on pairs, the empty second text of a pair",
            ),
        },
        _PADDED,
    ),
    "tokenization_info": Signature(
        "Describes how to tokenize for `tokens`.",
        {},
        {
            "vocab_file": Field(tf.string, (), "path of the vocabulary"),
            "do_lower_case": Field(tf.bool, (), "whether text is lower-cased first"),
        },
    ),
}


def _from_texts_and_examples(
    meaning: str,
    inputs: dict[str, Field],
    outputs: dict[str, Field],
    ids: str = "int64 [seq_len], as of `tokens`",
) -> dict[str, Signature]:
    """Returns `serving_default` and the `examples` that answers the same from piece ids."""
    examples = Field(
        tf.string, ("batch",), f"serialized tf.Example: input_ids, input_mask, segment_ids: {ids}"
    )
    return {
        "serving_default": Signature(meaning, inputs, outputs),
        "examples": Signature(
            "Answers like `serving_default`, from records.",
            {"examples": examples},
            {**outputs, **_ERROR},
        ),
    }


PRETRAINING = {
    **_from_texts_and_examples(
        f"Reads a text, or two: how likely is the second to follow the first? {_TOO_LONG}",
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
            **_EMBEDDED,
            **_UNKNOWN_SHARE,
        },
    ),
    "fill_mask": Signature(
        f"Fills the first {MAX_MASKS} [MASK] of a text. A [MASK] past the longest length is cut "
        "off unanswered.",
        {"text": dataclasses.replace(_TEXT, meaning=_TEXT.meaning + "; any number of [MASK]")},
        {
            "pieces": Field(
                tf.string,
                ("batch", MAX_MASKS, NUM_CANDIDATES),
                "likeliest pieces, best first, `▁` where a word begins; "
                '"" past a text\'s own masks',
            ),
            "probabilities": Field(
                tf.float32,
                ("batch", MAX_MASKS, NUM_CANDIDATES),
                "their probabilities among all pieces; 0 past a text's own masks",
            ),
            "num_masks": Field(tf.int32, ("batch",), "how many [MASK] of the text are answered"),
        },
    ),
    "score": Signature(
        "Scores how likely a text is: each piece is predicted from all others of the text but the "
        "rest of its word (Kauf and Ivanova 2023). Too long a text loses pieces at its end. A text "
        "of n pieces costs as much as n sequences of n + 2 pieces; a request has "
        f"{MAX_SCORED_POSITIONS:,} positions at most.",
        {"text": _TEXT},
        {
            "log_likelihood": Field(
                tf.float32, ("batch",), "sum of the pieces' log probabilities, in nats"
            ),
            "num_pieces": Field(tf.int32, ("batch",), "pieces that are scored"),
            "num_words": Field(tf.int32, ("batch",), "their words; a punctuation mark is one"),
            **_UNKNOWN_SHARE,
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
            **_ERROR,
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
            **_ERROR,
        },
    ),
}

ENCODER = {
    **_from_texts_and_examples(
        "Embeds a text. Too long a text loses pieces at its end.",
        {"text": _TEXT},
        {**_EMBEDDED, **_UNKNOWN_SHARE},
    ),
    **COMMON,
}

_TEXTS = {"text": _TEXT, "text_pair": _TEXT}
# Of kinds whose `serving_default` has one output. TensorFlow Serving's REST API answers one without
# its name: a second one would change the form of the answer.
_UNKNOWN = {
    "unknown_share": Signature(
        "Measures how much of a text, or pair, the model cannot read.", _TEXTS, _UNKNOWN_SHARE
    )
}

CLASSIFIER = {
    **_from_texts_and_examples(
        f"Labels a text, or a pair where the task has pairs. {_TOO_LONG}",
        _TEXTS,
        {
            "label": Field(tf.string, ("batch",), "the likeliest label"),
            "probabilities": Field(
                tf.float32, ("batch", "labels"), "of every label, in the order of `labels`"
            ),
            **_UNKNOWN_SHARE,
        },
    ),
    "labels": Signature(
        "Names the labels.", {}, {"labels": Field(tf.string, ("labels",), "UTF-8, as in training")}
    ),
    **COMMON,
}

REGRESSOR = {
    **_from_texts_and_examples(
        f"Gives a number to a text, or to a pair where the task has pairs. {_TOO_LONG}",
        _TEXTS,
        {"value": Field(tf.float32, ("batch",), "in the unit of the training labels")},
    ),
    **_UNKNOWN,
    **COMMON,
}

MULTILABEL = {
    **_from_texts_and_examples(
        "Returns which labels a text has, or a pair where the task has pairs. " + _TOO_LONG,
        _TEXTS,
        {
            "probabilities": Field(
                tf.float32, ("batch", "labels"), "of each label; fine-tuning counts 0.5 as yes"
            ),
        },
    ),
    **_UNKNOWN,
    "labels": CLASSIFIER["labels"],
    **COMMON,
}

TOKEN_CLASSIFIER = {
    "serving_default": Signature(
        "Finds the entities in a text, read in overlapping windows. If the model's labels mark no "
        "entities (parts of speech), every word is a span.",
        {"text": _LONG_TEXT},
        {
            "spans": Field(
                tf.string,
                ("batch",),
                "JSON, a list of the spans in order. Each is an object of `start`, its first "
                "character, `end`, the character after its last, both counted in Unicode "
                "characters; `label`, its type; `text`, its part of the text; `probability`, the "
                "mean of its words' labels",
            ),
            "num_spans": Field(tf.int32, ("batch",), "spans of the text"),
            **_UNKNOWN_SHARE,
        },
    ),
    "words": Signature(
        f"Labels given words; reads the first {MAX_CONTEXT_CHARS:,} characters of a row.",
        {"words": dataclasses.replace(_TEXT, shape=("batch", "words"), meaning='"" is no word')},
        {
            "labels": Field(
                tf.string, ("batch", "words"), 'the likeliest label of each; "" where no word is'
            ),
            "probabilities": Field(tf.float32, ("batch", "words"), "of that label"),
            **_UNKNOWN_SHARE,
        },
    ),
    "labels": CLASSIFIER["labels"],
    **COMMON,
}

QUESTION_ANSWERING = {
    "serving_default": Signature(
        "Finds the answer to a question in a text, read in overlapping windows. Too long a "
        "question loses pieces at its end.",
        {
            "question": _TEXT,
            "context": _LONG_TEXT,
        },
        {
            "answer": Field(
                tf.string,
                ("batch",),
                'a part of the context as it is written; "" if the task has questions without '
                "an answer and no_answer_score is above its threshold, or the context is blank",
            ),
            "score": Field(
                tf.float32,
                ("batch",),
                "of the best answer, the more the better, even if it is not given; "
                f"{NO_ANSWER_SCORE:.0f} if there is none",
            ),
            "no_answer_score": Field(
                tf.float32, ("batch",), "the greater, the likelier the context has no answer"
            ),
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
}

MULTIPLE_CHOICE = {
    **_from_texts_and_examples(
        "Chooses among the answers to a question about a text. Too long an answer loses pieces at "
        "its beginning, then the text at its end.",
        {
            "context": _TEXT,
            "question": dataclasses.replace(
                _TEXT,
                meaning=_TEXT.meaning
                + "; an option follows it (RACE: it replaces each `_` in it, if any)",
            ),
            "options": dataclasses.replace(_TEXT, shape=("batch", "choices")),
        },
        {
            "choice": Field(tf.int32, ("batch",), "the likeliest option, from 0"),
            "probabilities": Field(tf.float32, ("batch", "choices"), "of every option"),
            **_UNKNOWN_SHARE,
        },
        ids="int64 [choices * seq_len], the options one after the other",
    ),
    **COMMON,
}

KINDS = {
    "pretraining": PRETRAINING,
    "encoder": ENCODER,
    "classifier": CLASSIFIER,
    "regressor": REGRESSOR,
    "multilabel": MULTILABEL,
    "token_classifier": TOKEN_CLASSIFIER,
    "question_answering": QUESTION_ANSWERING,
    "multiple_choice": MULTIPLE_CHOICE,
}


def of_model(kind: str, task: dict) -> dict[str, Signature]:
    """Returns the signatures of a model.

    Args:
      kind: one of KINDS.
      task: the content of task.json; empty for a model without a task.
    """
    table = KINDS[kind]
    if task.get("has_pairs", True):
        return table
    of_text: dict[str, Signature] = {
        name: dataclasses.replace(table[name], inputs={"text": _TEXT})
        for name in ("serving_default", "unknown_share")
        if name in table
    }
    return {**table, **of_text}
