"""GLUE's files in their published layouts, its figures and its submissions."""

from __future__ import annotations

import collections
import gzip
import json

import numpy as np
import pytest

from albert_tf.jobs import program
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.tasks.glue import TASKS, GlueTask

# Names of the columns as published, train and dev first; a dash: not in files without answers.
LAYOUTS = {
    "CoLA": ("-source", "-label", "-star", "sentence"),
    "SST-2": ("sentence", "-label"),
    "MRPC": ("-Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "QQP": ("-id", "-qid1", "-qid2", "question1", "question2", "-is_duplicate"),
    "STS-B": (
        *("index", "genre", "filename", "year", "old_index", "source1", "source2"),
        *("sentence1", "sentence2", "-score"),
    ),
    "MNLI": (
        *("index", "promptID", "pairID", "genre", "sentence1_binary_parse"),
        *("sentence2_binary_parse", "sentence1_parse", "sentence2_parse", "sentence1"),
        *("sentence2", "-label1", "-gold_label"),
    ),
    "QNLI": ("index", "question", "sentence", "-label"),
    "RTE": ("index", "sentence1", "sentence2", "-label"),
    "WNLI": ("index", "sentence1", "sentence2", "-label"),
}
LABELS = {
    "MNLI": ["neutral", "contradiction", "entailment"],
    "QNLI": ["not_entailment", "entailment", "entailment"],
    "RTE": ["not_entailment", "entailment", "entailment"],
    "STS-B": ["5.000", "0.400", "2.5"],
}


def table_of(name):
    return TASKS[task_name(name)]


def task_name(name):
    return name.lower().replace("-", "")


def write_tsv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(row) for row in ([header, *rows] if header else rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_layout(directory, name, stem, rows, has_answers=True, extra=()):
    """Writes rows of (texts, label) as the download has them."""
    table, layout = table_of(name), LAYOUTS[name]
    if has_answers:
        header = [column.lstrip("-") for column in layout]
    else:
        header = [column for column in layout if not column.startswith("-")]
        header = header if header[0] == "index" else ["index", *header]
    # In dev files MNLI has labels of five annotators.
    header = [*header[:-1], *extra, header[-1]]
    lines = []
    for i, (texts, label) in enumerate(rows):
        known = {**dict(zip(table.texts, texts)), table.label: label, "index": str(i)}
        lines.append([known.get(column, f"{column}-{i}") for column in header])
    is_bare = name == "CoLA" and has_answers
    write_tsv(directory / f"{stem}.tsv", None if is_bare else header, lines)


def rows_of(name, words=("One", "Two", "Three")):
    labels = LABELS.get(name, ["1", "0", "0"])
    texts = [(word, f'{word} "pair') for word in words]
    return list(zip(texts, labels))


@pytest.fixture(params=LAYOUTS)
def name(request):
    return request.param


@pytest.fixture
def download(tmp_path, name):
    stems = {"train": True, "dev": True, "test": False}
    if name == "MNLI":
        stems = {"train": True, "dev_matched": True, "dev_mismatched": True}
        stems.update({"test_matched": False, "test_mismatched": False})
        write_tsv(
            tmp_path / "diagnostic" / "diagnostic.tsv",
            ["index", "sentence1", "sentence2"],
            [["0", "a", "b"], ["1", "c", "d"]],
        )
    for stem, has_answers in stems.items():
        extra = ["label2", "label3", "label4", "label5"] if stem.startswith("dev_") else []
        write_layout(tmp_path / name, name, stem, rows_of(name), has_answers, extra)
    return tmp_path


def test_layouts(download, name):
    task = GlueTask(task_name(name), str(download))
    pairs = len(table_of(name).texts) > 1
    labels = LABELS.get(name, ["1", "0", "0"])
    if name == "STS-B":
        labels = [5.0, 0.4, 2.5]
    for data_dir in (download, download / name):
        examples = GlueTask(task_name(name), str(data_dir)).read("train")
        assert [example.text for example in examples] == ["One", "Two", "Three"]
        assert examples[1].text_pair == ('Two "pair' if pairs else None)
        assert [example.label for example in examples] == labels
    dev = task.read("dev")
    parts = ["", "mismatched"] if name == "MNLI" else [""]
    assert [example.part for example in dev] == [part for part in parts for _ in range(3)]
    assert len({example.id for example in dev}) == len(dev)
    others = {"MNLI": ["test_matched", "test_mismatched", "diagnostic"]}.get(name, ["test"])
    assert task.other_splits() == others
    for split in others:
        examples = task.read(split)
        assert {example.label for example in examples} == {None}
        assert [e.text for e in examples] == (
            ["a", "c"] if split == "diagnostic" else ["One", "Two", "Three"]
        )


def test_submissions(download, name, tmp_path):
    task = GlueTask(task_name(name), str(download))
    if name == "STS-B":
        outputs = [np.array([x]) for x in (-0.3, 5.75, 3.14159)]
        answers = ["0.000", "5.000", "3.142"]
    else:
        outputs = [np.eye(len(task.labels))[i] for i in (1, 0, 1)]
        answers = [task.labels[i] for i in (1, 0, 1)]
    outputs = [{"logits": logits} for logits in outputs]
    files = {"MNLI": ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]}.get(name, [f"{name}.tsv"])
    for split, file in zip(task.other_splits(), files):
        examples = task.read(split)
        paths = task.write_predictions(str(tmp_path / "out"), split, examples, examples, outputs)
        assert paths == [str(tmp_path / "out" / f) for f in (f"{split}_predictions.tsv", file)]
        lines = (tmp_path / "out" / file).read_text().splitlines()
        assert lines == ["index\tprediction", *(f"{i}\t{a}" for i, a in enumerate(answers))]
    dev = task.read("dev")
    paths = task.write_predictions(
        str(tmp_path / "out"), "dev", dev, dev, (outputs * 2)[: len(dev)]
    )
    written = ["dev_predictions.tsv"] + ["dev_errors.csv"] * (not task.is_regression)
    assert [path.rsplit("/", 1)[1] for path in paths] == written


def test_figures(download, name):
    task = GlueTask(task_name(name), str(download))
    dev = task.read("dev")
    if name == "STS-B":
        figures = task.score(dev, dev, [{"logits": np.array([x])} for x in (3.0, 1.0, 2.0)])
        assert list(figures) == ["pearson", "spearman"]
        assert task.best_metric == "pearson"
        assert figures["spearman"] == pytest.approx(1)
        return
    # The first is right, the second is not, and so on.
    places = [task.labels.index(example.label) for example in dev]
    said = [place if i % 2 == 0 else place - 1 for i, place in enumerate(places)]
    outputs = [{"logits": np.eye(len(task.labels))[place]} for place in said]
    figures = task.score(dev, dev, outputs)
    expected = {"accuracy": 2 / 3}
    if name in ("MRPC", "QQP"):
        expected["f1"] = 2 / 3  # 1 0 0 taken for 1 1 0
    if name == "CoLA":
        expected["matthews_correlation"] = 0.5
    if name == "MNLI":
        expected["accuracy_mismatched"] = 1 / 3
    assert figures == pytest.approx(expected)
    for metric, (low, high) in task.details(dev, outputs)["intervals"].items():
        assert low <= figures[metric] <= high
    assert task.best_metric == ("matthews_correlation" if name == "CoLA" else "accuracy")


def test_broken_rows_are_left_out_of_qqp_alone(tmp_path, capsys):
    for name in ("QQP", "QNLI"):
        write_layout(tmp_path / name, name, "train", rows_of(name))
        path = tmp_path / name / "train.tsv"
        path.write_text(path.read_text().replace("\tOne\t", "\tOne\n", 1))
    assert [example.text for example in GlueTask("qqp", str(tmp_path)).read("train")] == [
        "Two",
        "Three",
    ]
    assert "2 rows" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"train\.tsv:2: 2 columns, expected 4"):
        GlueTask("qnli", str(tmp_path)).read("train")
    # What is to be predicted has to be predicted.
    write_layout(tmp_path / "QQP", "QQP", "test", rows_of("QQP"), has_answers=False)
    path = tmp_path / "QQP" / "test.tsv"
    path.write_text(path.read_text().replace("\tOne\t", "\tOne\n", 1))
    with pytest.raises(ValueError, match=r"test\.tsv:2: 2 columns, expected 3"):
        GlueTask("qqp", str(tmp_path)).read("test")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"no file of RTE in .*train\.tsv, dev\.tsv, test") as e:
        GlueTask("rte", str(tmp_path)).read("train")
    assert program.is_user_error(e.value)
    write_layout(tmp_path, "RTE", "test", rows_of("RTE"), has_answers=False)
    task = GlueTask("rte", str(tmp_path))
    assert task.read("train") is None
    assert len(task.read("test")) == 3
    assert task.other_splits() == ["test"]


