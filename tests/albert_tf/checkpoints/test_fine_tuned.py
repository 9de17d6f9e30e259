import dataclasses
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import name_map
from albert_tf.checkpoints.opening import _kind_of
from albert_tf.jobs.decision import Decision
from albert_tf.kinds import KINDS
from albert_tf.text.tokenization import AlbertTokenizer
from export.loading import open_checkpoint
from pipelines.predict import load
from tests.albert_tf.checkpoints.test_name_map import change_config, convert
from tests.builders import raises_one_line, tiny_config, with_random_weights

CONFIG = tiny_config(vocab_size=1, hidden_act="gelu")
SPANS = {"doc_stride": 30, "max_query_length": 20, "max_answer_length": 7, "n_best_size": 20}
SPANS.update(may_be_impossible=False, has_answerability_head=False, null_threshold=0.0)
TASKS = {
    "classifier": {"labels": ["no", "maybe", "sí"], "has_pairs": True},
    "regressor": {"has_pairs": False},
    "multilabel": {"labels": ["no", "maybe", "sí"], "has_pairs": False},
    "token_classifier": {"labels": ["O", "B-per", "I-per", "B-loc", "I-loc"], "doc_stride": 30},
    "question_answering": SPANS,
    "multiple_choice": {"num_choices": 3, "max_qa_length": 19},
    "embedder": {"pooling": "mean", "has_pairs": False},
}


@pytest.fixture(params=TASKS)
def task(request):
    return {"task": "own", "kind": request.param, **TASKS[request.param], "max_seq_length": 60}


def write_model(directory, task, vocabulary, **config):
    directory.mkdir()
    tokenizer = AlbertTokenizer(str(vocabulary))
    config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size, **config)
    model = with_random_weights(KINDS[task["kind"]].create_model(config, task), scale=0.4)
    config.write(str(directory / "albert_config.json"))
    tokenizer.save(str(directory))
    tf.train.Checkpoint(model=model).save(str(directory / "best" / "ckpt"))
    (directory / "task.json").write_text(json.dumps(task))
    return model


def to_hugging_face(directory):
    """Converts the model `a` of a directory to `hf` beside it; returns the latter."""
    return convert(directory / "a", directory / "hf", "huggingface")


def assert_weights(directory, model, task):
    """Some kinds do not read the pooler's output, and lose it."""
    found = name_map.arrays(albert_tf.from_pretrained(directory)[0])
    for name, array in name_map.arrays(model).items():
        if KINDS[task["kind"]].has_pooler or "pooler" not in name:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


# A multilabel model has the classifier's weights; test_sentence_transformers.py has embedders.
@pytest.mark.parametrize(
    "task", [kind for kind in TASKS if kind not in ("multilabel", "embedder")], indirect=True
)
def test_there_and_back(task, tiny_vocabulary, tmp_path):
    hidden_size = 12 if task["kind"] in ("classifier", "question_answering") else 20  # or embedded
    model = write_model(tmp_path / "a", task, tiny_vocabulary, hidden_size=hidden_size)
    to_hugging_face(tmp_path)
    values = json.loads((tmp_path / "hf/config.json").read_text())
    assert values["architectures"] == [KINDS[task["kind"]].architecture]
    if "labels" in task:
        assert values["id2label"] == {str(i): label for i, label in enumerate(task["labels"])}
        assert values["label2id"] == {label: i for i, label in enumerate(task["labels"])}
    tokenizer = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == 60 < CONFIG.max_position_embeddings
    convert(tmp_path / "hf", tmp_path / "b")
    assert json.loads((tmp_path / "b/task.json").read_text()) == task
    assert_weights(tmp_path / "b", model, task)


@pytest.mark.parametrize(
    ("of", "problem_type", "num_labels", "kind"),
    [
        ("Sequence", None, 3, "classifier"),
        ("Sequence", None, 1, "regressor"),
        ("Sequence", "single_label_classification", 1, "regressor"),
        ("Sequence", "regression", 1, "regressor"),
        ("Sequence", "multi_label_classification", 1, "multilabel"),
        ("Token", None, 1, "token_classifier"),
    ],
)
def test_kinds_of_one_class_are_told_apart(of, problem_type, num_labels, kind):
    values = {"architectures": [f"AlbertFor{of}Classification"], "problem_type": problem_type}
    assert _kind_of(values, num_labels).name == kind


