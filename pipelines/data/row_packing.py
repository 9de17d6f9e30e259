"""Lays several examples into each row of a batch, so that few positions are padding."""

from __future__ import annotations

import tensorflow as tf

# Examples in a row. The last block computes this many [CLS] for each row, with or without example.
_MOST_EXAMPLES = 4


def pack_rows(batch: dict[str, tf.Tensor], multiple: int) -> dict[str, tf.Tensor]:
    """Packs the examples of a batch into fewer rows of the same length.

    The model computes the same as for the examples one by one: attention stays inside an example,
    and positions begin at 0 in each. The number of rows depends on the lengths. It is a multiple of
    `multiple`, because XLA compiles the step's functions anew for every shape.

    Example, rows of 8 pieces, lengths 5, 3 and 4 -> `input_positions`:

        0 1 2 3 4 0 1 2
        0 1 2 3 . . . .

    Args:
      batch: see pretraining_dataset; b examples.
      multiple: of the number of rows.

    Returns:
      The batch by row, r <= b + multiple - 1. The inputs have [r, L], `masked_lm_*` [r, P], order
      labels, their weights and `opens_document` [r, 4]. New are int32 `input_positions` [r, L], the
      place of a piece in its example, and `cls_positions` [r, 4], where each example begins.
    """
    mask, weights = batch["input_mask"], batch["masked_lm_weights"]
    length, most_predictions = mask.shape[1], weights.shape[1]
    sizes = [tf.reduce_sum(mask, axis=1), tf.cast(tf.reduce_sum(weights, axis=1), tf.int32)]
    sizes = tf.stack([*sizes, tf.ones_like(sizes[0])], axis=1)
    capacity = [length, most_predictions, _MOST_EXAMPLES]
    row, begin, first_prediction, number = tf.unstack(_first_fit(sizes, capacity), axis=1)
    num_rows = -(-(tf.reduce_max(row) + 1) // multiple) * multiple

    def by_row(values, keep, first, width):
        places = tf.where(keep)
        example = places[:, 0]
        columns = tf.gather(first, example) + tf.cast(places[:, 1], tf.int32)
        indices = tf.stack([tf.gather(row, example), columns], axis=1)
        packed = tf.scatter_nd(indices, tf.gather_nd(values, places), [num_rows, width])
        return tf.ensure_shape(packed, [None, width])

    def pieces(values):
        return by_row(values, mask > 0, begin, length)

    def predictions(values):
        return by_row(values, weights > 0, first_prediction, most_predictions)

    def examples(values):
        values = values[:, tf.newaxis]
        return by_row(values, tf.ones_like(values, tf.bool), number, _MOST_EXAMPLES)

    of_example = "sentence_order_labels", "sentence_order_weights", "opens_document"
    return {
        **{name: pieces(values) for name, values in batch.items() if name.startswith("input_")},
        "input_positions": pieces(tf.cumsum(mask, axis=1, exclusive=True)),
        "masked_lm_positions": predictions(batch["masked_lm_positions"] + begin[:, tf.newaxis]),
        "masked_lm_ids": predictions(batch["masked_lm_ids"]),
        "masked_lm_weights": predictions(weights),
        "cls_positions": examples(begin),
        **{name: examples(batch[name]) for name in of_example if name in batch},
    }


def _first_fit(sizes: tf.Tensor, capacity: list[int]) -> tf.Tensor:
    """Places each example, the longest first, into the first row that has room for it.

    Args:
      sizes: int32 [b, n], what an example takes of each of n capacities; column 0 is its length.
      capacity: n numbers, what a row has.

    Returns:
      int32 [b, 1 + n]: the row, and what the row's earlier examples take of each capacity.
    """
    order = tf.argsort(sizes[:, 0], direction="DESCENDING", stable=True)
    of_order, rows = tf.gather(sizes, order), tf.shape(sizes)[0]

    def place(i, used, places):
        size = of_order[i]
        fits = tf.reduce_all(used + size <= capacity, axis=1)
        row = tf.argmax(tf.cast(fits, tf.int32), output_type=tf.int32)  # the first that fits
        places = places.write(i, tf.concat([[row], used[row]], axis=0))
        return i + 1, tf.tensor_scatter_nd_add(used, [[row]], size[tf.newaxis]), places

    _, _, places = tf.while_loop(
        lambda i, *_: i < rows,
        place,
        (0, tf.zeros_like(sizes), tf.TensorArray(tf.int32, rows)),
    )
    return tf.scatter_nd(order[:, tf.newaxis], places.stack(), [rows, 1 + len(capacity)])
