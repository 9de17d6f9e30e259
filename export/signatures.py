"""The signatures of exported models: their names, shapes and meanings, defined only here.

A dimension is a number, the name of a config field (`hidden_size`, `vocab_size`), a number of the
task (`labels`, `choices`), or the export's `max_seq_length`. The request determines `batch`,
`seq_len`, `predictions` and `words`. The size of an output may depend on the sizes of inputs, but
never on their values, because TF Serving joins and splits requests by rows.

`python -m export.signature_table` prints the table of export/README.md.

Source: `tokens`, `mlm`, `sop` and `tokenization_info` come from the reference's TF-Hub modules, the
inputs of `examples` from the reference's exported classifiers. The others are our own.
Deviation: `mlm_logits` is `[batch, predictions, vocab_size]`; the reference flattens the first two.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

NUM_CANDIDATES = 5
# Maximum number of [MASK] per text that `fill_mask` fills.
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
        """Returns the inputs as TensorSpecs; the size of a named dimension is unknown (None)."""
        return {
            name: tf.TensorSpec([d if isinstance(d, int) else None for d in f.shape], f.dtype, name)
            for name, f in self.inputs.items()
        }


# Texts are UTF-8; invalid bytes become U+FFFD; a text may be empty. A text that is too long loses
# pieces at its end, a pair at the end of its longer text. checks.py limits the characters.
_TEXT = {"text": "string [batch]"}
# An empty or blank `text_pair` means a single text. For a model fine-tuned on pairs it means a pair
# with an empty second text.
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
# Share of unknown pieces (<unk>) among the pieces of a row's texts after truncation. A piece counts
# once for every window and choice that contains it. The share is 1 for empty texts. If it is near
# 1, the other outputs do not depend on the texts.
_UNKNOWN_SHARE = {"unknown_share": "float32 [batch]"}
# For signatures that take piece ids: the error of a bad row (a value out of range, or no
# tf.Example), "" for a good row. The other outputs of a bad row are NaN, -1 or "".
_ERROR = {"error": "string [batch]"}

# The signatures of every kind.
COMMON = {
    # Encodes piece ids.
    "tokens": Signature(_TOKENS, {**_ENCODED, **_ERROR}),
    # Encodes piece ids into one vector per row; cheaper than `tokens` in the last block.
    "pooled": Signature(_TOKENS, {**_POOLED, **_ERROR}),
    # Tokenizes a text or a pair for `tokens`. Clients may drop columns that are only padding.
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
    """Returns `serving_default`, and `examples` with the same outputs computed from piece ids.

    An example is a serialized tf.Example with the inputs of `tokens`, each int64 [seq_len]. For
    multiple choice each is [choices * seq_len]: one option after the other.
    """
    return {
        "serving_default": Signature(inputs, outputs),
        "examples": Signature({"examples": "string [batch]"}, {**outputs, **_ERROR}),
    }


PRETRAINING = {
    # Embeds a text or a pair, and predicts whether the second text follows the first.
    **_from_texts_and_examples(
        _TEXTS,
        {
            # Probability that text_pair follows text, and not the reverse. It is 0.5 for a single
            # text, for which the model never learned an order.
            "in_order_probability": "float32 [batch]",
            **_EMBEDDED,
            **_UNKNOWN_SHARE,
        },
    ),
    # Fills the first MAX_MASKS [MASK] of a text. A [MASK] beyond max_seq_length gets no answer.
    "fill_mask": Signature(
        _TEXT,
        {
            # Likeliest pieces, best first; `▁` begins a word. Rows after a text's masks are "".
            "pieces": f"string [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
            # Probabilities of these pieces among all pieces. Rows after a text's masks are 0.
            "probabilities": f"float32 [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
            "num_masks": "int32 [batch]",  # how many [MASK] of the text are answered
        },
    ),
    # Scores how likely a text is: each piece is predicted from all other pieces except the rest of
    # its word (Kauf and Ivanova 2023). A text of n pieces costs as much as n sequences of n + 2
    # pieces. A request may have MAX_SCORED_POSITIONS positions in all such sequences.
    "score": Signature(
        _TEXT,
        {
            "log_likelihood": "float32 [batch]",  # sum of the pieces' log probabilities, in nats
            "num_pieces": "int32 [batch]",  # scored pieces
            "num_words": "int32 [batch]",  # words of the text; a punctuation mark is a word
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
    # Encodes piece ids, and computes masked-LM logits at the given positions. Position 0 is [CLS];
    # each row needs at least one position.
    "mlm": Signature(
        {**_TOKENS, "mlm_positions": "int32 [batch, predictions]"},
        {**_ENCODED, "mlm_logits": "float32 [batch, predictions, vocab_size]", **_ERROR},
    ),
    # Encodes piece ids and predicts the order of the two segments: 0 in order, 1 swapped.
    "sop": Signature(_TOKENS, {**_ENCODED, "sop_log_probs": "float32 [batch, 2]", **_ERROR}),
}

# Embeds a text.
ENCODER = {**_from_texts_and_examples(_TEXT, {**_EMBEDDED, **_UNKNOWN_SHARE}), **COMMON}

# Predicts the label of a text, or of a pair if the task has pairs.
CLASSIFIER = {
    **_from_texts_and_examples(
        _TEXTS,
        {
            "label": "string [batch]",  # the likeliest label
            "probabilities": "float32 [batch, labels]",  # in the order of `labels`
            **_UNKNOWN_SHARE,
        },
    ),
    **_LABELS,
    **COMMON,
}

# Predicts a number for a text, or for a pair if the task has pairs, in the training labels' unit.
REGRESSOR = {
    **_from_texts_and_examples(_TEXTS, {"value": "float32 [batch]"}),
    **_UNKNOWN,
    **COMMON,
}

# Predicts each label's probability for a text, or for a pair if the task has pairs. Fine-tuning
# treats a label with a probability of 0.5 or more as predicted. If task.json has
# `label_thresholds`, there is also _PREDICTED.
MULTILABEL = {
    **_from_texts_and_examples(_TEXTS, {"probabilities": "float32 [batch, labels]"}),
    **_UNKNOWN,
    **_LABELS,
    **COMMON,
}

_PREDICTED = {"predicted": "int32 [batch, labels]"}  # 1: the probability reaches its threshold

TOKEN_CLASSIFIER = {
    # Finds the entities in a text, read in overlapping windows. If the model's labels are not for
    # entities but, say, parts of speech, every word is a span.
    "serving_default": Signature(
        _TEXT,
        {
            # JSON list of the spans in order. A span is an object: `start`, index of its first
            # character; `end`, index after its last character (both count Unicode characters);
            # `label`, its type; `text`, its characters; `probability`, a mean over its words.
            "spans": "string [batch]",
            "num_spans": "int32 [batch]",
            **_UNKNOWN_SHARE,
        },
    ),
    # Predicts the labels of given words. "" is not a word: its label is "".
    "words": Signature(
        {"words": "string [batch, words]"},
        {
            "labels": "string [batch, words]",  # the likeliest label of each word
            "probabilities": "float32 [batch, words]",  # the probability of this label
            **_UNKNOWN_SHARE,
        },
    ),
    **_LABELS,
    **COMMON,
}

QUESTION_ANSWERING = {
    # Finds the answer to a question in a text, read in overlapping windows. A question that is too
    # long loses pieces at its end.
    "serving_default": Signature(
        {"question": "string [batch]", "context": "string [batch]"},
        {
            # A part of the context as it is written; "" if the task has questions without an
            # answer and no_answer_score is above its threshold, or the context is blank.
            "answer": "string [batch]",
            # Score of the best span, even if `answer` is ""; higher is better. Without any valid
            # span, NO_ANSWER_SCORE.
            "score": "float32 [batch]",
            "no_answer_score": "float32 [batch]",  # the higher, the likelier that no answer exists
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
}

MULTIPLE_CHOICE = {
    # Chooses among the answers to a question about a text. An answer that is too long loses pieces
    # at its beginning; then the text loses pieces at its end.
    **_from_texts_and_examples(
        {
            "context": "string [batch]",
            # Each option is appended to the question (RACE: or replaces each `_` in it, if any).
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
    """Returns a kind's signatures for a task; without `text_pair` if the task has no pairs.

    `task` is the content of task.json, or {} for a model without a task.
    """
    if "label_thresholds" in task:
        table = {
            name: Signature(of.inputs, {**of.outputs, **_PREDICTED})
            if "probabilities" in of.outputs
            else of
            for name, of in table.items()
        }
    if task.get("has_pairs", True):
        return table
    of_text: dict[str, Signature] = {
        name: Signature(_TEXT, table[name].outputs)
        for name in ("serving_default", "unknown_share")
        if name in table
    }
    return {**table, **of_text}
