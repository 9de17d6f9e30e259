"""Output heads of the encoder: masked LM, sentence order, classification and answer spans."""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.primitives import (
    PACKAGE,
    FromConfig,
    LayerNorm,
    activation,
    build_parts,
    dense,
    dropout,
    initializer,
    resolve_dropout_seed,
)

# Logits are float32 under every policy, because bfloat16 would round similar logits to ties.
_LOGITS = "float32"
_NEVER = -1e30  # the logit of a position that cannot be chosen


@tf.keras.saving.register_keras_serializable(PACKAGE)
class MaskedLMHead(FromConfig, tf.keras.layers.Layer):
    """Predicts the pieces at given positions. Uses the word embeddings as the output matrix.

    Source: the reference's run_pretraining.get_masked_lm_output.
    """

    is_drawn_afresh = False  # True if the model's files lack this head, so its weights are random

    def __init__(self, config: AlbertConfig, name: str = "masked_lm", **kwargs):
        super().__init__(config, name=name, **kwargs)
        stddev, act = config.initializer_range, activation(config.hidden_act)
        self.transform = dense(
            config.embedding_size, stddev, "transform", act, dtype=self.dtype_policy
        )
        self.layer_norm = LayerNorm()

    def build(self, input_shape):
        """Creates the output bias, float32 [V], and the variables of the sublayers."""
        # Autocast would round the bias to bfloat16 under mixed precision.
        self.output_bias = self.add_weight(
            "output_bias",
            [self.config.vocab_size],
            tf.float32,
            initializer="zeros",
            experimental_autocast=False,
        )
        build_parts(self.config.hidden_size, self.transform)
        build_parts(self.config.embedding_size, self.layer_norm)
        super().build(input_shape)

    def call(self, masked_output, word_embeddings):
        """Computes logits over the vocabulary at each masked position.

        Args:
          masked_output: [b, P, H], the encoder's output at the masked positions.
          word_embeddings: [V, E], float32 even under mixed precision.

        Returns:
          float32 [b, P, V] logits.
        """
        num_positions = masked_output.shape[1] or tf.shape(masked_output)[1]
        x = tf.reshape(masked_output, [-1, self.config.hidden_size])
        x = self.layer_norm(self.transform(x))
        # float32 even under mixed precision. In bfloat16, 2.7 % of the rows have tied maxima.
        table = tf.cast(word_embeddings, tf.float32)
        logits = tf.matmul(tf.cast(x, tf.float32), table, transpose_b=True)
        logits += tf.cast(self.output_bias, tf.float32)
        return tf.reshape(logits, [-1, num_positions, self.config.vocab_size])


@tf.keras.saving.register_keras_serializable(PACKAGE)
class SentenceOrderHead(FromConfig, tf.keras.layers.Layer):
    """Classifies a pair of segments as in order (0) or swapped (1).

    Source: Lan et al. 2020, section 3.1; the reference's get_sentence_order_output.
    """

    def __init__(self, config: AlbertConfig, name: str = "sentence_order", **kwargs):
        super().__init__(config, name=name, **kwargs)
        self.classifier = dense(2, config.initializer_range, "classifier", dtype=_LOGITS)

    def call(self, pooled_output):
        """Maps [b, H] to float32 [b, 2] logits."""
        return self.classifier(pooled_output)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class ClassificationHead(FromConfig, tf.keras.layers.Layer):
    """Dropout and a dense layer, for classification or regression of texts, pairs or pieces.

    Source: the reference's classifier_utils.create_model, race_utils.create_model.
    """

    further_arguments = ("num_labels",)

    def __init__(self, config: AlbertConfig, num_labels: int, name: str = "classifier", **kwargs):
        super().__init__(config, name=name, **kwargs)
        self.num_labels = num_labels
        self.output_dense = dense(num_labels, config.initializer_range, "output", dtype=_LOGITS)

    def call(self, pooled_output, dropout_seed=None, training=None):
        """Maps [..., H] to float32 [..., num_labels]. Arguments: see AlbertEncoder.call."""
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        x = dropout(pooled_output, self.config.classifier_dropout_prob, dropout_seed)
        return self.output_dense(x)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class SpanHead(FromConfig, tf.keras.layers.Layer):
    """Computes the start and end logits of the answer for every piece.

    Source: Devlin et al. 2019, section 4.2; the reference's squad_utils.create_v1_model.
    Deviation: padding gets logits of -1e30. The reference does not mask padding.
    """

    def __init__(self, config: AlbertConfig, name: str = "span", **kwargs):
        super().__init__(config, name=name, **kwargs)
        self.output_dense = dense(2, config.initializer_range, "output", dtype=_LOGITS)

    def call(self, sequence_output, input_mask):
        """Maps [b, L, H] and an int32 mask [b, L] (1 = real) to start and end logits [b, L]."""
        logits = tf.unstack(self.output_dense(sequence_output), axis=-1)
        return [_masked(of_end, input_mask == 1) for of_end in logits]