def test_labels_are_in_the_references_order():
    """That of the outputs of its fine-tuned checkpoints."""
    assert TASKS["mnli"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["qnli"].labels == TASKS["rte"].labels == ("entailment", "not_entailment")
    assert TASKS["wnli"].labels == TASKS["sst2"].labels == ("0", "1")


def test_permuted_columns_and_unknown_labels(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("label\tnew\tsentence2\tsentence1\nentailment\t-\tb\ta\nneutral\t-\td\tc\n")
    with pytest.raises(ValueError, match=r":3: unknown label 'neutral'.*'entailment', 'not_ent"):
        GlueTask("rte", str(tmp_path)).read("dev")
    path.write_text("label\tnew\tsentence2\tsentence1\nentailment\t-\tb\ta\n")
    (example,) = GlueTask("rte", str(tmp_path)).read("dev")
    assert (example.text, example.text_pair) == ("a", "b")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "train", "dev", "test"),
    [
        ("CoLA", {"0": 2528, "1": 6023}, {"0": 322, "1": 721}, 1063),
        ("MRPC", {"0": 1194, "1": 2474}, {"0": 129, "1": 279}, 1725),
        (
            "RTE",
            {"entailment": 1249, "not_entailment": 1241},
            {"entailment": 146, "not_entailment": 131},
            3000,
        ),
    ],
)
def test_published_counts(shared, name, train, dev, test):
    task = GlueTask(task_name(name), str(shared / "data" / "glue"))
    for split, counts in (("train", train), ("dev", dev)):
        assert collections.Counter(example.label for example in task.read(split)) == counts
    examples = task.read("test")
    assert len(examples) == test
    assert all(example.text for example in examples)


