"""ALBERT models with heads for pre-training and for fine-tuning tasks."""

import numpy as np
import tensorflow as tf

from albert_tf.answering.sentences import POOLINGS, pooled, unit_length
from albert_tf.config import AlbertConfig
from albert_tf.encoder import (
    PACKAGE_OF_KERAS_2,
    AlbertEncoder,
    RefusesKerasMask,
    as_dict,
    cls_only_positions,
    complete_inputs,
    refuse_keras_3,
)
from albert_tf.heads import (
    ClassificationHead,
    MaskedLMHead,
    SentenceOrderHead,
    SpanBeamHead,
    SpanHead,
)
from albert_tf.layers.primitives import (
    PACKAGE,
    FromConfig,
    build_parts,
    resolve_dropout_seed,
    seeds,
)
from albert_tf.storage.errors import UserError


class _AlbertModel(RefusesKerasMask, FromConfig, tf.keras.Model):
    """Base class of all models. Contains the encoder and creates all variables."""

    further_arguments: tuple[str, ...] = ("recompute",)
    trained_length: int | None = None  # in pieces; set by from_pretrained

    def __init__(
        self, config: AlbertConfig, recompute: bool = False, name: str = "albert", **kwargs
    ):
        super().__init__(config, name=name, **kwargs)
        self.recompute = recompute
        self.encoder = AlbertEncoder(config, recompute, dtype=self.dtype_policy)

    def create_variables(self) -> None:
        """Creates all variables, as the first call would do."""
        self.build([None, None])

    def build(self, input_shape):
        """Creates all variables. Their shapes depend only on the config."""
        parts = [part for part in self.layers if isinstance(part, FromConfig)]
        # The final "/" makes the scope absolute, because this scope is already open during a call.
        with tf.name_scope(f"{self.name}/"):
            build_parts(self.config.hidden_size, *parts)  # subclasses may add layers
        tf.keras.layers.Layer.build(self, input_shape)

    def compile(self, *args, **kwargs):
        """Same as tf.keras.Model.compile.

        Raises a UserError for an object of Keras 3, or a crossentropy of probabilities.
        """
        refuse_keras_3(args, kwargs)
        _refuse_probabilities(args, kwargs)
        super().compile(*args, **kwargs)

    def compile_from_config(self, config):
        """Compiles a model that was loaded. Keras would not, because `compile` is overridden.

        The state of an optimizer of tf.keras.optimizers.legacy is not restored.
        """
        if type(self).compile is not _AlbertModel.compile:
            super().compile_from_config(config)
            return
        self.compile(**tf.keras.saving.deserialize_keras_object(config))
        is_legacy = not isinstance(self.optimizer, tf.keras.optimizers.Optimizer)
        if self.built and not is_legacy:
            self.optimizer.build(self.trainable_variables)  # Keras loads its state next

    def fit(self, *args, **kwargs):
        """Same as tf.keras.Model.fit. Raises a UserError for an object of Keras 3."""
        refuse_keras_3(args, kwargs)
        return super().fit(*args, **kwargs)


def _refuse_probabilities(*values) -> None:
    """Raises a UserError for a crossentropy that reads the logits of a model as probabilities."""
    for value in tf.nest.flatten(values):
        # Only those of Keras: a user's own function or metric may expect logits.
        is_keras = str(getattr(value, "__module__", "")).startswith(f"{PACKAGE_OF_KERAS_2}.")
        name = value if isinstance(value, str) else getattr(value, "__name__", "") * is_keras
        is_metric = is_keras and isinstance(value, tf.keras.metrics.Metric)
        is_object = is_metric or isinstance(value, tf.keras.losses.Loss)
        settings = value.get_config() if is_object else {}
        if name.lower().endswith("crossentropy") or settings.get("from_logits") is False:
            name = name or type(value).__name__
            raise UserError(
                f"{name} expects probabilities, but the model returns logits: use an object with "
                "from_logits, such as tf.keras.losses.SparseCategoricalCrossentropy(from_logits="
                "True)"
            )


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForPreTraining(_AlbertModel):
    """ALBERT with a masked-LM head and a sentence-order head.

    Args:
      config: the model's hyperparameters.
      recompute: see AlbertEncoder.

    Source: Lan et al. 2020, section 3.1; the reference's run_pretraining.
    """

    def __init__(self, config: AlbertConfig, recompute: bool = False, **kwargs):
        super().__init__(config, recompute, **kwargs)
        self.masked_lm = MaskedLMHead(config, dtype=self.dtype_policy)
        self.sentence_order = SentenceOrderHead(config, dtype=self.dtype_policy)

    def mark_missing(self, names: str) -> None:
        """Marks a masked LM among the variables that the files lack. SentenceScorer rejects it."""
        self.masked_lm.is_drawn_afresh = "masked_lm/" in names

    def call(self, inputs, dropout_seed=None, at_separator=False, training=None, unpad=False):
        """Computes masked-LM logits and sentence-order logits.

        Args:
          inputs: dict of int32 [b, L] `input_word_ids`, `input_mask` (1 = real), `input_type_ids`
            and int32 [b, P] `masked_lm_positions`. Without positions, P = L.
          dropout_seed: see AlbertEncoder.call.
          training: see AlbertEncoder.call.
          unpad: see AlbertEncoder.call.
          at_separator: If True, also predicts the order at the [SEP] between the segments, with the
            same pooler and head, for pretraining_loss. Requires `masked_lm_positions`.

        Returns:
          dict of float32 logits: `masked_lm_logits` [b, P, V] and `sentence_order_logits` [b, 2].
          With `at_separator` also `separator_order_logits` [b, 2].
        """
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        inputs = complete_inputs(inputs)
        positions = inputs.get("masked_lm_positions")
        if at_separator:
            # The real positions of type 0 are `[CLS] A [SEP]`, and the last of them is this [SEP].
            in_first = inputs["input_mask"] - inputs["input_type_ids"]
            separator = tf.reduce_sum(in_first, axis=1, keepdims=True) - 1
            positions = tf.concat([separator, positions], axis=1)
        encoded = self.encoder(inputs, dropout_seed, positions, unpad=unpad)
        masked_output = encoded["sequence_output"]
        outputs = {"sentence_order_logits": self.sentence_order(encoded["pooled_output"])}
        if at_separator:
            pooled = self.encoder.pooler(masked_output[:, 0])
            outputs["separator_order_logits"] = self.sentence_order(pooled)
            masked_output = masked_output[:, 1:]
        table = self.encoder.embeddings.word_embeddings
        outputs["masked_lm_logits"] = self.masked_lm(masked_output, table)
        return outputs


