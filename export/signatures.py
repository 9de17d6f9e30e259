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

from collections.abc import Mapping

import tensorflow as tf

NUM_CANDIDATES = 5
# Number of [MASK] per text that `fill_mask` fills.
MAX_MASKS = 20
# Maximum number of positions per request of `score`, which computes one sequence per piece.
MAX_SCORED_POSITIONS = 2**21
# The score if there is no answer, as in the reference.
NO_ANSWER_SCORE = -2e6


class Field(str):
    """The form of one input or output: its dtype and shape, such as "float32 [batch, 2]"."""

    @property
    def dtype(self) -> tf.DType:
        """The dtype."""
        return tf.as_dtype(self.partition(" ")[0])

    @property
    def shape(self) -> tuple[str | int, ...]:
        """The dimensions: names and numbers."""
        dimensions = self.partition(" ")[2].strip("[]").split(", ")
        return tuple(int(d) if d.isdigit() else d for d in dimensions if d)


class Signature:
    """The inputs and outputs of one signature, by name."""

    def __init__(self, inputs: Mapping[str, str], outputs: Mapping[str, str]):
        self.inputs = {name: Field(form) for name, form in inputs.items()}
        self.outputs = {name: Field(form) for name, form in outputs.items()}

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs as TensorFlow describes them; a named dimension is open."""
        return {
            name: tf.TensorSpec([d if isinstance(d, int) else None for d in f.shape], f.dtype, name)
            for name, f in self.inputs.items()
        }


# Texts are UTF-8; invalid bytes become U+FFFD; a text may be empty. Too long a pair loses pieces at
# the end of its longer text, too long a text at its end. checks.py limits the characters.
_TEXT = {"text": "string [batch]"}
# An empty or blank `text_pair` means a single text; for a model fine-tuned on pairs, a pair with an
# empty second text.
_TEXTS = {"text": "string [batch]", "text_pair": "string [batch]"}
_TOKENS = {
    "input_ids": "int32 [batch, seq_len]",  # piece ids: [CLS] A [SEP] B [SEP], padded
    "input_mask": "int32 [batch, seq_len]",  # 1 = real, 0 = padding
    "segment_ids": "int32 [batch, seq_len]",  # 0 up to the first [SEP], then 1
}
_POOLED = {"pooled_output": "float32 [batch, hidden_size]"}  # the pooler's output at [CLS]
_ENCODED = {
    # The last block's output, every position.
    "sequence_output": "float32 [batch, seq_len, hidden_size]",
    **_POOLED,
}
_EMBEDDED = {
    **_POOLED,
    # Mean of the last block's output over all real positions, [CLS] and [SEP] included.
    "mean_pooled_output": "float32 [batch, hidden_size]",
}
# Share of the pieces that the vocabulary cannot spell (<unk>) among those that the model reads of
# the row's texts, each piece once for every window and choice that shows it; 1 for empty texts.
# Near 1 the other outputs do not depend on the texts.
_UNKNOWN_SHARE = {"unknown_share": "float32 [batch]"}
# For signatures that take piece ids: "" for a good row. For a bad row (a value out of range, or no
# tf.Example) the error; the other outputs of a bad row are NaN, -1 or "".
_ERROR = {"error": "string [batch]"}

# What every kind of model answers.
COMMON = {
    # Encodes piece ids.
    "tokens": Signature(_TOKENS, {**_ENCODED, **_ERROR}),
    # Encodes piece ids into one vector a row: `tokens` with less work in the last block.
    "pooled": Signature(_TOKENS, {**_POOLED, **_ERROR}),
    # Tokenizes a text, or two, into the inputs of `tokens`. Columns that are padding in all rows
    # may be cut off.
    "tokenize": Signature(_TEXTS, dict.fromkeys(_TOKENS, "int32 [batch, max_seq_length]")),
    # Describes how to tokenize for `tokens`.
    "tokenization_info": Signature(
        {},
        {
            "vocab_file": "string []",  # path of the vocabulary
            "do_lower_case": "bool []",  # whether text is lower-cased first
        },
    ),
}
# Names the labels, as in training.
_LABELS = {"labels": Signature({}, {"labels": "string [labels]"})}
# For kinds whose `serving_default` has one output. TensorFlow Serving's REST API omits the name of
# a single output, so a second output would change the form of the answer.
_UNKNOWN = {"unknown_share": Signature(_TEXTS, _UNKNOWN_SHARE)}


def _from_texts_and_examples(
    inputs: dict[str, str], outputs: dict[str, str]
) -> dict[str, Signature]:
    """Returns `serving_default` and the `examples` that answers the same from piece ids.

    An example is a serialized tf.Example of the inputs of `tokens`, each int64 [seq_len], or
    [choices * seq_len], the options one after the other.
    """
    return {
        "serving_default": Signature(inputs, outputs),
        "examples": Signature({"examples": "string [batch]"}, {**outputs, **_ERROR}),
    }


PRETRAINING = {
    # Reads a text, or two: how likely is the second to follow the first?
    **_from_texts_and_examples(
        _TEXTS,
        {
            # Probability that text_pair follows text and not text follows text_pair; 0.5 for a
            # text alone, which has no order (the model never learned one for it).
            "in_order_probability": "float32 [batch]",
            **_EMBEDDED,
            **_UNKNOWN_SHARE,
        },
    ),
    # Fills the first MAX_MASKS [MASK] of a text. A [MASK] past the longest length is cut off
    # unanswered.
    "fill_mask": Signature(
        _TEXT,
        {
            # Likeliest pieces, best first, `▁` where a word begins; "" past a text's own masks.
            "pieces": f"string [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
            # Probabilities of these pieces among all pieces; 0 past a text's own masks.
            "probabilities": f"float32 [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
            "num_masks": "int32 [batch]",  # how many [MASK] of the text are answered
        },
    ),
    # Scores how likely a text is: each piece is predicted from all others of the text but the rest
    # of its word (Kauf and Ivanova 2023). A text of n pieces costs as much as n sequences of n + 2
    # pieces; a request has MAX_SCORED_POSITIONS at most.
    "score": Signature(
        _TEXT,
        {
            "log_likelihood": "float32 [batch]",  # sum of the pieces' log probabilities, in nats
            "num_pieces": "int32 [batch]",  # pieces that are scored
            "num_words": "int32 [batch]",  # words of the text; a punctuation mark is one
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
    # Encodes piece ids and scores every piece, before the softmax, at the given positions: 0 is
    # [CLS], at least one a row.
    "mlm": Signature(
        {**_TOKENS, "mlm_positions": "int32 [batch, predictions]"},
        {**_ENCODED, "mlm_logits": "float32 [batch, predictions, vocab_size]", **_ERROR},
    ),
    # Encodes piece ids and judges the order of the two segments: 0 in order, 1 swapped.
    "sop": Signature(_TOKENS, {**_ENCODED, "sop_log_probs": "float32 [batch, 2]", **_ERROR}),
}

# Embeds a text.
ENCODER = {**_from_texts_and_examples(_TEXT, {**_EMBEDDED, **_UNKNOWN_SHARE}), **COMMON}

# Labels a text, or a pair where the task has pairs.
CLASSIFIER = {
    **_from_texts_and_examples(
        _TEXTS,
        {
            "label": "string [batch]",  # the likeliest
            "probabilities": "float32 [batch, labels]",  # in the order of `labels`
            **_UNKNOWN_SHARE,
        },
    ),
    **_LABELS,
    **COMMON,
}

# Gives a text, or a pair where the task has pairs, a number in the unit of the training labels.
REGRESSOR = {
    **_from_texts_and_examples(_TEXTS, {"value": "float32 [batch]"}),
    **_UNKNOWN,
    **COMMON,
}

# Returns the probability of each label for a text, or a pair where the task has pairs. Fine-tuning
# counts 0.5 as yes.
MULTILABEL = {
    **_from_texts_and_examples(_TEXTS, {"probabilities": "float32 [batch, labels]"}),
    **_UNKNOWN,
    **_LABELS,
    **COMMON,
}

TOKEN_CLASSIFIER = {
    # Finds the entities in a text, read in overlapping windows. If the model's labels mark no
    # entities (parts of speech), every word is a span.
    "serving_default": Signature(
        _TEXT,
        {
            # JSON, a list of the spans in order. Each is an object of `start`, its first
            # character, `end`, the character after its last, both counted in Unicode
            # characters; `label`, its type; `text`, its part of the text; `probability`, the
            # mean of its words' labels.
            "spans": "string [batch]",
            "num_spans": "int32 [batch]",
            **_UNKNOWN_SHARE,
        },
    ),
    # Labels given words. "" is no word: its label is "".
    "words": Signature(
        {"words": "string [batch, words]"},
        {
            "labels": "string [batch, words]",  # the likeliest label of each
            "probabilities": "float32 [batch, words]",  # of that label
            **_UNKNOWN_SHARE,
        },
    ),
    **_LABELS,
    **COMMON,
}

QUESTION_ANSWERING = {
    # Finds the answer to a question in a text, read in overlapping windows. Too long a question
    # loses pieces at its end.
    "serving_default": Signature(
        {"question": "string [batch]", "context": "string [batch]"},
        {
            # A part of the context as it is written; "" if the task has questions without an
            # answer and no_answer_score is above its threshold, or the context is blank.
            "answer": "string [batch]",
            # Score of the best answer, even if `answer` is ""; higher is better. If there is no
            # answer, NO_ANSWER_SCORE.
            "score": "float32 [batch]",
            "no_answer_score": "float32 [batch]",  # higher: no answer is more likely
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
}

MULTIPLE_CHOICE = {
    # Chooses among the answers to a question about a text. Too long an answer loses pieces at its
    # beginning, then the text at its end.
    **_from_texts_and_examples(
        {
            "context": "string [batch]",
            # An option follows it (RACE: it replaces each `_` in it, if any).
            "question": "string [batch]",
            "options": "string [batch, choices]",
        },
        {
            "choice": "int32 [batch]",  # the likeliest option, from 0
            "probabilities": "float32 [batch, choices]",
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
}


def of_task(table: dict[str, Signature], task: dict) -> dict[str, Signature]:
    """Returns a kind's signatures for one task, the content of task.json: no pairs if it has none.

    For a model without a task, `task` is {}.
    """
    if task.get("has_pairs", True):
        return table
    of_text: dict[str, Signature] = {
        name: Signature(_TEXT, table[name].outputs)
        for name in ("serving_default", "unknown_share")
        if name in table
    }
    return {**table, **of_text}
