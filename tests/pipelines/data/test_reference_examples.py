import collections
import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipelines import create_pretraining_data as job
from pipelines.data import masking, reference_job
from pipelines.data.beam_job import Workers
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset
from pipelines.data.records import Manifest, serialize_segment, write_records
from pipelines.data.reference_examples import parse_examples, serialize_examples
from pipelines.data.segments import Segment, has_order
from pipelines.data.shard_writer import Settings
from tests import builders
from tests.conftest import make_text
from tests.pipelines.data.small_records import read_segments

LENGTH, PREDICTIONS, PASSES = 41, 7, 3
OPTIONS = ExampleOptions(LENGTH, PREDICTIONS, seed=99)


@pytest.fixture(scope="module")
def create(tmp_path_factory, tiny_vocabulary):
    """Runs the job over 31 documents in three ranges."""
    text = tmp_path_factory.mktemp("text") / "x.txt"
    text.write_text(make_text(31, seed=1), encoding="utf-8")

    def run(output_dir, options=OPTIONS, dupe_factor=PASSES):
        where = str(text), str(output_dir), str(tiny_vocabulary)
        values = {"heldout_fraction": 0.2, "random_seed": options.seed}
        values["shard_bytes"] = text.stat().st_size // 3 + 1
        settings = Settings(*where, LENGTH, **values)
        return job.create_reference_examples(settings, options, dupe_factor, Workers())

    with builders.units_in_this_process():
        yield run


@pytest.fixture(scope="module")
def record_dir(create, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("reference") / "records"
    create(directory)
    return directory


def features_of(record):
    features = tf.train.Example.FromString(record).features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    return {n: (kind, list(getattr(features[n], kind).value)) for n, kind in kinds.items()}


def read_features(paths):
    dataset = tf.data.TFRecordDataset([str(path) for path in paths])
    return map(features_of, dataset.as_numpy_iterator())


def segments_of(directory, split) -> list[Segment]:
    paths = Manifest.read(str(directory)).paths(str(directory), split)
    return [segment for segment, _ in read_segments(paths)]


def unmask(features):
    """Returns the label and the pieces of both parts, as they were before masking."""
    values = {name: value for name, (_, value) in features.items()}
    batch = {name: np.array([value]) for name, value in values.items()}
    [ids] = masking.unmask({**batch, "input_word_ids": batch["input_ids"]}).tolist()
    count, types = sum(values["input_mask"]), values["segment_ids"]
    first_sep = count - sum(types) - 1
    return values["next_sentence_labels"][0], ids[1:first_sep], ids[first_sep + 1 : count - 1]


def test_token_boundary_tells_words_of_the_unmasked_text():
    # [CLS] the qui ##ck [SEP] ##ly ran ##ning [SEP], `qui` masked, `ran` replaced by a ##piece.
    the, qui, ck, ly, ran, ning = range(10, 16)
    batch = {
        "input_word_ids": [[2, the, 4, ck, 3, ly, ning, ning, 3, 0, 0]],
        "input_mask": [[1] * 9 + [0] * 2],
        "input_type_ids": [[0] * 5 + [1] * 4 + [0] * 2],
        "masked_lm_positions": [[2, 6, 0]],
        "masked_lm_ids": [[qui, ran, 0]],
        "masked_lm_weights": [[1.0, 1.0, 0.0]],
        "sentence_order_labels": [1],
    }
    batch = {name: np.array(value) for name, value in batch.items()}
    word_starts = np.isin(np.arange(19), [the, qui, ran])
    (record,) = serialize_examples(batch, word_starts, SimpleNamespace(cls_id=2, sep_id=3))
    found = features_of(record)
    assert found["token_boundary"][1] == [1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0]
    assert found["input_ids"][1] == batch["input_word_ids"][0].tolist()
    assert found["masked_lm_weights"][1] == [1, 1, 0]
    assert found["next_sentence_labels"][1] == [1]


def test_every_segment_comes_once_a_pass_in_the_references_schema(record_dir, create, capsys):
    # Names, types and lengths of the authors' records (128 and 20 there).
    pieces = ("input_ids", "input_mask", "segment_ids", "token_boundary")
    schema = {
        **dict.fromkeys(pieces, ("int64_list", LENGTH)),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), ("int64_list", PREDICTIONS)),
        "masked_lm_weights": ("float_list", PREDICTIONS),
        "next_sentence_labels": ("int64_list", 1),
    }
    manifest, unlabelled = Manifest.read(str(record_dir)), 0
    for split, passes in (("train", PASSES), ("heldout", 1)):
        segments = segments_of(record_dir / "segments", split)
        # A segment without an order is a single part.
        expected = collections.Counter((repr(s.input_ids), has_order(s)) for s in segments)
        found, labels, coins = collections.Counter(), [], []
        for features in read_features(manifest.paths(str(record_dir), split)):
            assert {n: (kind, len(values)) for n, (kind, values) in features.items()} == schema
            label, a, b = unmask(features)
            assert a
            found[repr(b + a if label and b else a + b), bool(b)] += 1
            (labels if b else coins).append(label)
        assert found == {segment: passes * count for segment, count in expected.items()}
        # A label of a pair is drawn, and so is that of a single part, which nothing can tell.
        for drawn in (labels, coins):
            assert set(drawn) == {0, 1}
            assert abs(np.mean(drawn) - 0.5) < 4 * 0.5 / np.sqrt(len(drawn))
        unlabelled += len(coins)
    assert manifest.drawn_with["unlabelled"] == unlabelled > 12
    create(record_dir)
    assert f"({unlabelled:,} of a single part, with a random label)" in capsys.readouterr().out