class _AlbertClassifier(_AlbertModel):
    """Base class of classifiers: an encoder with a ClassificationHead."""

    further_arguments = ("recompute", "num_labels")

    def __init__(self, config: AlbertConfig, num_labels: int, recompute: bool = False, **kwargs):
        if not isinstance(num_labels, (int, np.integer)) or num_labels < 1:
            raise UserError(f"num_labels={num_labels}: expected a whole number, 1 or more")
        super().__init__(config, recompute, **kwargs)
        self.num_labels = num_labels
        self.classifier = ClassificationHead(config, num_labels, dtype=self.dtype_policy)

    def _logits(self, inputs, dropout_seed, training, of_pieces: bool = False):
        """Returns logits, float32 [b, num_labels]; if `of_pieces`, [b, L, num_labels]."""
        inputs = complete_inputs(inputs)
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        encoder_seed, head_seed = seeds(dropout_seed, 2)
        positions = None if of_pieces else cls_only_positions(inputs["input_word_ids"])
        encoded = self.encoder(inputs, encoder_seed, positions=positions)
        output = encoded["sequence_output" if of_pieces else "pooled_output"]
        return self.classifier(output, head_seed)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForSequenceClassification(_AlbertClassifier):
    """ALBERT with a head for classification or regression of texts or pairs of texts.

    Args:
      config: the model's hyperparameters.
      num_labels: number of labels; 1 for regression.
      recompute: see AlbertEncoder.
    """

    def call(self, inputs, dropout_seed=None, training=None):
        """Returns {"logits": float32 [b, num_labels]}. For the arguments see AlbertEncoder.call."""
        return {"logits": self._logits(inputs, dropout_seed, training)}


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForTokenClassification(_AlbertClassifier):
    """ALBERT with a head that classifies each piece of a text.

    For the arguments see AlbertForSequenceClassification. Source: Devlin et al. 2019, section 5.3.
    """

    def call(self, inputs, dropout_seed=None, training=None):
        """Returns {"logits": float32 [b, L, num_labels]}; see AlbertForSequenceClassification."""
        return {"logits": self._logits(inputs, dropout_seed, training, of_pieces=True)}


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForMultipleChoice(_AlbertClassifier):
    """ALBERT with a multiple-choice head, which computes one logit per choice.

    `num_choices` is the number of choices per example. Other arguments: see AlbertForPreTraining.
    Source: the reference's race_utils.create_model.
    """

    further_arguments = ("recompute", "num_choices")

    def __init__(self, config: AlbertConfig, num_choices: int, recompute: bool = False, **kwargs):
        super().__init__(config, 1, recompute, **kwargs)
        self.num_choices = num_choices

    def call(self, inputs, dropout_seed=None, training=None):
        """Returns {"logits": float32 [b, num_choices]}.

        Inputs are int32 [b, num_choices, L], or [b * num_choices, L] with the choices of an example
        in consecutive rows. Keras' `fit` on arrays requires rank 3. For the other arguments see
        AlbertForSequenceClassification.call.
        """
        inputs = as_dict(inputs)
        for name, value in inputs.items():
            if value.shape.rank == 3 and value.shape[1] not in (None, self.num_choices):
                raise UserError(
                    f"{name} has {value.shape[1]} choices per example, but the model has "
                    f"{self.num_choices}"
                )
        logits = self._logits(_one_below_another(inputs), dropout_seed, training)
        return {"logits": tf.reshape(logits, [-1, self.num_choices])}


