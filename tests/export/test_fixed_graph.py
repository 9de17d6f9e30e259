"""What a TFLite or ONNX model answers: the numbers of each kind's model."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.packing import FEATURES, model_inputs
from export import fixed_graph
from tests.builders import raises_one_line

MASK = np.array([[1] * 11, [1] * 4 + [0] * 7, [1] * 9 + [0] * 2], np.int32)
IDS = MASK * np.random.RandomState(0).randint(5, 50, MASK.shape).astype(np.int32)
BEAMS = "question_answering, beams"


def expected(kind, outputs):
    if kind == "pretraining":
        order = tf.nn.log_softmax(outputs["sentence_order_logits"])
        return {"mlm_logits": outputs["masked_lm_logits"], "sop_log_probs": order}
    if kind == "question_answering":
        return {name: outputs[name] for name in ("start_logits", "end_logits")}
    if kind == "multiple_choice":
        return {"value": tf.reshape(outputs["logits"], [-1])}  # one row of 3 choices
    if kind == "regressor":
        return {"value": outputs["logits"][:, 0]}
    activation = tf.sigmoid if kind == "multilabel" else tf.nn.softmax
    return {"probabilities": activation(outputs["logits"])}


@pytest.mark.parametrize(
    "name",
    [
        "pretraining",
        "classifier",
        "regressor",
        "multilabel",
        "multiple_choice",
        "token_classifier",
        "question_answering, 2.0",
    ],
)
def test_answers_are_the_models(name, modules):
    directory, kind = modules[name].served.model_dir, modules[name].served.kind
    module = fixed_graph.load(directory, "pretraining" if kind == "pretraining" else None)
    ids = dict(zip(FEATURES, (IDS, MASK, MASK * (np.arange(11) > 5))))
    answers = fixed_graph.answer(module, ids)
    assert module.served.kind == kind
    wanted = expected(kind, module.model(model_inputs(ids)))
    assert answers.keys() == wanted.keys()
    for output, values in wanted.items():
        for of_all, only, mask in zip(answers[output], values, MASK):
            if values.shape[1:2] == MASK.shape[1:]:  # padding has no answer
                of_all, only = of_all[mask == 1], only[mask == 1]
            np.testing.assert_allclose(of_all, only, atol=1e-5)


@pytest.mark.parametrize("name", ["pretraining", BEAMS])
def test_the_encoder_by_default(name, modules):
    module = fixed_graph.load(modules[name].served.model_dir, None)
    assert module.served.kind == "encoder"


def test_beams_have_no_single_graph(modules):
    with pytest.raises(ValueError, match=r"^--kind=question_answering: .* take --kind=encoder$"):
        fixed_graph.load(modules[BEAMS].served.model_dir, "question_answering")


def test_answers_that_are_not_finite_are_refused(modules, tmp_path):
    module = fixed_graph.load(modules["classifier"].served.model_dir, None)
    nan = {"probabilities": np.full([3, 3], np.nan, np.float32)}
    answers = iter([nan, {"probabilities": np.zeros([3, 3], np.float32)}])
    found = fixed_graph.differences(module, lambda _: next(answers), [MASK, MASK])
    with raises_one_line(" in int8 gives answers that are not finite"):
        fixed_graph.write(module, str(tmp_path / "m.onnx"), b"", found, " in int8")
    assert not list(tmp_path.iterdir())