@pytest.fixture(scope="module")
def golden(shared):
    features = collections.defaultdict(list)
    path = shared / "data" / "golden_features" / "glue_dev_128.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            feature = json.loads(line)
            features[feature["task"].upper()].append(feature)
    return features


@pytest.mark.shared
@pytest.mark.parametrize("name", ["CoLA", "MRPC", "RTE", "SST-2", "STS-B", "QNLI", "WNLI"])
def test_features_equal_the_references(shared, golden, tmp_path, name):
    """All rows, from the files where they are here, else from their texts in the same layout."""
    (model,) = (shared / "data" / "albert_spiece_30k").glob("*.model")
    tokenizer = AlbertTokenizer(str(model))
    features = golden[name.upper()]
    if name in ("CoLA", "MRPC", "RTE"):
        task = GlueTask(task_name(name), str(shared / "data" / "glue"))
        # The reference counts MRPC's header.
        places = [int(f["guid"].removeprefix("dev-")) - (name == "MRPC") for f in features]
    else:
        rows = [((f["text_a"], f["text_b"] or ""), str(f["label"])) for f in features]
        write_layout(tmp_path, name, "dev", rows)
        task, places = GlueTask(task_name(name), str(tmp_path)), range(len(features))
    examples = task.read("dev")
    sequences, _ = task.encode([examples[place] for place in places], tokenizer, 128, False)
    assert len(sequences) == len(features) == 60
    assert list(task.labels) == ([] if name == "STS-B" else features[0]["labels"])
    # No row holds a number that the reference's listed fault splits wrongly (`3.0,`).
    rows = np.split(sequences.pieces, sequences.row_splits[1:-1])
    for feature, row, first_length in zip(features, rows, sequences.first_lengths):
        length = sum(feature["input_mask"])
        assert row.tolist() == feature["input_ids"][:length]
        assert first_length == length - sum(feature["segment_ids"])
    np.testing.assert_allclose(sequences.labels["labels"], [f["label_id"] for f in features])
