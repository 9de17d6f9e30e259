"""Blocks one after the other: training keeps only their inputs and recomputes the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


def apply_recomputed(blocks: Sequence[Callable[[tf.Tensor], tf.Tensor]], x: tf.Tensor):
    """Applies the blocks to [b * L, H]; the gradient computes what happens in each once more.

    Going back, a block's gradients of the weights are added up before the block below begins, so
    that one copy of them is in memory: TensorFlow keeps one for each block that shares the weights
    until it has them all, which for ALBERT xxlarge at length 512 is more than 20 GB.

    Returns:
      What leaves each.
    """

    @tf.custom_gradient
    def apply(x):
        states = [x]
        for block in blocks:
            states.append(block(states[-1]))

        def gradient(*dstates, variables):
            totals = [tf.zeros_like(variable) for variable in variables]
            dx = tf.zeros_like(x)
            for block, state, dstate in reversed(list(zip(blocks, states, dstates))):
                with tf.control_dependencies(totals):
                    dy = dstate + dx
                with tf.GradientTape() as tape:
                    tape.watch(state)
                    # It makes the second computation wait for dy, for XLA too; the first is unused.
                    y = tf.recompute_grad(block)(state)
                dx, *dvariables = tape.gradient(
                    y, [state, *variables], dy, unconnected_gradients="zero"
                )
                totals = [total + d for total, d in zip(totals, dvariables)]
            return dx, totals

        return states[1:], gradient

    return apply(x)
