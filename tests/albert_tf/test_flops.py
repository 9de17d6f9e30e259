import dataclasses
import math

import pytest
import tensorflow as tf

from albert_tf.models import AlbertForPreTraining
from tests.benchmarks.flops import training_flops_per_example
from tests.builders import tiny_config

TINY = tiny_config(embedding_size=24, hidden_size=48, num_hidden_layers=5, num_attention_heads=3)


@pytest.mark.parametrize(("sharing", "embedding_size"), [("all", 24), ("ffn", 48)])
def test_flops_are_those_of_the_graph_s_products(sharing, embedding_size):
    config = dataclasses.replace(TINY, parameter_sharing=sharing, embedding_size=embedding_size)
    length, predictions = 64, 9
    with tf.Graph().as_default() as graph:
        ids = tf.zeros([1, length], tf.int32)
        batch = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), ids)
        model = AlbertForPreTraining(config)
        batch["masked_lm_positions"] = ids[:, :predictions]
        model(batch)
    forward = 0
    for operation in graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2"):
            transposed = "transpose_a" if operation.type == "MatMul" else "adj_x"
            left = operation.inputs[0].shape[-2 if operation.get_attr(transposed) else -1]
            forward += 2 * math.prod(operation.outputs[0].shape) * left
    type_lookup = 2 * length * config.type_vocab_size * embedding_size
    found = training_flops_per_example(model, length, predictions)
    assert found == 3 * (forward - type_lookup)
