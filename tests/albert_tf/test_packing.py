"""The layout of a model's inputs."""

import tensorflow as tf

from albert_tf.text.packing import lay_out

CLS, SEP, PAD = 2, 3, 9
A, B, C, D, E = range(11, 16)


def test_layouts():
    parts = tuple(map(tf.constant, ([0, 3, 0], [3, 0, 5], [3, 0, 0], [2, 0, -1])))
    ids, mask, types = lay_out(tf.constant([A, B, C, D, E]), parts, 9, (CLS, SEP), PAD)
    assert ids.numpy().tolist() == [
        [CLS, A, B, C, SEP, D, E, SEP, PAD],
        [CLS, SEP, SEP, PAD, PAD, PAD, PAD, PAD, PAD],  # both are there, and empty
        [CLS, A, B, C, D, E, SEP, PAD, PAD],  # no second
    ]
    assert mask.numpy().tolist() == [[1] * 8 + [0], [1] * 3 + [0] * 6, [1] * 7 + [0] * 2]
    assert types.numpy().tolist() == [[0] * 5 + [1] * 3 + [0], [0, 0, 1] + [0] * 6, [0] * 9]
