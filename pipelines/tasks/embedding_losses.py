"""Losses of embeddings. Each compares all texts of a global batch, over all replicas."""

import tensorflow as tf

TEMPERATURE = 0.05  # of SimCSE, CoSENT and sentence-transformers


def ranking_losses(embeddings: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Returns the loss of pairs that belong together, float32 [b], with in-batch negatives.

    It is the mean of two crossentropies: of the second text among all second texts (and hard
    negatives), given the first text; and of the first text among all first texts, given the second.
    Logits are cosines divided by TEMPERATURE. Equal texts are not negatives of each other.

    Args:
      embeddings: float32 [b, k, H], vectors of length 1: first text, second text and, if k is 3, a
        hard negative of the first text.
      texts: int32 [b, k], numbers that are equal for equal texts.

    Source: van den Oord et al. 2018; Gao et al. 2021, section 3 (SimCSE), for equal texts.
    """
    (embeddings_of_all, texts_of_all), begin = _of_all_replicas(embeddings, texts)
    first, second = embeddings[:, 0], embeddings[:, 1]
    number = tf.shape(embeddings_of_all)[0]
    is_other = (begin + tf.range(tf.shape(first)[0]))[:, tf.newaxis] != tf.range(number)

    def logits(vectors, column):
        return tf.matmul(vectors, embeddings_of_all[:, column], transpose_b=True) / TEMPERATURE

    def equal(own, other):  # [b, number]: texts of this replica and texts of all
        return texts[:, own, tf.newaxis] == texts_of_all[tf.newaxis, :, other]

    def without(logits, is_no_negative):
        return tf.where(is_no_negative, -float("inf"), logits)

    belongs = equal(0, 0) | equal(1, 1)
    of_second = [without(logits(first, 1), is_other & (belongs | equal(0, 1)))]
    if embeddings.shape[1] == 3:
        of_second.append(without(logits(first, 2), equal(0, 2) | equal(1, 2)))
    of_first = without(logits(second, 0), is_other & (belongs | equal(1, 0)))
    normalizers = [tf.reduce_logsumexp(tf.concat(of_second, axis=1), axis=1)]
    normalizers.append(tf.reduce_logsumexp(of_first, axis=1))
    return tf.add_n(normalizers) / 2 - tf.reduce_sum(first * second, axis=1) / TEMPERATURE


def score_losses(embeddings: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the loss of pairs with scores (CoSENT), the same number for each pair, float32 [b].

    It is log(1 + sum of exp((cosine_j - cosine_i) / TEMPERATURE)) over all pairs (i, j) of the
    global batch with score_i > score_j. Only the order of the scores has an effect.

    Args:
      embeddings: float32 [b, 2, H], vectors of length 1.
      scores: float32 [b].

    Source: Huang et al. 2024, equation 4.
    """
    cosines = tf.reduce_sum(embeddings[:, 0] * embeddings[:, 1], axis=1)
    (of_all, scores_of_all), _ = _of_all_replicas(cosines, scores)
    is_higher = scores_of_all[:, tf.newaxis] > scores_of_all
    differences = (of_all - of_all[:, tf.newaxis]) / TEMPERATURE
    terms = tf.reshape(tf.where(is_higher, differences, -float("inf")), [-1])
    loss = tf.reduce_logsumexp(tf.concat([tf.zeros([1], terms.dtype), terms], axis=0))
    return tf.fill([tf.shape(cosines)[0]], loss)


def _of_all_replicas(*rows: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor | int]:
    """Returns the rows of all replicas, in order, and the index of this replica's first row.

    Gradients flow back to the replica that computed a row.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return [*rows], 0
    gathered = [context.all_gather(values, axis=0) for values in rows]
    return gathered, context.replica_id_in_sync_group * tf.shape(rows[0])[0]