@tf.keras.saving.register_keras_serializable(PACKAGE)
class SpanBeamHead(FromConfig, tf.keras.layers.Layer):
    """Computes start logits, end logits for each of the best starts, and a no-answer logit.

    Source: the reference's squad_utils.create_v2_model, which follows XLNet.
    """

    NUM_STARTS = 5
    NUM_ENDS = 5

    def __init__(self, config: AlbertConfig, name: str = "span_beam", **kwargs):
        super().__init__(config, name=name, **kwargs)
        stddev, hidden_size = config.initializer_range, config.hidden_size
        policy = self.dtype_policy
        self.start = dense(1, stddev, "start", dtype=_LOGITS)
        self.end_hidden = dense(hidden_size, stddev, "end_hidden", tf.tanh, policy)
        self.end_layer_norm = LayerNorm()
        self.end = dense(1, stddev, "end", dtype=_LOGITS)
        self.answer_hidden = dense(hidden_size, stddev, "answer_hidden", tf.tanh, policy)
        self.answer = tf.keras.layers.Dense(
            1, use_bias=False, kernel_initializer=initializer(stddev), name="answer", dtype=_LOGITS
        )

    def build(self, input_shape):
        """Creates all variables. Their shapes depend only on the config."""
        hidden_size = self.config.hidden_size
        build_parts(hidden_size, self.start)
        build_parts(2 * hidden_size, self.answer_hidden)
        build_parts(hidden_size, self.answer)
        build_parts(2 * hidden_size, self.end_hidden)
        build_parts(hidden_size, self.end_layer_norm, self.end)
        super().build(input_shape)

    def call(
        self, sequence_output, may_answer, start_positions=None, dropout_seed=None, training=None
    ):
        """Computes logits for training, or the best starts and ends for inference.

        Args:
          sequence_output: [b, L, H].
          may_answer: bool [b, L], True where an answer may start or end.
          start_positions: int32 [b], start labels, required in training only.
          dropout_seed: see AlbertEncoder.call.
          training: see AlbertEncoder.call.

        Returns:
          dict with `cls_logits` [b], high if there is no answer. With `start_positions`, it
          also contains `start_logits` and `end_logits` [b, L]. Otherwise it also contains the best
          starts, `start_top_log_probs` and `start_top_index` [b, 5], and five ends per start,
          `end_top_log_probs` and `end_top_index` [b, 25]. Indices are int32, other values float32.
        """
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        seq_len = tf.shape(sequence_output)[1]
        start_logits = _masked(self.start(sequence_output)[..., 0], may_answer)
        outputs = {"cls_logits": self._no_answer(sequence_output, start_logits, dropout_seed)}
        if start_positions is not None:
            starts = start_positions[:, tf.newaxis]
            end_logits = self._ends(sequence_output, starts, may_answer)[:, 0]
            return {**outputs, "start_logits": start_logits, "end_logits": end_logits}
        start_log_probs, starts = tf.math.top_k(
            tf.nn.log_softmax(start_logits), tf.minimum(self.NUM_STARTS, seq_len)
        )
        end_logits = self._ends(sequence_output, starts, may_answer)  # [b, 5, L]
        end_log_probs, ends = tf.math.top_k(
            tf.nn.log_softmax(end_logits), tf.minimum(self.NUM_ENDS, seq_len)
        )
        num_spans = tf.shape(starts)[1] * tf.shape(ends)[2]
        return {
            **outputs,
            "start_top_log_probs": start_log_probs,
            "start_top_index": starts,
            "end_top_log_probs": tf.reshape(end_log_probs, [-1, num_spans]),
            "end_top_index": tf.reshape(ends, [-1, num_spans]),
        }

    def _ends(self, sequence_output, starts, may_answer):
        """Returns end logits, float32 [b, k, L], for each of `starts`, int32 [b, k]."""
        seq_len, num_starts = tf.shape(sequence_output)[1], tf.shape(starts)[1]
        at_start = tf.gather(sequence_output, starts, batch_dims=1)
        x = tf.concat(
            [
                tf.tile(sequence_output[:, tf.newaxis], [1, num_starts, 1, 1]),
                tf.tile(at_start[:, :, tf.newaxis], [1, 1, seq_len, 1]),
            ],
            axis=-1,
        )
        x = self.end_layer_norm(self.end_hidden(x))
        return _masked(self.end(x)[..., 0], may_answer[:, tf.newaxis])

    def _no_answer(self, sequence_output, start_logits, dropout_seed):
        """Returns no-answer logits, float32 [b], high if there is no answer."""
        # Average the output, weighted by the probability that the answer starts at each position.
        probs = tf.cast(tf.nn.softmax(start_logits), sequence_output.dtype)
        at_starts = tf.einsum("bl,blh->bh", probs, sequence_output)
        x = self.answer_hidden(tf.concat([at_starts, sequence_output[:, 0]], axis=-1))
        x = dropout(x, self.config.classifier_dropout_prob, dropout_seed)
        return self.answer(x)[:, 0]


def _masked(logits, keep):
    """Sets the logits of positions that cannot hold an answer to -1e30."""
    return tf.where(keep, logits, _NEVER)