def written_by_others(directory, task, vocabulary):
    """Writes a model of Hugging Face without our task.json; returns its directory."""
    write_model(directory / "a", {**task, "task": "own", "max_seq_length": 60}, vocabulary)
    theirs = to_hugging_face(directory)
    (theirs / "task.json").unlink()
    return theirs


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("token_classifier", "OBI", {"task": "token_classification", "doc_stride": 128}),
        (
            "multilabel",
            ["a, b", "c"],
            {"task": "multilabel", "has_pairs": False, "label_separator": ";"},
        ),
    ],
)
def test_what_others_wrote(kind, labels, expected, tiny_vocabulary, tmp_path):
    task = {"kind": kind, "labels": list(labels)}
    theirs = written_by_others(tmp_path, {**task, "has_pairs": False}, tiny_vocabulary)
    convert(theirs, tmp_path / "b")
    found = json.loads((tmp_path / "b/task.json").read_text())
    assert found == {**task, **expected, "max_seq_length": 60}  # as in tokenizer_config.json
    change_config(theirs, "config.json", id2label={"0": "alone"})
    with pytest.raises(ValueError, match="label, expected two or more"):
        convert(theirs, tmp_path / "c")


def test_what_has_no_counterpart(tiny_vocabulary, tmp_path):
    task = {"task": "squad_v2", "kind": "question_answering", **TASKS["question_answering"]}
    task["has_answerability_head"] = True
    write_model(tmp_path / "a", task, tiny_vocabulary)
    for output_format, message in (
        ("huggingface", "has no class with this head"),
        ("albert_tf", "has this format already"),
    ):
        with pytest.raises(ValueError, match=message):
            convert(tmp_path / "a", tmp_path / "out", output_format)
        assert not (tmp_path / "out").exists()


def test_pairs_meet_a_model_of_one_segment_type(tiny_vocabulary, tmp_path):
    for kind in ("classifier", "multiple_choice"):
        task = {"task": KINDS[kind].task, "kind": kind, **TASKS[kind], "max_seq_length": 60}
        write_model(tmp_path / kind, task, tiny_vocabulary, type_vocab_size=1)
        for read in (albert_tf.from_pretrained, open_checkpoint):
            with raises_one_line("pairs of texts, but the model has one segment type"):
                read(str(tmp_path / kind))


def test_a_directory_of_seeds(tuned, tiny_vocabulary):
    model, tokenizer = albert_tf.from_pretrained(tuned / "seed_1")
    assert isinstance(model, albert_tf.AlbertForSequenceClassification)
    assert tokenizer.sha256 == AlbertTokenizer(str(tiny_vocabulary)).sha256
    for path in (tuned, tuned.parent):  # the latter is like a directory of several rates
        with pytest.raises(ValueError, match=r"a model of each seed: name one, such as .*seed_1'"):
            albert_tf.from_pretrained(path)
    for read in (albert_tf.from_pretrained, load):
        with pytest.raises(
            ValueError, match=r"is a part of the fine-tuned model '(.*)': name '\1'"
        ):
            read(f"{tuned}/seed_1/best/")


@pytest.mark.slow
@pytest.mark.extras("torch", "transformers")
def test_transformers_writes_the_same(task, tiny_vocabulary, tmp_path):
    import transformers

    model = write_model(tmp_path / "a", task, tiny_vocabulary)
    to_hugging_face(tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / "hf/model.safetensors")
    assert all(array.dtype == np.float32 for array in tensors.values())
    kind = KINDS[task["kind"]].architecture
    theirs, info = getattr(transformers, kind).from_pretrained(
        str(tmp_path / "hf"), output_loading_info=True
    )
    missing = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
    assert not missing and not info["unexpected_keys"]
    # Of a chooser task.json says among how many.
    theirs.save_pretrained(tmp_path / "theirs")
    for name in ("spiece.model", "tokenizer_config.json", "task.json"):
        shutil.copy(tmp_path / "hf" / name, tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "b")
    assert_weights(tmp_path / "b", model, task)


def test_a_model_of_squad_2_of_others(tiny_vocabulary, tmp_path, capsys):
    task = {"kind": "question_answering", **TASKS["question_answering"]}
    theirs = written_by_others(tmp_path, task, tiny_vocabulary)
    convert(theirs, tmp_path / "b")
    note = "if that was SQuAD 2.0, pass --null_threshold=0 here or to predict"
    assert note in capsys.readouterr().out
    convert(theirs, tmp_path / "c", decide=Decision(null_threshold=0.0).apply)
    assert "SQuAD" not in capsys.readouterr().out
    tasks = [json.loads((tmp_path / name / "task.json").read_text()) for name in "bc"]
    assert [task["may_be_impossible"] for task in tasks] == [False, True]
    rows = [{"question": "who?", "context": "a fox"}]
    answer = load(tmp_path / "b", null_threshold=-1e9).predict(rows)[0]
    assert answer["prediction"] == "" and "null_odds" in answer


def test_choices_without_a_number(tiny_vocabulary, tmp_path):
    task = {"kind": "multiple_choice", **TASKS["multiple_choice"]}
    theirs = written_by_others(tmp_path, task, tiny_vocabulary)
    with pytest.raises(ValueError, match="does not state its number of options"):
        convert(theirs, tmp_path / "b")
