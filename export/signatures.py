"""Defines the signatures of exported models, with names, dtypes and shapes.

A dimension is a number or a name: `hidden_size`, `vocab_size`, `labels`, `choices` and
`max_seq_length` are fixed by the model, `batch`, `seq_len`, `predictions` and `words` by the
request. The shape of an output may depend on the shapes of the inputs, but not on their values,
because TF Serving merges and splits requests along the rows.

Source: `tokens`, `mlm`, `sop` and `tokenization_info` come from the reference's TF-Hub modules. The
others are our own.
Deviation: `mlm_logits` is `[batch, predictions, vocab_size]`; the reference flattens the first two.
"""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.text.settings import TextSettings

NUM_CANDIDATES = 5  # pieces that `fill_mask` returns for each [MASK]
MAX_MASKS = 20  # per text in `fill_mask`
MAX_SCORED_POSITIONS = 2**21  # in a request of `score`, which encodes one sequence per piece


class Field(str):
    """The dtype and shape of an input or output, such as "float32 [batch, 2]"."""

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the tensor."""
        return tf.as_dtype(self.partition(" ")[0])

    @property
    def shape(self) -> tuple[str | int, ...]:
        """The dimensions, which are names or numbers."""
        dimensions = self.partition(" ")[2].strip("[]").split(", ")
        return tuple(int(d) if d.isdigit() else d for d in dimensions if d)


class Signature:
    """The named inputs and outputs of a signature."""

    def __init__(self, inputs: Mapping[str, str], outputs: Mapping[str, str]):
        self.inputs = {name: Field(form) for name, form in inputs.items()}
        self.outputs = {name: Field(form) for name, form in outputs.items()}

    def input_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs as TensorSpecs. Named dimensions are None."""
        return {
            name: tf.TensorSpec([d if isinstance(d, int) else None for d in f.shape], f.dtype, name)
            for name, f in self.inputs.items()
        }


# Texts may be empty. Invalid UTF-8 is replaced by U+FFFD. Long texts are truncated at the end, in a
# pair the longer one first. checks.py limits the characters.
_TEXT = {"text": "string [batch]"}
# An empty or blank `text_pair` means a single text, unless the model was fine-tuned on pairs.
_TEXTS = {"text": "string [batch]", "text_pair": "string [batch]"}
_TOKENS = {
    "input_ids": "int32 [batch, seq_len]",  # piece ids: [CLS] A [SEP] B [SEP], padded
    "input_mask": "int32 [batch, seq_len]",  # 1 = real, 0 = padding
    "segment_ids": "int32 [batch, seq_len]",  # 0 up to the first [SEP], then 1
}
_POOLED = {"pooled_output": "float32 [batch, hidden_size]"}  # output of the pooler for [CLS]
# The last block's output at all positions, and its mean over positions that are not padding.
_ENCODED = {"sequence_output": "float32 [batch, seq_len, hidden_size]", **_POOLED}
_EMBEDDED = {**_POOLED, "mean_pooled_output": "float32 [batch, hidden_size]"}
# Share of <unk> in the truncated texts of a row, see ServingModule.share_of_unknown. It is 1 for
# empty texts. If it is close to 1, the other outputs hardly depend on the texts.
_UNKNOWN_SHARE = {"unknown_share": "float32 [batch]"}
# What is out of range in a row of piece ids, or "". Other outputs of an invalid row are NaN.
_ERROR = {"error": "string [batch]"}

# Signatures of all kinds.
COMMON = {
    # Encodes piece ids.
    "tokens": Signature(_TOKENS, {**_ENCODED, **_ERROR}),
    # Encodes piece ids into one vector per row, which is cheaper than `tokens`.
    "pooled": Signature(_TOKENS, {**_POOLED, **_ERROR}),
    # Tokenizes texts or pairs for `tokens`. Clients may remove columns that contain only padding.
    "tokenize": Signature(_TEXTS, dict.fromkeys(_TOKENS, "int32 [batch, max_seq_length]")),
    # Returns the vocabulary's path and TextSettings, for clients that tokenize texts themselves.
    "tokenization_info": Signature(
        {}, {"vocab_file": "string []", **dict.fromkeys(TextSettings._fields, "bool []")}
    ),
}
_LABELS = {"labels": Signature({}, {"labels": "string [labels]"})}  # names, as in training
# For kinds whose `serving_default` has a single output, whose name TF Serving's REST API omits. A
# second one would change the format of the response.
_UNKNOWN = {"unknown_share": Signature(_TEXTS, _UNKNOWN_SHARE)}