def test_each_pass_has_an_order_of_its_own(record_dir):
    def passes(name):
        return [list(read_features([record_dir / f"{name}-pass-{n:03d}.tfrecord"])) for n in (0, 1)]

    names = {p.name.split("-pass")[0] for p in record_dir.glob("train-*-pass-000.tfrecord")}
    assert len(names) == 3
    for name in names:
        text = [[repr(sorted(sum(unmask(f)[1:], []))) for f in records] for records in passes(name)]
        assert sorted(text[0]) == sorted(text[1]) and text[0] != text[1]


def test_draws_are_of_seed_pass_and_position(tmp_path, tiny_vocabulary):
    # Of equal segments nothing but the draws can differ.
    (tmp_path / "segments").mkdir()
    segment = serialize_segment(Segment(list(range(20, 55)), [0, 9, 17], 0, False), 0)
    write_records(str(tmp_path / "segments/train-0.tfrecord"), [segment] * 300)

    def draw(first, pass_number, seed=5):
        unit = reference_job.PassUnit("pass", 1, "train-0.tfrecord", "train", first, pass_number)
        options = ExampleOptions(LENGTH, PREDICTIONS, seed=seed)
        settings = Settings("", str(tmp_path), str(tiny_vocabulary), LENGTH)
        reference_job.write_pass(unit, settings, options)
        records = read_features([tmp_path / f"{unit.name}.tfrecord"])
        return [features["masked_lm_positions"] for features in records]

    drawn = [draw(0, 0), draw(0, 1), draw(300, 0), draw(0, 0, seed=6)]
    assert draw(0, 0) == drawn[0] and len(drawn[0]) == 300
    for i, one in enumerate(drawn):
        assert sum(a == b for a, b in zip(one, one[256:])) < 5  # draws are for 256 rows at a time
        assert all(sum(a == b for a, b in zip(one, other)) < 20 for other in drawn[:i])


