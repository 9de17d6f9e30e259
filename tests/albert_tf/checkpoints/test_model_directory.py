import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from tests.builders import tiny_config, with_random_weights


@pytest.mark.parametrize(
    ("contents", "length"),
    [
        ({}, 61),  # a converted checkpoint: the position table's rows
        ({"run.json": {"max_seq_length": 24}}, 24),
        ({"task.json": {"max_seq_length": 43}, "run.json": {"max_seq_length": 24}}, 43),
        ({"tokenizer_config.json": {"model_max_length": 48}}, 48),  # of Hugging Face
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 61),
    ],
)
def test_the_trained_length(tmp_path, contents, length):
    for name, values in contents.items():
        (tmp_path / name).write_text(json.dumps(values))
    config = AlbertConfig(vocab_size=7, max_position_embeddings=61)
    assert model_directory.trained_length(str(tmp_path), config) == length


def test_each_layer_starts_with_shared_weights(tmp_path):
    inner = 2
    shared = with_random_weights(AlbertForPreTraining(tiny_config(inner_group_num=inner)))
    model_directory.save(shared, str(tmp_path))
    _, checkpoint = model_directory.find_checkpoint(str(tmp_path))
    inputs = {"input_word_ids": [[2, 9, 8, 4, 3]], "masked_lm_positions": [[1, 3]]}

    def outputs(restore, **changes):
        config = tiny_config(num_hidden_layers=3, inner_group_num=inner, **changes)
        model = AlbertForPreTraining(config)
        model.create_variables()
        restore(model, checkpoint)
        outputs = model({name: tf.constant(value) for name, value in inputs.items()})
        return model, [outputs["masked_lm_logits"], outputs["sentence_order_logits"]]

    _, expected = outputs(model_directory.restore_weights)
    for sharing in ("attention", "ffn"):  # "none" and groups have both parts' own layers
        model, found = outputs(model_directory.restore_to_each_layer, parameter_sharing=sharing)
        assert len(model.encoder.blocks) == 3 * inner
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(one, other)
    # With as many layers as before, the model computes what it computed.
    model = AlbertForPreTraining(shared.config)
    model.create_variables()
    model_directory.restore_to_each_layer(model, checkpoint)
    for one, other in zip(model.variables, shared.variables):
        np.testing.assert_array_equal(one, other)