def _one_below_another(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Reshapes inputs of rank 3, [b, n, L], to [b * n, L]."""
    return {
        name: tf.reshape(value, [-1, value.shape[2] or tf.shape(value)[2]])
        if value.shape.rank == 3
        else value
        for name, value in inputs.items()
    }


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForEmbedding(_AlbertModel):
    """ALBERT that maps each text to a vector of length 1. It adds no layer to the encoder.

    Args:
      pooling: "mean" for the mean of the last block's output over all pieces, including [CLS] and
        [SEP]; "cls" for the last block's output at [CLS]. For the others see AlbertEncoder.

    Source: Reimers and Gurevych 2019, section 3.
    """

    further_arguments = ("recompute", "pooling")

    def __init__(
        self, config: AlbertConfig, pooling: str = "mean", recompute: bool = False, **kwargs
    ):
        if pooling not in POOLINGS:
            raise UserError(f"pooling {pooling!r}: expected one of {', '.join(POOLINGS)}")
        super().__init__(config, recompute, **kwargs)
        self.pooling = pooling

    def call(self, inputs, dropout_seed=None, training=None):
        """Returns `embedding`, float32 [b, H]; [b, n, H] for inputs [b, n, L], n texts an example.

        The latter are computed without padding (`unpad` of AlbertEncoder.call, also for the other
        arguments): an example's texts, such as a question and a paragraph, differ in length.
        """
        inputs = as_dict(inputs)
        flat = complete_inputs(_one_below_another(inputs))
        ids = inputs["input_word_ids"]
        several, dropout_seed = ids.shape.rank == 3, resolve_dropout_seed(training, dropout_seed)
        # The last block computes [CLS] only, if no other position is pooled.
        positions = tf.zeros_like(flat["input_word_ids"][:, :1]) if self.pooling == "cls" else None
        output = self.encoder(flat, dropout_seed, positions, unpad=several)["sequence_output"]
        vectors = pooled(output, flat["input_mask"], self.pooling)
        if several:
            vectors = tf.reshape(vectors, [-1, ids.shape[1] or tf.shape(ids)[1], vectors.shape[1]])
        return unit_length(vectors)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForQuestionAnswering(_AlbertModel):
    """ALBERT with a head that computes start and end logits of the answer, as in BERT.

    For the arguments see AlbertForPreTraining.
    """

    def __init__(self, config: AlbertConfig, recompute: bool = False, **kwargs):
        super().__init__(config, recompute, **kwargs)
        self.span = SpanHead(config, dtype=self.dtype_policy)

    def call(self, inputs, dropout_seed=None, training=None):
        """Returns a dict with `start_logits` and `end_logits`, float32 [b, L]. See SpanHead."""
        inputs = complete_inputs(inputs)
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        encoded = self.encoder(inputs, dropout_seed)
        start_logits, end_logits = self.span(encoded["sequence_output"], inputs["input_mask"])
        return {"start_logits": start_logits, "end_logits": end_logits}


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertForAnswerableQuestionAnswering(_AlbertModel):
    """ALBERT for questions that may have no answer, with beam search for answer spans.

    For the arguments see AlbertForPreTraining. Source: the reference's model for SQuAD 2.0.
    """

    def __init__(self, config: AlbertConfig, recompute: bool = False, **kwargs):
        super().__init__(config, recompute, **kwargs)
        self.span_beam = SpanBeamHead(config, dtype=self.dtype_policy)

    def call(self, inputs, dropout_seed=None, training=None):
        """Returns the outputs of SpanBeamHead.

        `input_type_ids` (1 = text) is required; in training also `start_positions`, int32 [b].
        For the other arguments see AlbertForSequenceClassification.call.
        """
        given, inputs = as_dict(inputs), complete_inputs(inputs)
        if "input_type_ids" not in given:
            raise UserError("inputs lack input_type_ids, which are 1 at the text's pieces")
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        encoder_seed, head_seed = seeds(dropout_seed, 2)
        encoded = self.encoder(inputs, encoder_seed)
        return self.span_beam(
            encoded["sequence_output"],
            _may_answer(inputs),
            # Evaluation batches may have labels, which must not change the predictions.
            inputs.get("start_positions") if dropout_seed is not None else None,
            head_seed,
        )


def _may_answer(inputs) -> tf.Tensor:
    """Returns bool [b, L], True at the text's pieces except [SEP], and at [CLS] (no answer)."""
    positions = tf.range(tf.shape(inputs["input_mask"])[1])
    lengths = tf.reduce_sum(inputs["input_mask"], axis=1, keepdims=True)
    is_text = (inputs["input_type_ids"] == 1) & (positions < lengths - 1)
    return is_text | (positions == 0)
