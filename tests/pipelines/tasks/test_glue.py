import numpy as np
import pytest

from albert_tf.storage.errors import UserError
from pipelines.tasks.glue import TASKS, GlueTask
from pipelines.tasks.running.fine_tuned import task_of
from pipelines.tasks.task import create_model
from tests.builders import tiny_config
from tests.pipelines.tasks.test_classification import pieces_of

# Names of the columns as published, train and dev first; a dash: not in files without answers.
LAYOUTS = """
CoLA: -source, -label, -star, sentence
SST-2: sentence, -label
MRPC: -Quality, #1 ID, #2 ID, #1 String, #2 String
QQP: -id, -qid1, -qid2, question1, question2, -is_duplicate
STS-B: index, genre, filename, year, old_index, source1, source2, sentence1, sentence2, -score
MNLI: index, promptID, pairID, genre, sentence1_binary_parse, sentence2_binary_parse, \
sentence1_parse, sentence2_parse, sentence1, sentence2, -label1, -gold_label
QNLI: index, question, sentence, -label
RTE: index, sentence1, sentence2, -label
WNLI: index, sentence1, sentence2, -label
"""
LAYOUTS = dict(line.split(": ") for line in LAYOUTS.strip().splitlines())
LAYOUTS = {name: columns.split(", ") for name, columns in LAYOUTS.items()}
LABELS = {
    "MNLI": ["neutral", "contradiction", "entailment"],
    "QNLI": ["not_entailment", "entailment", "entailment"],
    "RTE": ["not_entailment", "entailment", "entailment"],
    "STS-B": ["5.000", "0.400", "2.5"],
}


def task_name(name):
    return name.lower().replace("-", "")


def write_tsv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(row) for row in ([header, *rows] if header else rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_layout(directory, name, stem, rows, has_answers=True, extra=()):
    """Writes rows of (texts, label) as the download has them."""
    table, layout = TASKS[task_name(name)], LAYOUTS[name]
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
        diagnostic = [["0", "a", "b"], ["1", "c", "d"]]
        write_tsv(tmp_path / "MNLI/diagnostic.tsv", LAYOUTS["WNLI"][:3], diagnostic)
    for stem, has_answers in stems.items():
        extra = ["label2", "label3", "label4", "label5"] if stem.startswith("dev_") else []
        write_layout(tmp_path / name, name, stem, rows_of(name), has_answers, extra)
    return tmp_path


def test_layouts(download, name):
    has_pairs = len(TASKS[task_name(name)].texts) > 1
    labels = [5.0, 0.4, 2.5] if name == "STS-B" else LABELS.get(name, ["1", "0", "0"])
    for data_dir in (download, download / name):
        task = GlueTask(task_name(name), str(data_dir))
        examples = task.read("train")
        assert [example.text for example in examples] == ["One", "Two", "Three"]
        assert examples[1].text_pair == ('Two "pair' if has_pairs else None)
        assert [example.label for example in examples] == labels
    dev = task.read("dev")
    parts = ["", "mismatched"] if name == "MNLI" else [""]
    assert [example.part for example in dev] == [part for part in parts for _ in range(3)]
    assert len({example.id for example in dev}) == len(dev)
    assert task.other_splits() == []


def test_predict_reads_files_without_answers_and_writes_what_glue_expects(download, name):
    directory = download / name
    model, _, source = GlueTask(task_name(name), str(directory)).description()
    task = task_of({"task": task_name(name), **model, **source}, {})
    stems = {"MNLI": ["test_matched", "test_mismatched", "diagnostic"]}.get(name, ["test"])
    for stem in stems:
        examples = [*task.read_file(f"{directory}/{stem}.tsv")]
        assert {example.label for example in examples} == {None}
        texts = ["a", "c"] if stem == "diagnostic" else ["One", "Two", "Three"]
        assert [example.text for example in examples] == texts
        outputs = [{"logits": np.eye(len(task.labels) or 1)[0]}] * len(examples)
        columns = task.answers(examples, examples, outputs).columns
        assert [*columns][:2] == ["id", "prediction"]
        assert columns["id"] == [str(place) for place in range(len(texts))], "GLUE's index"
        expected = {"STS-B": 1.0, "MNLI": "contradiction"}
        expected |= dict.fromkeys(("QNLI", "RTE"), "entailment")
        assert columns["prediction"] == [expected.get(name, "0")] * len(texts)


def test_figures_of_both_genres(tmp_path):
    for stem in ("dev_matched", "dev_mismatched"):
        write_layout(tmp_path, "MNLI", stem, rows_of("MNLI"), extra=["label2"])
    task = GlueTask("mnli", str(tmp_path))
    dev = task.read("dev")
    # The first is right, the second is not, and so on.
    places = [task.labels.index(example.label) - i % 2 for i, example in enumerate(dev)]
    answers = task.answers(dev, dev, [{"logits": np.eye(3)[place]} for place in places])
    figures = task.score(answers.rows())
    assert figures == pytest.approx({"accuracy": 2 / 3, "accuracy_mismatched": 1 / 3})
    [(metric, (low, high))] = task.details(dev, answers)["intervals"].items()
    assert metric == task.best_metric == "accuracy" and low <= 2 / 3 <= high
    assert task.intervals(answers.rows()) == {metric: [low, high]}, "of the matched rows"


def test_broken_rows_are_left_out_of_qqp_alone(tmp_path, capsys):
    def read(name):
        write_layout(tmp_path / name, name, "train", rows_of(name))
        path = tmp_path / name / "train.tsv"
        path.write_text(path.read_text().replace("\tOne\t", "\tOne\n", 1))
        return GlueTask(task_name(name), str(tmp_path)).read("train")

    assert [example.text for example in read("QQP")] == ["Two", "Three"]
    assert "2 rows" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"train\.tsv:2: 2 columns, expected 4"):
        read("QNLI")


