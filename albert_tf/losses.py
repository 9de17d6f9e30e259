"""Losses for pre-training (as sums and weights) and for fine-tuning (one loss per example)."""

import tensorflow as tf

PRETRAINING_OBJECTIVES = ("masked_lm", "sentence_order")
# `openings` uses a subset of the sentence_order examples. For `separator` see pretraining_loss.
PRETRAINING_SUMS = (*PRETRAINING_OBJECTIVES, "openings", "separator")
_TEMPERATURE = 0.05  # of cosines, as in SimCSE, CoSENT and sentence-transformers


def zero_sums(objectives: tuple[str, ...]) -> dict[str, dict[str, tf.Tensor]]:
    """Returns zeros in the structure of pretraining_sums, as initial values of running totals."""
    return {
        objective: {name: tf.zeros([]) for name in ("loss", "correct", "weight")}
        for objective in objectives
    }


def weighted_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Computes sums over a batch, from logits [..., classes], labels int32 [...] and weights.

    `weights` are float32 [...], 1 = counted, 0 = ignored (padding or no label). Returns a dict of
    float32 scalars: `loss`, weighted sum of negative log-likelihoods (nats); `correct`, total
    weight of correct predictions; `weight`, total weight. Add the sums of all replicas (and steps)
    before dividing by the total weight.
    """
    best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    losses = _negative_log_likelihood(logits, labels, best)
    correct = tf.cast(best == labels, tf.float32)
    return {
        "loss": tf.reduce_sum(losses * weights),
        "correct": tf.reduce_sum(correct * weights),
        "weight": tf.reduce_sum(weights),
    }


@tf.custom_gradient
def _negative_log_likelihood(logits, labels, best):
    """Same as tf.nn.sparse_softmax_cross_entropy_with_logits, in a third of the time.

    `best`, int32 [...], is the class with the largest logit.
    """
    probs = tf.nn.softmax(logits)

    def pick(values, index):
        return tf.gather(values, index, batch_dims=labels.shape.rank)

    # The logarithm is accurate, because the largest probability is at least 1 / classes.
    losses = pick(logits, best) - pick(logits, labels) - tf.math.log(pick(probs, best))
    return losses, lambda dy: (_gradient_of_logits(probs, labels, dy), None, None)


@tf.function(autograph=False, jit_compile=True)  # one pass over the largest tensor of a step
def _gradient_of_logits(probs, labels, dy):
    hit = tf.one_hot(labels, probs.shape[-1], dtype=probs.dtype)
    return (probs - hit) * dy[..., tf.newaxis]


def pretraining_sums(
    outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]
) -> dict[str, dict[str, tf.Tensor]]:
    """Returns a dict that maps each name in PRETRAINING_SUMS to its weighted_cross_entropy.

    `masked_lm` sums over predicted pieces, and `sentence_order` over examples with an order label.
    `openings` includes only examples at the start of a document. `separator` uses the logits at
    [SEP], and is zero if `outputs` of AlbertForPreTraining does not contain them. `batch` contains
    `masked_lm_ids` and `masked_lm_weights` [b, P], `sentence_order_labels` and
    `sentence_order_weights` [b], and optionally `opens_document` [b].
    """
    logits, labels = outputs["sentence_order_logits"], batch["sentence_order_labels"]
    weights = batch["sentence_order_weights"]
    sums = {
        "masked_lm": weighted_cross_entropy(
            outputs["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"]
        ),
        "sentence_order": weighted_cross_entropy(logits, labels, weights),
    }
    opens = tf.cast(batch.get("opens_document", 0), tf.float32)
    sums["openings"] = weighted_cross_entropy(logits, labels, weights * opens)
    sums.update(zero_sums(("separator",)))
    if "separator_order_logits" in outputs:
        logits = outputs["separator_order_logits"]
        sums["separator"] = weighted_cross_entropy(logits, labels, weights)
    return sums


def pretraining_weights(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Computes the `weight` of each objective in pretraining_sums without running the model."""
    return {
        objective: tf.reduce_sum(batch[f"{objective}_weights"])
        for objective in PRETRAINING_OBJECTIVES
    }


def pretraining_loss(
    sums: dict[str, dict[str, tf.Tensor]],
    denominators: dict[str, tf.Tensor],
    order_weight: float = 1.0,
) -> tf.Tensor:
    """Returns the sum of masked-LM and sentence-order loss, each divided by its denominator.

    `sums` are the pretraining_sums of this replica. `denominators` are the total weights of each
    objective over *all* replicas, so that the sum of the replicas' losses is the mean over the
    global batch. `order_weight` is a factor of the sentence-order loss.

    If the model also predicts the order at the [SEP] between the segments, the loss of this
    prediction is added to the loss at [CLS]. The words that reveal the order are near this [SEP].
    After training, only [CLS] is used. For the measured effect see "What was tried" in
    tests/benchmarks/README.md.

    Source: the reference's run_pretraining (weights 1:1).
    Deviation: the reference divides by (this replica's weight + 1e-5).
    """
    order = sums["sentence_order"]["loss"] + sums["separator"]["loss"]
    # divide_no_nan, because a batch may contain no labels for an objective.
    return tf.math.divide_no_nan(
        sums["masked_lm"]["loss"], denominators["masked_lm"]
    ) + order_weight * tf.math.divide_no_nan(order, denominators["sentence_order"])


