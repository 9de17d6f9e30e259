"""The program that asks prints the SavedModel's answers."""

import subprocess
import sys

import pytest
import tensorflow as tf

from export.ask import ask
from tests.export.task_models import TASKS, function_of


def test_the_answers_printed_are_the_saved_models(exported, loaded, monkeypatch):
    paths = []
    monkeypatch.setattr(tf.saved_model, "load", lambda path: paths.append(path) or loaded)
    texts = ["The [MASK] fox [MASK].", "[MASK]"]
    # Of a pair and the same swapped one is told right.
    pairs = ["Dogs run. ||| Birds sing.", "Birds sing. ||| Dogs run.", "A fox. ||| A fox."]
    lines = ask(saved_model=str(exported.parent), masked_texts=texts, pairs=pairs)
    assert lines[-1] == "rather in order as given than swapped: 1 of 3 pairs (by chance half)"
    lines = ask(saved_model=str(exported.parent), masked_texts=texts, pairs=pairs[:1])
    printed = "\n".join(lines)
    assert printed.startswith(str(exported)) and set(paths) == {str(exported)}
    assert "rather" not in printed
    filled = loaded.signatures["fill_mask"](text=tf.constant(texts))
    assert printed.count("  [MASK] ") == 3
    for row, mask in ((0, 0), (0, 1), (1, 0)):
        piece = filled["pieces"][row, mask, 0].numpy().decode()
        percent = 100 * filled["probabilities"][row, mask, 0].numpy()
        assert f"  [MASK] {mask + 1}: {piece} {percent:.1f} %," in printed
    many = ask(saved_model=str(exported), masked_texts=["[MASK]" * 22])
    assert "  (2 more [MASK] without an answer: too far back, or too many)" in many
    sides = ["Dogs run.", "Birds sing."]
    inputs = {"text": tf.constant(sides), "text_pair": tf.constant(sides[::-1])}
    order = loaded.signatures["serving_default"](**inputs)["in_order_probability"].numpy()
    assert f"A B: in order with {100 * order[0]:.1f} %" in printed
    assert f"B A: in order with {100 * order[1]:.1f} %" in printed


def test_a_pretrained_model_scores_texts_and_names_its_flags(exported, loaded, monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loaded)
    lines = ask(saved_model=str(exported), texts=["Dogs run."], pairs=["Dogs run. ||| Birds sing."])
    answer = loaded.signatures["score"](text=tf.constant(["Dogs run."]))
    assert lines[2:4] == ["text: Dogs run.", f"  log_likelihood: {answer['log_likelihood'][0]:.6g}"]
    assert "A: Dogs run." in lines
    with pytest.raises(ValueError, match="needs text and text_pair, not context and question"):
        ask(saved_model=str(exported), question="Who?", context="I.")
    monkeypatch.delitem(loaded.signatures._signatures, "score")
    with pytest.raises(ValueError, match=r"not text: give --pair$"):
        ask(saved_model=str(exported), texts=["Dogs run."])


def test_wrong_questions_are_refused():
    for asked, message in (
        ({}, "nothing is asked"),
        ({"masked_texts": ["no mask"]}, r"holds no \[MASK\]"),
        ({"pairs": ["one sentence"]}, "expected two sentences"),
        ({"pairs": ["one ||| "]}, "expected two sentences"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(saved_model="unused", **asked)


def test_as_many_options_as_the_model_takes(make_module, tmp_path, monkeypatch):
    module = make_module(TASKS["multiple_choice"])
    model = tf.Module()
    model.signatures = {"serving_default": function_of(module, "serving_default")}
    monkeypatch.setattr(tf.saved_model, "load", lambda path: model)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/saved_model.pb").touch()
    question = {"saved_model": str(tmp_path), "question": "Who sings?", "context": "Birds sing."}
    lines = ask(**question, options=["Birds.", "Dogs.", "..."])
    assert lines[2:4] == ["question: Who sings?", "context: Birds sing."]
    assert lines[5].startswith("  choice: ")
    for options in (["Birds."], ["Birds.", "Dogs.", "A fox.", "..."]):
        message = f"chooses among 3 options, not {len(options)}: give --option 3 times"
        with pytest.raises(ValueError, match=message):
            ask(**question, options=options)


@pytest.mark.slow
def test_asking_loads_no_model_code(exported):
    script = (
        "import sys; from export.ask import ask; "
        "print(ask(saved_model=sys.argv[1], masked_texts=['a [MASK]'], pairs=[])[0]); "
        "print(*(n for n in sys.modules if n.startswith(('albert_tf.', 'export.'))))"
    )
    command = [sys.executable, "-c", script, str(exported)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answered, modules = done.stdout.splitlines()
    assert answered == f"{exported} answers" and "export.ask" in modules
    model_code = {"encoder", "heads", "layers", "models", "tokenization"}
    assert not model_code & {name.split(".")[1] for name in modules.split()}