def test_without_an_objective_no_label_is_missed(create, tmp_path, capsys):
    options = ExampleOptions(LENGTH, PREDICTIONS, seed=99, sentence_objective="none")
    manifest = create(tmp_path, options, dupe_factor=1)
    segments = segments_of(tmp_path / "segments", "train")
    assert manifest.splits["train"].examples == len(segments)
    assert manifest.drawn_with["unlabelled"] == 0
    assert "random label" not in capsys.readouterr().out
    for features in read_features(manifest.paths(str(tmp_path), "train")):
        assert features["next_sentence_labels"] == ("int64_list", [0])
    with pytest.raises(ValueError, match="sentence_objective 'none' there, 'sop' here"):
        create(tmp_path, dupe_factor=1)


def test_unfinished_examples_need_the_version_that_began_them(create, tmp_path, monkeypatch):
    manifest = create(tmp_path, dupe_factor=1)
    monkeypatch.setattr(job.albert_tf, "__version__", "99.0")
    assert create(tmp_path, dupe_factor=1) == manifest
    (tmp_path / "manifest.json").unlink()  # the segments stay finished
    with pytest.raises(ValueError, match=r"code_version '.*' there, '99\.0' here"):
        create(tmp_path, dupe_factor=1)


def test_what_is_read_is_what_was_drawn(record_dir, tokenizer):
    """The batches of a static directory: renamed, labels of pairs count, the last batch filled."""
    paths = Manifest.read(str(record_dir)).paths(str(record_dir), "heldout")
    written = [{k: v for k, (_, v) in features.items()} for features in read_features(paths)]
    dataset = evaluation_dataset(str(record_dir), "heldout", OPTIONS, tokenizer, 13)
    batches = list(dataset.as_numpy_iterator())
    read = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    names = ("input_mask", *(f"masked_lm_{part}" for part in ("positions", "ids", "weights")))
    expected = {
        "input_word_ids": [features["input_ids"] for features in written],
        "input_type_ids": [features["segment_ids"] for features in written],
        "sentence_order_weights": [any(features["segment_ids"]) for features in written],
        "sentence_order_labels": [features["next_sentence_labels"][0] for features in written],
        **{name: [features[name] for features in written] for name in names},
    }
    assert 0 < sum(expected["sentence_order_weights"]) < len(written)
    for name, rows in expected.items():
        np.testing.assert_array_equal(read[name][: len(written)], rows, err_msg=name)
        assert not read[name][len(written) :].any() or name == "sentence_order_labels"
    (records,) = tf.data.TFRecordDataset(paths).batch(999)
    lengths = parse_examples(records, OPTIONS, with_lengths=True)["length_features"].numpy()
    sums = [(sum(features["input_mask"]), sum(features["segment_ids"])) for features in written]
    assert lengths.tolist() == [[count - len_b, len_b] for count, len_b in sums]


def test_static_examples_are_what_they_are(record_dir, tokenizer):
    for changes, remedy in (
        ({}, None),
        ({"sentence_objective": "none"}, None),
        ({"max_seq_length": 64}, "max_seq_length 41, not 64: give --max_seq_length=41"),
        ({"max_predictions_per_seq": 8}, "give --max_predictions_per_seq=7"),
        ({"sentence_objective": "nsp"}, "give --sentence_objective=sop"),
        ({"ngram": 1}, "whose masks are fixed, so --ngram=1 has no effect: give --ngram=3$"),
        (
            {"masked_lm_prob": 0.2},
            "--masked_lm_prob=0.2 has no effect: give --masked_lm_prob=0.15$",
        ),
        (
            {"random_token_rate": 0.2},
            "--random_token_rate=0.2 has no effect: give --random_token_rate=0.1$",
        ),
        (
            {"mask_token_rate": 0.9},
            "--mask_token_rate=0.9 has no effect: give --mask_token_rate=0.8$",
        ),
    ):
        options = ExampleOptions(**{**dataclasses.asdict(OPTIONS), **changes})
        refused = pytest.raises(ValueError, match=remedy) if remedy else contextlib.nullcontext()
        with refused:
            Manifest.read(str(record_dir)).check(str(record_dir), tokenizer, options)
