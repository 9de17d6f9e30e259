"""Recomputes blocks in the backward pass, so that only their inputs are stored."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def apply_recomputed(blocks: Sequence[Callable[[tf.Tensor], tf.Tensor]], x: tf.Tensor):
    """Applies the blocks to x [b * L, H] in sequence. Returns the output of each block.

    The backward pass recomputes one block at a time and adds its weight gradients to running totals
    before the next block. Without this, TensorFlow would keep one copy of the gradients for each
    block that shares the weights: more than 20 GB for ALBERT xxlarge at length 512.
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
                # Wait for the totals, so that only one block's gradients are in memory.
                with tf.control_dependencies(totals):
                    dy = dstate + dx
                with tf.GradientTape() as tape:
                    tape.watch(state)
                    # y is not used. The tape recomputes the block after dy, even under XLA.
                    y = tf.recompute_grad(block)(state)
                dx, *dvariables = tape.gradient(
                    y, [state, *variables], dy, unconnected_gradients="zero"
                )
                totals = [total + d for total, d in zip(totals, dvariables)]
            return dx, totals

        return states[1:], gradient

    return apply(x)