PRETRAINING = {
    # Embeds a text or pair, and predicts whether the second text follows the first.
    "serving_default": Signature(
        _TEXTS,
        {
            # Probability that text_pair follows text, rather than the reverse; 0.5 for one text.
            "in_order_probability": "float32 [batch]",
            **_EMBEDDED,
            **_UNKNOWN_SHARE,
        },
    ),
    # Predicts the first MAX_MASKS [MASK] of a text, except those beyond max_seq_length.
    "fill_mask": Signature(
        _TEXT,
        {
            # The most probable pieces, best first. `▁` marks the start of a word. Unused: "".
            "pieces": f"string [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
            # Probabilities of these pieces. Unused: 0.
            "probabilities": f"float32 [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
            "num_masks": "int32 [batch]",  # number of [MASK] with predictions
        },
    ),
    # Computes the pseudo-log-likelihood of a text: each piece is predicted from all other pieces
    # except the rest of its word (Kauf and Ivanova 2023), in a sequence of its own.
    "score": Signature(
        _TEXT,
        {
            "log_likelihood": "float32 [batch]",  # sum of the pieces' log probabilities, in nats
            "num_pieces": "int32 [batch]",  # number of scored pieces
            "num_words": "int32 [batch]",  # number of words; each punctuation mark is a word
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
    # Encodes piece ids and computes masked-LM logits at the given positions. Position 0 is [CLS].
    "mlm": Signature(
        {**_TOKENS, "mlm_positions": "int32 [batch, predictions]"},
        {**_ENCODED, "mlm_logits": "float32 [batch, predictions, vocab_size]", **_ERROR},
    ),
    # Encodes piece ids and predicts the order of two segments. Class 0 is in order, 1 is swapped.
    "sop": Signature(_TOKENS, {**_ENCODED, "sop_log_probs": "float32 [batch, 2]", **_ERROR}),
}

# Embeds texts with an encoder that was not trained to compare them.
ENCODER = {"serving_default": Signature(_TEXT, {**_EMBEDDED, **_UNKNOWN_SHARE}), **COMMON}

# Embeds texts. Vectors have length 1, so a dot product is a cosine.
EMBEDDER = ENCODER | {
    "serving_default": Signature(_TEXT, {"embedding": "float32 [batch, hidden_size]"}),
    **_UNKNOWN,
}

# Predicts the label of a text, or a pair if the task has pairs.
CLASSIFIER = {
    "serving_default": Signature(
        _TEXTS,
        {
            "label": "string [batch]",  # the most probable label
            "probabilities": "float32 [batch, labels]",  # in the order of `labels`
            **_UNKNOWN_SHARE,
        },
    ),
    **_LABELS,
    **COMMON,
}

# Predicts a number for a text, or a pair if the task has pairs, in the unit of the training labels.
REGRESSOR = {
    "serving_default": Signature(_TEXTS, {"value": "float32 [batch]"}),
    **_UNKNOWN,
    **COMMON,
}

# Predicts the probability of each label for a text, or a pair if the task has pairs. If task.json
# contains `label_thresholds`, the outputs in _PREDICTED are added.
MULTILABEL = {
    "serving_default": Signature(_TEXTS, {"probabilities": "float32 [batch, labels]"}),
    **_UNKNOWN,
    **_LABELS,
    **COMMON,
}

_PREDICTED = {"predicted": "int32 [batch, labels]"}  # 1 if probability >= threshold

TOKEN_CLASSIFIER = {
    # Finds the entities in a text, which is split into overlapping windows. If the labels are not
    # entity tags but, for example, parts of speech, each word is a span.
    "serving_default": Signature(
        _TEXT,
        {
            # JSON list of objects: `start` and `end` (offsets in Unicode characters; `end` is
            # exclusive), `label` (the type), `text`, and `probability` (mean over its words).
            "spans": "string [batch]",
            "num_spans": "int32 [batch]",
            **_UNKNOWN_SHARE,
        },
    ),
    # Predicts the labels of given words. "" is treated as padding and gets the label "".
    "words": Signature(
        {"words": "string [batch, words]"},
        {
            "labels": "string [batch, words]",  # the most probable label of each word
            "probabilities": "float32 [batch, words]",  # the probability of this label
            **_UNKNOWN_SHARE,
        },
    ),
    **_LABELS,
    **COMMON,
}

QUESTION_ANSWERING = {
    # Finds the answer to a question in a text, which is split into overlapping windows. Long
    # questions are truncated at the end.
    "serving_default": Signature(
        {"question": "string [batch]", "context": "string [batch]"},
        {
            # A substring of the context. It is "" if the context is blank, or if the task has
            # unanswerable questions and no_answer_score is above the threshold.
            "answer": "string [batch]",
            # Score of the best span, even if `answer` is ""; -2,000,000 without a valid span.
            "score": "float32 [batch]",
            "no_answer_score": "float32 [batch]",  # higher: less likely to be answerable
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
}

MULTIPLE_CHOICE = {
    # Selects the best answer to a question about a text. Long answers are truncated at the start,
    # then the text is truncated at the end.
    "serving_default": Signature(
        {
            "context": "string [batch]",
            # Options are appended to the question. For RACE, they replace `_` in it, if any.
            "question": "string [batch]",
            "options": "string [batch, choices]",
        },
        {
            "choice": "int32 [batch]",  # index of the most probable option, from 0
            "probabilities": "float32 [batch, choices]",
            **_UNKNOWN_SHARE,
        },
    ),
    **COMMON,
}


def of_task(table: dict[str, Signature], task: dict, type_vocab_size: int) -> dict[str, Signature]:
    """Adapts the signatures of a kind to a task. `text_pair` is removed if the task has no pairs.

    `task` is the content of task.json, or {} for models without a task. Such a model has no pairs
    if its config has a `type_vocab_size` of 1.
    """
    table = dict(table)
    if "label_thresholds" in task:
        of_texts = table["serving_default"]
        table["serving_default"] = Signature(of_texts.inputs, {**of_texts.outputs, **_PREDICTED})
    if not task.get("has_pairs", type_vocab_size > 1):
        for name in ("serving_default", "unknown_share"):
            if name in table and "text_pair" in table[name].inputs:
                table[name] = Signature(_TEXT, table[name].outputs)
    return table