def test_permuted_columns_unknown_labels_and_files_that_are_not_there(tmp_path):
    task = GlueTask("rte", str(tmp_path))
    with pytest.raises(UserError, match=r"there is no .*train\.tsv'; expected the files of RTE"):
        task.read("train")
    columns = "label\tnew\tsentence2\tsentence1\nentailment\t-\tb\ta\n"
    (tmp_path / "dev.tsv").write_text(columns)
    (example,) = task.read("dev")
    assert (example.text, example.text_pair) == ("a", "b")
    (tmp_path / "dev.tsv").write_text(f"{columns}neutral\t-\td\tc\n")
    with pytest.raises(ValueError, match=r":3: unknown label 'neutral'.*'entailment', 'not_ent"):
        task.read("dev")
    # Labels are in the order of the outputs of the reference's fine-tuned checkpoints. The golden
    # features hold those of the other tasks.
    assert TASKS["mnli"].labels == ("contradiction", "entailment", "neutral")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["CoLA", "MRPC", "RTE", "SST-2", "STS-B", "QNLI", "WNLI"])
def test_features_equal_the_references(shared, golden, spiece_30k, tmp_path, name):
    """All rows, from the files where they are here, else from their texts in the same layout."""
    features = [f for f in golden("glue_dev_128") if f["task"].upper() == name.upper()]
    if name in ("CoLA", "MRPC", "RTE"):
        task = GlueTask(task_name(name), str(shared / "data" / "glue"))
        # The reference counts MRPC's header.
        places = [int(f["guid"].removeprefix("dev-")) - (name == "MRPC") for f in features]
    else:
        rows = [((f["text_a"], f["text_b"] or ""), str(f["label"])) for f in features]
        write_layout(tmp_path, name, "dev", rows)
        task, places = GlueTask(task_name(name), str(tmp_path)), range(len(features))
    examples = task.read("dev")
    sequences, _ = task.encode([examples[place] for place in places], spiece_30k, 128, True)
    assert len(sequences) == len(features) == 60
    assert list(task.labels) == ([] if name == "STS-B" else features[0]["labels"])
    # No row holds a number that the reference's listed fault splits wrongly (`3.0,`).
    for feature, row, first_length in zip(features, pieces_of(sequences), sequences.first_lengths):
        length = sum(feature["input_mask"])
        assert row == feature["input_ids"][:length]
        assert first_length == length - sum(feature["segment_ids"])
    np.testing.assert_allclose(sequences.labels["labels"], [f["label_id"] for f in features])


def test_stsb_starts_at_zero_as_published(tmp_path):
    task = GlueTask("stsb", str(tmp_path))
    task.mean = 2.5
    model = create_model(task, tiny_config())
    model.create_variables()
    task.initialise(model)
    assert model.classifier.output_dense.bias.numpy() == [0]
