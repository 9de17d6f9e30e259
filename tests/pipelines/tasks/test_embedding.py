"""Embeddings: losses, forms of data, ranks, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.losses import ranking_losses, score_losses
from pipelines.tasks import embedding
from pipelines.tasks.embedding import EmbeddingTask
from pipelines.tasks.reading import tables
from pipelines.tasks.scoring.embeddings import ranks, vectors_of_words
from pipelines.training.settings import LoopSettings
from tests.builders import raises_one_line, run_task, write_json_lines
from tests.conftest import WORDS
from tests.jobs import log
from tests.replicas import mirrored


def unit(*shape, seed=1):
    vectors = np.random.default_rng(seed).normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def plain_ranking_loss(vectors, texts, temperature):
    """The definition, one pair of texts at a time."""
    number, total = len(vectors), 0.0
    cosine = {
        (a, b): vectors[a[0], a[1]] @ vectors[b[0], b[1]] / temperature
        for a in np.ndindex(vectors.shape[:2])
        for b in np.ndindex(vectors.shape[:2])
    }
    for own in range(number):
        first, second = texts[own][:2]
        others = [
            j for j in range(number) if j != own and texts[j][0] != first and texts[j][1] != second
        ]
        of_second = [cosine[(own, 0), (j, 1)] for j in others if texts[j][1] != first]
        of_second += [
            cosine[(own, 0), (j, 2)]
            for j in range(number)
            if len(texts[j]) == 3 and texts[j][2] not in (first, second)
        ]
        of_first = [cosine[(own, 1), (j, 0)] for j in others if texts[j][0] != second]
        right = cosine[(own, 0), (own, 1)]
        for logits in (of_second, of_first):
            total += np.log(np.exp([right, *logits]).sum()) - right
    return total / 2 / number


@pytest.mark.parametrize(
    "texts",
    [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0, 0], [1, 1], [0, 0], [2, 2]],  # plain text, one text twice
        [[0, 1], [0, 2], [3, 1], [2, 4]],  # a common first, a common second, first as a second text
        [[0, 1, 2], [3, 4, 5], [6, 7, 1], [8, 9, 6]],
    ],
)
def test_ranking_losses(texts):
    vectors = unit(4, len(texts[0]), 5)
    found = ranking_losses(tf.constant(vectors), tf.constant(texts))
    assert np.mean(found) == pytest.approx(plain_ranking_loss(vectors, texts, 0.05), rel=1e-5)


def test_score_losses():
    vectors, scores = unit(5, 2, 6), np.array([0.5, 3, 3, 5, 1], np.float32)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=1)
    higher = np.argwhere(scores[:, None] > scores)
    terms = [np.exp((cosines[j] - cosines[i]) / 0.05) for i, j in higher]
    found = score_losses(tf.constant(vectors), tf.constant(scores)).numpy()
    np.testing.assert_allclose(found, [np.log(1 + sum(terms))] * 5, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (ranking_losses, np.array([[0, 1], [2, 3], [0, 4], [5, 3]], np.int32)),
        pytest.param(score_losses, np.array([1, 2, 2, 3], np.float32), marks=pytest.mark.slow),
    ],
)
def test_two_replicas_equal_one(loss, labels):
    vectors = unit(4, 2, 6)

    def gradient(vectors, labels):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            losses = loss(vectors, labels)
            total = tf.reduce_sum(losses) / 4
        return losses, tape.gradient(total, vectors)

    expected = gradient(tf.constant(vectors), tf.constant(labels))

    def of_replica():
        begin = 2 * tf.distribute.get_replica_context().replica_id_in_sync_group
        return gradient(*(tf.constant(x)[begin : begin + 2] for x in (vectors, labels)))

    strategy = mirrored()
    found = strategy.run(tf.function(of_replica))
    for ours, theirs in zip(found, expected):
        parts = strategy.experimental_local_results(ours)
        # A loss is a difference of numbers near 20, each rounded to 2e-6 (1.9e-6 on an EPYC).
        np.testing.assert_allclose(np.concatenate(parts), theirs, rtol=2e-5, atol=5e-6)


def test_ranks():
    texts = [("a", "x"), ("b", "y"), ("a", "z"), ("c", "x"), ("d", "w")]
    first, second = unit(5, 6), unit(5, 6, seed=2)
    second[3] = second[0]
    found = ranks(first, second, texts)
    for row, (one, other) in enumerate(texts):
        partners = {b for a, b in texts if a == one} - {other}
        others = {b: second[[t[1] for t in texts].index(b)] for _, b in texts}
        cosines = {b: first[row] @ v for b, v in others.items() if b not in partners}
        assert found[row] == 1 + sum(c > cosines[other] for c in cosines.values())
    assert ranks(first * np.nan, second, texts).min() > 4  # not the best one
    vectors = vectors_of_words(["a b", "b c", "d", "e", "d", "d"])["words in common"]
    vectors = vectors[::2], vectors[1::2]
    cosines = (vectors[0] @ vectors[1].T).toarray().round(3).tolist()
    assert cosines == [[0.5, 0, 0], [0, 0, 1], [0, 0, 1]]
    # The second pair has no word in common: its text ties with the third one.
    assert ranks(*vectors, [("a b", "b c"), ("d", "e"), ("f", "d")]).tolist() == [1, 2.5, 1]


PAIRS = [
    {"text": f"{a} {b}", "second": f"{b} {a} now"[i % 3 * 2 :], "score": i % 5, "no": "far away"}
    for i, (a, b) in enumerate(zip(WORDS, WORDS[7:]))
]


PAIR = ("text", "second")


def make_task(directory, dev=PAIR, train=PAIR, columns=None, rows=PAIRS):
    files = {}
    for split, names, part in (("train", train, rows[:30]), ("dev", dev, PAIRS[30:])):
        if names:
            kept = [{name: row[name] for name in names} for row in part]
            files[split] = write_json_lines(directory / f"{split}.jsonl", kept)
    return EmbeddingTask("embedding", files, {"text_pair": "second", **(columns or {})})


SCORE, NEGATIVE = {"label": "score"}, {"negative": "no"}
SCORED = (*PAIR, "score")
WITH_NEGATIVE = (*PAIR, "no")


@pytest.mark.parametrize(
    ("train", "dev", "columns", "texts", "metric"),
    [
        (SCORED, SCORED, SCORE, 2, "spearman"),
        (WITH_NEGATIVE, PAIR, NEGATIVE, 3, "mrr_at_10"),
        (("text",), SCORED, SCORE, 2, "spearman"),
        (PAIR, SCORED, SCORE, 2, "spearman"),
    ],
)
def test_forms(tmp_path, monkeypatch, train, dev, columns, texts, metric):
    opened = []

    def read(path, quoting):
        opened.append(path)
        return tables.column_names(path, quoting)

    monkeypatch.setattr(embedding, "column_names", read)
    task = make_task(tmp_path, dev, train, columns)
    examples = task.read("train")
    assert [len([*e.texts()]) for e in examples] == [texts] * 30
    assert task.summarise(examples)[0].endswith("with a hard negative") == (texts == 3)
    assert examples[0].is_answered == ("score" in train) and task.best_metric == metric
    assert task.hidden_dropout_prob == (None if "second" in train else 0.1)
    assert [len([*e.texts()]) for e in task.read("dev")] == [2] * len(PAIRS[30:])
    assert sorted(opened) == sorted({*opened}), "each file is opened once for its columns"


def test_refusals(tmp_path):
    for arguments, error in (
        ({"columns": {"text_pair": "secnd"}}, "no field 'secnd'"),
        ({"columns": {"label": "scor"}}, "no field 'scor'"),
        ({"columns": NEGATIVE}, "no field 'no'"),
        ({"train": ("text",), "dev": ()}, "no field 'second'"),
        ({"dev": ("text",)}, "no field 'second'"),
        ({"rows": [{"text": t, "second": "same"} for t in WORDS]}, "'second' is the same in all"),
    ):
        task = make_task(tmp_path, **arguments)
        with raises_one_line(error):
            examples = [task.read(split) for split in task.files]
            task.encode(examples[0], None, 16, True)


def test_objections(tmp_path, pretrained):
    task = make_task(tmp_path, SCORED, ("text",), SCORE)
    for settings, error in (
        ({"gradient_accumulation_steps": 2}, "--gradient_accumulation_steps: the loss of emb"),
        ({"global_batch_size": 1}, "--global_batch_size=1: embeddings compare"),
        ({"freeze_encoder": True}, "--freeze_encoder"),
        ({"hidden_dropout_prob": 0.0}, "--hidden_dropout_prob=0: without dropout"),
    ):
        with raises_one_line(error):
            run_task(task, pretrained, tmp_path / "out", **settings)


def test_notes_of_rows(tmp_path):
    rows = [{**row, "second": row["text"]} for row in PAIRS[:2]] + PAIRS[2:]
    rows[5] = {**rows[5], "text": " "}
    task = make_task(tmp_path, rows=rows)
    assert task.summarise(task.read("train")) == [
        "pairs that belong together, 30 different second texts",
        "warning: 2 pairs of equal texts: there is nothing to learn",
        "warning: 1 rows with an empty text",
    ]
    for row in ({"rank": 2.0}, {"label": 1.0, "prediction": 0.5}):  # no interval of one row
        assert task.score([row]) and task.intervals([row]) == {}


def check_training(task, pretrained, directory, **changes):
    """Returns the best metric on dev: of the model, and of each baseline."""
    summary = run_task(task, pretrained, directory, baselines=None, max_seq_length=16, **changes)
    metric, baselines = task.best_metric, summary["dev"]["baselines"]
    assert [*baselines] == ["words in common", "TF-IDF", "untrained"]
    figures = {name: found["metrics"][metric] for name, found in baselines.items()}
    for name, found in baselines.items():
        low, high = found["intervals"][metric]
        assert low < figures[name] < high
    return summary["dev"]["median"][metric], figures


def test_training_with_controls(tmp_path, pretrained, eager):
    task = make_task(tmp_path, SCORED, SCORED, SCORE)
    loop = LoopSettings(steps_per_loop=2, save_checkpoint_steps=2, eval_steps=2)
    changes = {"num_train_steps": 2, "num_warmup_steps": 1, "loop": loop}
    found, baselines = check_training(task, pretrained, tmp_path / "out", **changes)
    assert found != baselines["untrained"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "dev"),
    [(SCORED, SCORED), (PAIR, PAIR), (WITH_NEGATIVE, PAIR), (("text",), SCORED)],
)
def test_training_of_all_forms(tmp_path, pretrained, train, dev):
    columns = {**(SCORE if "score" in dev else {}), **(NEGATIVE if "no" in train else {})}
    task = make_task(tmp_path, dev, train, columns)
    check_training(task, pretrained, tmp_path / "out", num_train_steps=40)
    losses = [entry["loss"] for entry in log(tmp_path / "out/seed_1") if "loss" in entry]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("names", [PAIR, SCORED])
def test_two_replicas_train_as_one(tmp_path, pretrained, names):
    task = make_task(tmp_path, names, names, SCORE if names == SCORED else {})
    losses = []
    for strategy in (mirrored(), tf.distribute.OneDeviceStrategy("/cpu:0")):
        directory = tmp_path / str(len(losses))
        loop = LoopSettings(steps_per_loop=1, save_checkpoint_steps=12, eval_steps=0)
        settings = {"num_train_steps": 12, "hidden_dropout_prob": 0.0, "loop": loop}
        run_task(task, pretrained, directory, strategy=strategy, **settings)
        losses.append([e["loss"] for e in log(directory / "seed_1") if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 12
