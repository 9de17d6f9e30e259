"""Defines the signatures of exported models, with names, dtypes and shapes.

A dimension is a number or a name: `hidden_size`, `vocab_size`, `labels`, `choices` and
`max_seq_length` are fixed by the model, `batch`, `seq_len`, `predictions` and `words` by the
request. The shape of an output may depend on the shapes of the inputs, but not on their values,
because TF Serving merges and splits requests along the rows. README.md, "Read the answers", has
the meaning of the outputs.

Source: `tokens`, `mlm`, `sop` and `tokenization_info` come from the reference's TF-Hub modules. The
others are our own.
Deviation: `mlm_logits` is `[batch, predictions, vocab_size]`; the reference flattens the first two.
"""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.text.settings import TextSettings

NUM_CANDIDATES = 5  # pieces that `fill_mask` returns for each [MASK]
MAX_MASKS = 20  # per text in `fill_mask`


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
# See ServingModule.share_of_unknown.
_UNKNOWN_SHARE = {"unknown_share": "float32 [batch]"}
# See ServingModule._on_good_rows.
_ERROR = {"error": "string [batch]"}

# Signatures of all kinds.
COMMON = {
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

# Signatures of each kind, besides COMMON.
TABLES: dict[str, dict[str, Signature]] = {
    "pretraining": {
        "serving_default": Signature(
            _TEXTS,
            {
                # Probability that text_pair follows text, not the reverse; 0.5 for one text.
                "in_order_probability": "float32 [batch]",
                **_EMBEDDED,
                **_UNKNOWN_SHARE,
            },
        ),
        # Predicts the first MAX_MASKS [MASK] of a text, except those beyond max_seq_length.
        "fill_mask": Signature(
            _TEXT,
            {
                # Best first, and "" and 0 for unused entries. `▁` marks the start of a word.
                "pieces": f"string [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
                "probabilities": f"float32 [batch, {MAX_MASKS}, {NUM_CANDIDATES}]",
                "num_masks": "int32 [batch]",
            },
        ),
        # Masked-LM logits at the given positions. Position 0 is [CLS].
        "mlm": Signature(
            {**_TOKENS, "mlm_positions": "int32 [batch, predictions]"},
            {**_ENCODED, "mlm_logits": "float32 [batch, predictions, vocab_size]", **_ERROR},
        ),
        # Order of two segments. Class 0 is in order, 1 is swapped.
        "sop": Signature(_TOKENS, {**_ENCODED, "sop_log_probs": "float32 [batch, 2]", **_ERROR}),
    },
    "encoder": {"serving_default": Signature(_TEXT, {**_EMBEDDED, **_UNKNOWN_SHARE})},
    "embedder": {
        "serving_default": Signature(_TEXT, {"embedding": "float32 [batch, hidden_size]"}),
        **_UNKNOWN,
    },
    "classifier": {
        "serving_default": Signature(
            _TEXTS,
            {
                "label": "string [batch]",
                "probabilities": "float32 [batch, labels]",  # in the order of `labels`
                **_UNKNOWN_SHARE,
            },
        ),
        **_LABELS,
    },
    "regressor": {
        "serving_default": Signature(_TEXTS, {"value": "float32 [batch]"}),
        **_UNKNOWN,
    },
    "multilabel": {
        "serving_default": Signature(_TEXTS, {"probabilities": "float32 [batch, labels]"}),
        **_UNKNOWN,
        **_LABELS,
    },
    "token_classifier": {
        # In `spans`, `end` is exclusive, and `probability` is the mean over the words.
        "serving_default": Signature(
            _TEXT, {"spans": "string [batch]", "num_spans": "int32 [batch]", **_UNKNOWN_SHARE}
        ),
        # The most probable label of each given word, and its probability.
        "words": Signature(
            {"words": "string [batch, words]"},
            {
                "labels": "string [batch, words]",
                "probabilities": "float32 [batch, words]",
                **_UNKNOWN_SHARE,
            },
        ),
        **_LABELS,
    },
    "question_answering": {
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
    },
    "multiple_choice": {
        # Long answers (question and option) are truncated at the start, then the text at the end.
        "serving_default": Signature(
            {
                "context": "string [batch]",
                "question": "string [batch]",
                "options": "string [batch, choices]",
            },
            {
                "choice": "int32 [batch]",  # index of the most probable option, from 0
                "probabilities": "float32 [batch, choices]",
                **_UNKNOWN_SHARE,
            },
        ),
    },
}


def of_task(kind: str, task: dict, type_vocab_size: int) -> dict[str, Signature]:
    """Returns the signatures of a kind, adapted to a task.

    With `label_thresholds` in `task`, there is an output `predicted`. `text_pair` is removed if the
    task has no pairs. `task` is the content of task.json, or {} for models without a task. Such a
    model has no pairs if its config has a `type_vocab_size` of 1.
    """
    table = {**TABLES[kind], **COMMON}
    if "label_thresholds" in task:
        of_texts = table["serving_default"]
        outputs = {**of_texts.outputs, "predicted": "int32 [batch, labels]"}
        table["serving_default"] = Signature(of_texts.inputs, outputs)
    if not task.get("has_pairs", type_vocab_size > 1):
        for name in ("serving_default", "unknown_share"):
            if name in table and "text_pair" in table[name].inputs:
                table[name] = Signature(_TEXT, table[name].outputs)
    return table
