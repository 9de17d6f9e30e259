"""How fast this processor multiplies matrices in bfloat16, beside float32."""

from __future__ import annotations

import time

import tensorflow as tf

# Rows of a batch, hidden size: those of albert_base.
_ROWS, _WIDTH = 1024, 768
_ROUNDS = 4


def bfloat16_speed() -> float:
    """Returns the speed of a bfloat16 product in multiples of that of a float32 product.

    Takes 0.05 to 0.3 seconds. Measured in turn, best of a few, as other work may disturb.
    """
    best = {}
    for _ in range(_ROUNDS):
        for dtype in (tf.float32, tf.bfloat16):
            with tf.device("/cpu:0"):
                rows, kernel = tf.ones([_ROWS, _WIDTH], dtype), tf.ones([_WIDTH, _WIDTH], dtype)
                began = time.perf_counter()
                tf.matmul(rows, kernel).numpy()
            seconds = time.perf_counter() - began
            best[dtype] = min(seconds, best.get(dtype, seconds))
    return best[tf.float32] / best[tf.bfloat16]


def describe(precision: str, flag: str) -> str:
    """Says which precision was chosen, and which products are faster on this processor.

    Args:
      precision: such as "float32".
      flag: what selects bfloat16.
    """
    speed = bfloat16_speed()
    if speed >= 1.0:
        other = f"bfloat16 products are {speed:.1f} times as fast as float32 ones"
    else:
        other = f"float32 products are {1 / speed:.1f} times as fast as bfloat16 ones"
    advice = f" (all else gains less): {flag}" if speed >= 1.1 and precision == "float32" else ""
    return f"{precision}; on this processor {other}{advice}"
