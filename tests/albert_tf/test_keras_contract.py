"""Keras' contract: every public layer and model, point by point.

The points are those of keras-hub's run_layer_test and run_backbone_test; test_keras_use.py has
those of fit, predict and files. Deviations: logits and LayerNorm stay float32 under every policy,
and all objects of a class have one name, as checkpoints know variables by it.
"""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import heads, models
from albert_tf.encoder import AlbertEncoder
from albert_tf.layers import primitives
from albert_tf.layers.attention import SelfAttention
from albert_tf.layers.embeddings import FactorizedEmbedding
from albert_tf.layers.primitives import LayerNorm
from albert_tf.layers.transformer_block import FeedForward, TransformerBlock
from tests.builders import tiny_config

pytestmark = pytest.mark.usefixtures("eager")
BATCH, LENGTH, HIDDEN, MASKED = 2, 6, 12, 3
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
CONFIG = tiny_config(
    vocab_size=29,
    num_hidden_layers=1,
    embedding_size=8,
    hidden_size=HIDDEN,
    num_attention_heads=3,
    max_position_embeddings=LENGTH,
    initializer_range=0.3,
    **dict.fromkeys(DROPOUT, 0.5),
)
_rng = np.random.default_rng(5)
INPUTS = {  # NumPy's: a tensor would initialise TensorFlow before the tests choose its devices
    "input_word_ids": _rng.integers(1, 29, [BATCH, LENGTH], np.int32),
    "input_mask": np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], np.int32),
    "input_type_ids": np.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]], np.int32),
}
MASKED_INPUTS = {**INPUTS, "masked_lm_positions": np.array([[1, 2, 4], [1, 3, 0]], np.int32)}
HIDDEN_STATES = _rng.normal(size=[BATCH, LENGTH, HIDDEN]).astype(np.float32)
POOLED = HIDDEN_STATES[:, 0]
MAY_ANSWER = INPUTS["input_type_ids"] == 1
TABLE = _rng.normal(size=[29, 8]).astype(np.float32)

# name -> (creates it, arguments of a call, whether dropout acts in it)
LAYERS = {
    "layer_norm": (LayerNorm, [HIDDEN_STATES], False),
    "embeddings": (partial(FactorizedEmbedding, CONFIG), [INPUTS], True),
    "attention": (partial(SelfAttention, CONFIG), [HIDDEN_STATES], True),
    "feed_forward": (partial(FeedForward, CONFIG), [HIDDEN_STATES], True),
    "block": (
        lambda **kw: TransformerBlock(SelfAttention(CONFIG, **kw), FeedForward(CONFIG, **kw), **kw),
        [HIDDEN_STATES],
        True,
    ),
    "encoder": (partial(AlbertEncoder, CONFIG), [INPUTS], True),
    "recomputing encoder": (partial(AlbertEncoder, CONFIG, recompute=True), [INPUTS], True),
    "masked_lm": (partial(heads.MaskedLMHead, CONFIG), [HIDDEN_STATES[:, :MASKED], TABLE], False),
    "sentence_order": (partial(heads.SentenceOrderHead, CONFIG), [POOLED], False),
    "classification": (partial(heads.ClassificationHead, CONFIG, num_labels=3), [POOLED], True),
    "span": (partial(heads.SpanHead, CONFIG), [HIDDEN_STATES, INPUTS["input_mask"]], False),
    "span_beam": (partial(heads.SpanBeamHead, CONFIG), [HIDDEN_STATES, MAY_ANSWER], True),
}
MODELS = {
    "pretraining": (partial(models.AlbertForPreTraining, CONFIG), MASKED_INPUTS),
    "classification": (partial(models.AlbertForSequenceClassification, CONFIG, 3), INPUTS),
    "token_classification": (partial(models.AlbertForTokenClassification, CONFIG, 3), INPUTS),
    "multiple_choice": (partial(models.AlbertForMultipleChoice, CONFIG, num_choices=2), INPUTS),
    "embedding": (partial(models.AlbertForEmbedding, CONFIG), INPUTS),
    "question_answering": (partial(models.AlbertForQuestionAnswering, CONFIG), INPUTS),
    "answerable": (partial(models.AlbertForAnswerableQuestionAnswering, CONFIG), INPUTS),
}
EVERY = [pytest.param(create, args, id=f"layer {n}") for n, (create, args, _) in LAYERS.items()]
EVERY += [pytest.param(create, [args], id=f"model {n}") for n, (create, args) in MODELS.items()]
# These models are an encoder and one head: both are here as layers.
ALIKE = {f"model {n}" for n in ("classification", "token_classification", "question_answering")}
DIFFERENT = [case for case in EVERY if case.id not in {"layer recomputing encoder", *ALIKE}]
WITHOUT_DROPOUT = {f"layer {name}" for name, (*_, drops_out) in LAYERS.items() if not drops_out}


def flat(outputs):
    return [np.asarray(tf.cast(array, tf.float32)) for array in tf.nest.flatten(outputs)]


def are_equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(flat(a), flat(b)))


