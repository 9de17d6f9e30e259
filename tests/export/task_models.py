"""Tiny fine-tuned models with random weights, one of every kind of task."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from export.loading import load_module, open_checkpoint
from export.modules.serving_module import ServingModule
from pipelines.tasks.classification import ClassificationTask
from pipelines.tasks.embedding import EmbeddingTask
from pipelines.tasks.multilabel import MultiLabelTask
from pipelines.tasks.multiple_choice import MultipleChoiceTask
from pipelines.tasks.squad import SquadTask
from pipelines.tasks.task import create_model
from pipelines.tasks.token_classification import TokenClassificationTask
from tests.builders import tiny_config, with_random_weights, write_task_model

MAX_SEQ_LENGTH = 43
CONFIG = tiny_config(vocab_size=1, num_hidden_layers=1)
LABELS = ("no", "maybe", "sí")


def classification(text_pair, is_regression=False):
    columns = {"text": "first", "text_pair": text_pair}
    labels = None if is_regression else LABELS
    return ClassificationTask("classification", {}, columns, labels, is_regression)


def token_classification(labels):
    return TokenClassificationTask("token_classification", {}, {}, labels, 9)


SQUAD_ARGUMENTS = {"doc_stride": 9, "max_query_length": 6, "max_answer_length": 7}
BEAMS = {"may_be_impossible": True, "has_answerability_head": True, "null_threshold": 2.5}
TASKS = {
    "classifier": classification("second"),
    "classifier of texts": classification(None),
    "regressor": classification("second", is_regression=True),
    "multilabel": MultiLabelTask(
        "multilabel", {}, {"text": "first", "text_pair": "second"}, LABELS
    ),
    "embedder": EmbeddingTask("embedding", {}),
    "embedder, cls": EmbeddingTask("embedding", {}, pooling="cls"),
    "multiple_choice": MultipleChoiceTask("multiple_choice", {}, {}, 19, 3),
    "cloze": MultipleChoiceTask("multiple_choice", {}, {}, 19, 3, "_"),
    "token_classifier": token_classification(("O", "B-á", "I-á", "S-b", "E-á", "I-b")),
    "question_answering": SquadTask({}, **SQUAD_ARGUMENTS),
    "question_answering, 2.0": SquadTask({}, may_be_impossible=True, **SQUAD_ARGUMENTS),
    "question_answering, beams": SquadTask({}, **BEAMS, **SQUAD_ARGUMENTS),
}


@pytest.fixture(scope="session")
def make_module(tmp_path_factory, tiny_vocabulary):
    """A function that gives random weights to the model of a task and makes its module, once."""

    @functools.cache
    def make(task, vocabulary=tiny_vocabulary, max_seq_length=MAX_SEQ_LENGTH, scale=0.4, **config):
        tokenizer = AlbertTokenizer(str(vocabulary))
        directory = tmp_path_factory.mktemp("model")
        config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size, **config)
        model = with_random_weights(create_model(task, config), 6, scale)
        write_task_model(directory, task, model, tokenizer, max_seq_length)
        module = load_module(open_checkpoint(str(directory)))
        for restored, weight in zip(module.model.get_weights(), model.get_weights()):
            np.testing.assert_array_equal(restored, weight)
        return module

    return make


@pytest.fixture(scope="session")
def module_of(make_module, request):
    """Maps a task's name to its module, which is made once; that of "pretraining" was exported."""

    def of(name):
        if name == "pretraining":
            return request.getfixturevalue("saved_module")
        task = TASKS[name.removesuffix(", WordPiece")]
        wordpiece = [request.getfixturevalue("wordpiece")] if name.endswith("WordPiece") else []
        return make_module(task, *wordpiece)

    return of


@pytest.fixture(scope="session", autouse=True)
def traced_once():
    """Lets all tests share the functions of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServingModule, "function", functools.cache(ServingModule.function))
        yield


def serve(module, signature, **inputs):
    return call(module.function(signature), inputs)


def call(function, inputs):
    """Answers as a server does, which looks at no rank. Python would, before the function."""
    specs = tf.nest.flatten(function.structured_input_signature)
    assert inputs.keys() == {spec.name for spec in specs}
    given = [tf.constant(inputs[spec.name], spec.dtype) for spec in specs]
    outputs = tf.raw_ops.StatefulPartitionedCall(
        args=[*given, *function.captured_inputs],
        Tout=[output.dtype for output in function.outputs],
        f=function,
    )
    outputs = tf.nest.pack_sequence_as(function.structured_outputs, outputs)
    return {name: output.numpy() for name, output in outputs.items()}


def assert_alike(answers, expected):
    """Compares answers to equally many rows; those to shorter texts may have less padding."""
    for name, values in expected.items():
        found = answers[name][tuple(map(slice, values.shape))]
        if values.dtype == object:
            assert found.tolist() == values.tolist(), name
        else:
            np.testing.assert_allclose(found, values, atol=1e-5, err_msg=name)


def ask(module, **inputs):
    return serve(module, "serving_default", **inputs)


def ask_eagerly(module, signature="serving_default", **inputs):
    """Answers without tracing, which takes longer than all answers of a test."""
    tensors = {name: tf.constant(values) for name, values in inputs.items()}
    return {name: output.numpy() for name, output in getattr(module, signature)(**tensors).items()}