def token_classification_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean negative log-likelihood (nats) of each row's labels, float32 [b].

    `logits` are float32 [b, L, labels]. `labels` are int [b, at least L], -1 = no label. Columns
    after the first L are ignored. The loss of a row without labels is 0.
    """
    labels = tf.cast(labels, tf.int32)[:, : tf.shape(logits)[1]]
    is_labelled = tf.cast(labels >= 0, logits.dtype)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    sums = tf.reduce_sum(losses * is_labelled, axis=1)
    return tf.math.divide_no_nan(sums, tf.reduce_sum(is_labelled, axis=1))


def span_loss(
    outputs: dict[str, tf.Tensor], start_positions: tf.Tensor, end_positions: tf.Tensor
) -> tf.Tensor:
    """Returns the mean of the start and end cross-entropies (nats), float32 [b].

    `outputs` are `start_logits` and `end_logits`, float32 [b, L]. Positions are int32 [b]; 0 if the
    window contains no answer.
    """
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    return 0.5 * (
        cross_entropy(start_positions, outputs["start_logits"])
        + cross_entropy(end_positions, outputs["end_logits"])
    )


def answerable_span_loss(
    outputs: dict[str, tf.Tensor],
    start_positions: tf.Tensor,
    end_positions: tf.Tensor,
    is_impossible: tf.Tensor,
) -> tf.Tensor:
    """Returns span_loss plus half the cross-entropy of `cls_logits` (nats), float32 [b].

    `outputs` must also contain `cls_logits`, float32 [b]. `is_impossible` is int32 [b], 1 = the
    window contains no answer. For the other arguments see span_loss.

    Source: the reference's squad_utils.v2_model_fn_builder.
    """
    no_answer = tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.cast(is_impossible, tf.float32), logits=outputs["cls_logits"]
    )
    return span_loss(outputs, start_positions, end_positions) + 0.5 * no_answer


def ranking_losses(embeddings: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Returns the loss of pairs that belong together, float32 [b], with in-batch negatives.

    It is the mean of two crossentropies: of the second text among all second texts (and hard
    negatives), given the first text; and of the first text among all first texts, given the second.
    Logits are cosines divided by _TEMPERATURE. Equal texts are not negatives of each other.

    Args:
      embeddings: float32 [b, k, H], of length 1: first text, second text, hard negative if k is 3.
      texts: int32 [b, k], numbers that are equal for equal texts.

    Source: van den Oord et al. 2018; Gao et al. 2021, section 3 (SimCSE), for equal texts.
    """
    others, texts_of_all = _of_all_replicas(embeddings, texts)
    first, second, number = embeddings[:, 0], embeddings[:, 1], tf.shape(texts)[0]
    rows = tf.distribute.get_replica_context().replica_id_in_sync_group * number + tf.range(number)
    is_other = rows[:, tf.newaxis] != tf.range(tf.shape(others)[0])
    equal = texts[:, :, tf.newaxis, tf.newaxis] == texts_of_all  # [b, k, rows of all, k]

    def logits(vectors, column, is_no_negative):
        cosines = tf.matmul(vectors, others[:, column], transpose_b=True)
        return tf.where(is_no_negative, -float("inf"), cosines / _TEMPERATURE)

    belongs = equal[:, 0, :, 0] | equal[:, 1, :, 1]
    of_second = [logits(first, 1, is_other & (belongs | equal[:, 0, :, 1]))]
    if embeddings.shape[1] == 3:
        of_second.append(logits(first, 2, equal[:, 0, :, 2] | equal[:, 1, :, 2]))
    of_first = logits(second, 0, is_other & (belongs | equal[:, 1, :, 0]))
    normalizers = [tf.reduce_logsumexp(x, axis=1) for x in (tf.concat(of_second, 1), of_first)]
    return tf.add_n(normalizers) / 2 - tf.reduce_sum(first * second, axis=1) / _TEMPERATURE


def score_losses(embeddings: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the loss of pairs with scores (CoSENT), the same number for each pair, float32 [b].

    It is log(1 + sum of exp((cosine_j - cosine_i) / _TEMPERATURE)) over all pairs (i, j) of the
    global batch with score_i > score_j. So only the order of `scores`, float32 [b], has an effect.
    `embeddings`, float32 [b, 2, H], have length 1.

    Source: Huang et al. 2024, equation 4.
    """
    cosines = tf.reduce_sum(embeddings[:, 0] * embeddings[:, 1], axis=1)
    of_all, scores_of_all = _of_all_replicas(cosines, scores)
    is_higher = scores_of_all[:, tf.newaxis] > scores_of_all
    differences = (of_all - of_all[:, tf.newaxis]) / _TEMPERATURE
    terms = tf.reshape(tf.where(is_higher, differences, -float("inf")), [-1])
    loss = tf.reduce_logsumexp(tf.concat([tf.zeros([1], terms.dtype), terms], axis=0))
    return tf.fill([tf.shape(cosines)[0]], loss)


def _of_all_replicas(*rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns the rows of all replicas, in order. Gradients flow back to a row's replica."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return [*rows]
    return [context.all_gather(values, axis=0) for values in rows]
