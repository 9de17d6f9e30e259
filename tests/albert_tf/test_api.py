import ast
import re
from pathlib import Path

import numpy as np
import pytest

import albert_tf
from albert_tf.jobs import command
from albert_tf.storage.errors import UserError
from pipelines import predict
from tests import jobs
from tests.builders import tiny_config
from tests.jobs import PROJECT


def test_every_name_is_there_and_documented():
    assert albert_tf.__all__ == sorted(albert_tf.__all__)
    for name in albert_tf.__all__:
        assert getattr(albert_tf, name).__doc__, name
    assert set(albert_tf.__all__) <= set(dir(albert_tf))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        albert_tf.nothing  # noqa: B018


@pytest.fixture(scope="module")
def made(pretrained):
    """A model, its tokenizer and their directory."""
    return *albert_tf.from_pretrained(pretrained), str(pretrained)


def test_bad_directories(made, tmp_path):
    model, tokenizer, directory = made
    for load in (albert_tf.from_pretrained, albert_tf.AlbertTokenizer, predict.load):
        with pytest.raises(UserError, match="expected a path, got None"):
            load(None)
    with pytest.raises(UserError, match="is no model: expected"):
        albert_tf.from_pretrained(str(tmp_path))
    for existing in (directory, Path(directory), ""):
        with pytest.raises(UserError, match="exists already"):
            albert_tf.save_pretrained(model, tokenizer, existing)
    foreign = tmp_path / "foreign"
    smaller = albert_tf.AlbertForPreTraining(tiny_config(vocab_size=tokenizer.vocab_size - 1))
    smaller.create_variables()
    albert_tf.save_pretrained(smaller, tokenizer, foreign)
    classifier = albert_tf.AlbertForSequenceClassification(model.config, num_labels=2)
    with pytest.raises(UserError, match="expected an AlbertForPreTraining, got AlbertForSequence"):
        albert_tf.save_pretrained(classifier, tokenizer, tmp_path / "classifier")
    with pytest.raises(UserError, match=r"has no weights yet: call create_variables\(\)"):
        albert_tf.save_pretrained(type(model)(model.config), tokenizer, tmp_path / "classifier")
    assert not (tmp_path / "classifier").exists()
    with pytest.raises(UserError, match="belongs to another model"):
        albert_tf.from_pretrained(foreign)
    (foreign / "task.json").write_text("{}")
    with pytest.raises(UserError, match=r"task\.json: kind is None, expected one of classifier, "):
        albert_tf.from_pretrained(foreign)


def indented(path):
    example = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return "\n".join(line[4:] for line in example.splitlines() if line.startswith("    "))


def fenced(path):
    return re.search(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)[1]


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (indented, "albert_tf/__init__.py"),
        pytest.param(fenced, "README.md", marks=pytest.mark.slow),
    ],
)
def test_examples_run(read, name, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they write
    scope, example = {}, read(PROJECT / name)
    # TensorFlow 2.21 has chosen Keras 3 when it is imported first.
    assert example.startswith("import albert_tf")
    model, _, directory = made
    exec(example.replace("demo/model", directory), scope)
    classifier = scope["classifier"]
    assert classifier.config == model.config
    if name != "README.md":  # there it is trained after
        written, _ = albert_tf.from_pretrained("huggingface")
        for found in (classifier, written):
            np.testing.assert_equal(found.encoder.get_weights(), model.encoder.get_weights())
        assert scope["encoder"](scope["batch"])["pooled_output"].shape == [1, 768]


def test_command_lists_and_runs_programs(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["albert"])
    command.main()
    listed = capsys.readouterr().out
    assert "  pretrain                 " in listed
    defined, _ = jobs.run("albert_tf.jobs.command", "ask", "--help")
    assert defined.startswith("Queries an exported model,") and "--saved_model" in defined
    monkeypatch.setattr("sys.argv", ["albert", "pretrian"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert capsys.readouterr().err.startswith("error: no program 'pretrian'")