def test_every_public_class_is_here():
    public = {name for name in albert_tf.__all__ if name.startswith("AlbertFor")}
    assert {type(create()).__name__ for create, _ in MODELS.values()} == public
    registered = tf.keras.saving.get_custom_objects()
    ours = {name: cls for name, cls in registered.items() if name.startswith("albert_tf>")}
    assert sorted(ours) == [f"albert_tf>{name}" for name in albert_tf._KERAS_CLASSES]
    layers = {cls for cls in ours.values() if cls and issubclass(cls, tf.keras.layers.Layer)}
    tested = {type(create()) for create, *_ in (*LAYERS.values(), *MODELS.values())}
    assert layers - tested == {primitives.Dense}


def test_frozen_parts_stay_frozen():
    model = models.AlbertForSequenceClassification(CONFIG, num_labels=3)
    model.encoder.embeddings.trainable = False
    model.encoder.blocks["0_0"].attention.layer_norm.trainable = False
    again = type(model).from_config(model.get_config())
    for each in (model, again):
        each.create_variables()
    names = [variable.name for variable in model.trainable_variables]
    assert len(names) == len(model.variables) - 9
    assert [variable.name for variable in again.trainable_variables] == names
    model.encoder.trainable = False
    again = type(model).from_config(model.get_config())
    assert not again.encoder.trainable and again.classifier.trainable
    config = {**model.get_config(), "frozen": ["dense_7"]}
    with pytest.raises(ValueError, match="has no part 'dense_7', which was frozen"):
        type(model).from_config(config)


@pytest.mark.parametrize(("create", "args"), DIFFERENT)
def test_variables_come_with_the_first_call_alone_and_have_gradients(create, args):
    layer = create()
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(layer(*args))
        loss = tf.add_n([tf.reduce_sum(tf.square(x)) for x in outputs if x.dtype == tf.float32])
    variables = layer.variables
    assert variables and not layer.non_trainable_variables
    gradients = zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    without = {variable.name for gradient, variable in gradients if gradient is None}
    # These models read the pieces' output only.
    without_pooler = ("QuestionAnswering", "Embedding")
    assert not without or type(layer).__name__.endswith(without_pooler)
    assert all("/pooler/" in name for name in without), without
    layer(*args, training=True)
    assert len(layer.variables) == len(variables)


# A model drops out in its encoder and its head.
@pytest.mark.parametrize(("create", "args"), DIFFERENT[: len(LAYERS) - 1])
def test_dropout_acts_in_training_alone(create, args, request):
    layer = create()
    without = layer(*args)
    assert are_equal(layer(*args, training=False), without)
    if request.node.callspec.id in WITHOUT_DROPOUT:
        return
    first, second = layer(*args, training=True), layer(*args, training=True)
    assert not are_equal(first, second) and not are_equal(first, without)
    # The seed decides: alone, and together with `training`.
    seed = tf.constant([3, 4])
    assert are_equal(layer(*args, dropout_seed=seed, training=False), without)
    seeded = layer(*args, dropout_seed=seed)
    assert are_equal(seeded, layer(*args, dropout_seed=seed))
    assert are_equal(seeded, layer(*args, dropout_seed=seed, training=True))
    assert not are_equal(seeded, without)


HEADS = (heads.MaskedLMHead, heads.SentenceOrderHead, heads.ClassificationHead)
HEADS += (heads.SpanHead, heads.SpanBeamHead)
LOGITS = ("classifier", "output", "start", "end", "answer")  # names of what gives them


@pytest.mark.parametrize(("create", "args"), DIFFERENT)
def test_dtype_policy(create, args):
    policy = tf.keras.mixed_precision.Policy("bfloat16")
    layer = create(dtype=policy.name)
    outputs = tf.nest.flatten(layer(*args))
    gives_float32 = isinstance(layer, (LayerNorm, tf.keras.Model, *HEADS))
    expected = "float32" if gives_float32 else policy.compute_dtype
    assert {output.dtype.name for output in outputs} - {"int32"} == {expected}
    for part in layer._flatten_layers():
        gives_logits = part.name in LOGITS and getattr(part, "units", HIDDEN) < HIDDEN
        is_float32 = gives_logits or isinstance(part, LayerNorm)
        assert part.compute_dtype == ("float32" if is_float32 else policy.compute_dtype), part.name
        is_float32 |= not isinstance(part, tf.keras.layers.Dense)  # the tables, the output's bias
        expected = "float32" if is_float32 else policy.variable_dtype
        own = part._trainable_weights
        assert {variable.dtype.name for variable in own} <= {expected}, part.name
    again = type(layer).from_config(layer.get_config())
    assert again.dtype_policy.name == layer.dtype_policy.name


@pytest.mark.parametrize("name", ["attention", "block"])
def test_masks(name):
    create, _, _ = LAYERS[name]
    layer = create()
    mask = tf.constant(INPUTS["input_mask"] == 1)
    output = layer(HIDDEN_STATES, mask=mask)
    changed = tf.where(mask[..., tf.newaxis], HIDDEN_STATES, 7.0)
    np.testing.assert_allclose(layer(changed, mask=mask)[1, :4], output[1, :4], atol=1e-6)
    assert not np.allclose(layer(changed)[1, :4], output[1, :4], atol=1e-3)
    # An Embedding with mask_zero hands its mask on.
    embedding = tf.keras.layers.Embedding(29, HIDDEN, mask_zero=True)
    states = embedding(INPUTS["input_word_ids"] * INPUTS["input_mask"])
    masked = layer(states)
    np.testing.assert_allclose(masked, layer(states.numpy(), mask=mask), atol=1e-6)
    assert masked._keras_mask is not None
