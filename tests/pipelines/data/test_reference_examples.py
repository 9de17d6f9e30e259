"""Static examples: the reference's schema, every segment once a pass, always the same bytes."""

from __future__ import annotations

import collections
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import create_pretraining_data as job
from pipelines.data import reference_job
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset
from pipelines.data.records import Manifest, serialize_segment
from pipelines.data.reference_examples import parse_examples, serialize_examples
from pipelines.data.segments import Segment, has_order
from pipelines.data.shard_writer import Settings
from tests import builders
from tests.conftest import make_text
from tests.pipelines.data.small_records import contents, read_segments

LENGTH, PREDICTIONS, PASSES = 41, 7, 3
OPTIONS = ExampleOptions(LENGTH, PREDICTIONS, seed=99)


@pytest.fixture(scope="module")
def create(tmp_path_factory, tiny_vocabulary):
    """Runs the job over 31 documents in three ranges."""
    text = tmp_path_factory.mktemp("text") / "x.txt"
    text.write_text(make_text(31, seed=1), encoding="utf-8")

    def run(output_dir, options=OPTIONS, dupe_factor=PASSES):
        settings = Settings(
            spm_model_file=str(tiny_vocabulary),
            do_lower_case=True,
            max_seq_length=LENGTH,
            short_seq_prob=0.1,
            heldout_fraction=0.2,
            random_seed=options.seed,
        )
        return job.create_reference_examples(
            input_file=str(text),
            output_dir=str(output_dir),
            settings=settings,
            options=options,
            dupe_factor=dupe_factor,
            shard_bytes=text.stat().st_size // 3 + 1,
            runner="DirectRunner",
            num_workers=1,
            beam_options=[],
        )

    with builders.units_in_this_process():
        yield run


@pytest.fixture(scope="module")
def record_dir(create, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("reference") / "records"
    create(directory)
    return directory


def read_features(paths):
    """Yields each record's features as (kind, values)."""
    for record in tf.data.TFRecordDataset([str(path) for path in paths]).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        yield {
            name: (
                feature.WhichOneof("kind"),
                list(getattr(feature, feature.WhichOneof("kind")).value),
            )
            for name, feature in features.items()
        }


def segments_of(directory, split) -> list[Segment]:
    paths = Manifest.read(str(directory)).paths(str(directory), split)
    return [segment for segment, _ in read_segments(paths)]


def unmask(features):
    """Returns the label and the pieces of both parts, as they were before masking."""
    values = {name: value for name, (_, value) in features.items()}
    ids = list(values["input_ids"])
    for position, piece, weight in zip(
        *(values[f"masked_lm_{n}"] for n in ("positions", "ids", "weights"))
    ):
        if weight:
            ids[position] = piece
    count, types = sum(values["input_mask"]), values["segment_ids"]
    first_sep = count - sum(types) - 1
    return values["next_sentence_labels"][0], ids[1:first_sep], ids[first_sep + 1 : count - 1]


def test_schema_is_the_references(record_dir):
    """Names, types and lengths of the authors' records (128 and 20 there)."""
    pieces = ("input_ids", "input_mask", "segment_ids", "token_boundary")
    expected = dict.fromkeys(pieces, ("int64_list", LENGTH))
    for name in ("masked_lm_positions", "masked_lm_ids"):
        expected[name] = ("int64_list", PREDICTIONS)
    expected["masked_lm_weights"] = ("float_list", PREDICTIONS)
    expected["next_sentence_labels"] = ("int64_list", 1)
    records = list(read_features(record_dir.glob("*.tfrecord")))
    assert len(records) > 200
    for features in records:
        assert {name: (kind, len(values)) for name, (kind, values) in features.items()} == expected


@pytest.mark.parametrize(("split", "passes"), [("train", PASSES), ("heldout", 1)])
def test_every_segment_comes_once_a_pass(record_dir, split, passes):
    segments = segments_of(record_dir / "segments", split)
    # A segment without an order is a single part.
    expected = collections.Counter((repr(s.input_ids), has_order(s)) for s in segments)
    manifest = Manifest.read(str(record_dir))
    found, labels, coins = collections.Counter(), [], []
    for features in read_features(manifest.paths(str(record_dir), split)):
        label, a, b = unmask(features)
        assert a
        found[repr(b + a if label and b else a + b), bool(b)] += 1
        (labels if b else coins).append(label)
    assert found == {segment: passes * count for segment, count in expected.items()}
    assert set(labels) == set(coins) == {0, 1}
    # A label of a pair is drawn, and so is that of a single part, which nothing can tell.
    for drawn in (labels, coins):
        assert abs(np.mean(drawn) - 0.5) < 4 * 0.5 / np.sqrt(len(drawn))


def test_what_has_no_label_is_counted(record_dir, capsys, create):
    alone = {
        split: sum(not has_order(s) for s in segments_of(record_dir / "segments", split))
        for split in ("train", "heldout")
    }
    manifest = Manifest.read(str(record_dir))
    unlabelled = PASSES * alone["train"] + alone["heldout"]
    assert alone["train"] > 3
    assert manifest.drawn_with["unlabelled"] == unlabelled
    create(record_dir)
    assert f"({unlabelled:,} of a single part, with a random label)" in (capsys.readouterr().out)


def test_each_pass_has_an_order_of_its_own(record_dir):
    def passes(name):
        return [list(read_features([record_dir / f"{name}-pass-{n:03d}.tfrecord"])) for n in (0, 1)]

    names = sorted(p.name.split("-pass")[0] for p in record_dir.glob("train-*-pass-000.tfrecord"))
    assert len(names) == 3
    for name in names:
        text = [[repr(sorted(sum(unmask(f)[1:], []))) for f in records] for records in passes(name)]
        assert sorted(text[0]) == sorted(text[1]) and text[0] != text[1]


def test_draws_are_of_seed_pass_and_position(tmp_path, tiny_vocabulary):
    # Of equal segments nothing but the draws can differ.
    (tmp_path / "segments").mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / "segments/train-0.tfrecord")) as writer:
        for _ in range(300):
            writer.write(serialize_segment(Segment(list(range(20, 55)), [0, 9, 17], 0, False), 0))

    def draw(first, pass_number, seed=5):
        unit = reference_job.PassUnit("train-0.tfrecord", 1, "train", first, pass_number)
        options = ExampleOptions(LENGTH, PREDICTIONS, seed=seed)
        reference_job.write_pass(unit, options, str(tiny_vocabulary), True, str(tmp_path))
        records = read_features([tmp_path / f"{unit.name}.tfrecord"])
        return [repr(features["masked_lm_positions"]) for features in records]

    drawn = [draw(0, 0), draw(0, 1), draw(300, 0), draw(0, 0, seed=6)]
    assert draw(0, 0) == drawn[0] and len(drawn[0]) == 300
    for i, one in enumerate(drawn):
        assert sum(a == b for a, b in zip(one, one[256:])) < 5  # draws are for 256 rows at a time
        assert all(sum(a == b for a, b in zip(one, other)) < 20 for other in drawn[:i])


def test_token_boundary_tells_words_of_the_unmasked_text():
    # [CLS] the qui ##ck [SEP] ##ly ran ##ning [SEP], `qui` masked, `ran` replaced by a ##piece.
    cls_id, sep_id, mask_id, the, qui, ck, ly, ran, ning = 2, 3, 4, 10, 11, 12, 13, 14, 15
    word_starts = np.isin(np.arange(19), [the, qui, ran])
    batch = {
        "input_word_ids": [[cls_id, the, mask_id, ck, sep_id, ly, ning, ning, sep_id, 0, 0]],
        "input_mask": [[1] * 9 + [0] * 2],
        "input_type_ids": [[0] * 5 + [1] * 4 + [0] * 2],
        "masked_lm_positions": [[2, 6, 0]],
        "masked_lm_ids": [[qui, ran, 0]],
        "masked_lm_weights": [[1.0, 1.0, 0.0]],
        "sentence_order_labels": [1],
    }
    batch = {name: np.array(value) for name, value in batch.items()}
    (record,) = serialize_examples(
        batch, word_starts, SimpleNamespace(cls_id=cls_id, sep_id=sep_id)
    )
    feature = tf.train.Example.FromString(record).features.feature
    boundary = list(feature["token_boundary"].int64_list.value)
    assert boundary == [1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0]
    assert list(feature["input_ids"].int64_list.value) == batch["input_word_ids"][0].tolist()
    assert list(feature["masked_lm_weights"].float_list.value) == [1, 1, 0]
    assert list(feature["next_sentence_labels"].int64_list.value) == [1]


def test_a_killed_job_resumes(create, record_dir, tmp_path):
    whole = contents(record_dir)
    for name, content in whole.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    # As a killed job leaves it: no manifest, a unit without its marker, unfinished files.
    (tmp_path / "manifest.json").unlink()
    lost = sorted(tmp_path.glob("units/train-*-pass-001.json"))[1]
    lost.unlink()
    (tmp_path / f"{lost.stem}.tfrecord").write_bytes(b"old")
    (tmp_path / f".{lost.stem}.tfrecord.partial-7").write_bytes(b"half")
    before = {path.name: path.stat().st_ino for path in tmp_path.glob("*.tfrecord")}
    create(tmp_path)
    assert contents(tmp_path) == whole
    after = {path.name: path.stat().st_ino for path in tmp_path.glob("*.tfrecord")}
    assert [name for name in whole if before.get(name) != after.get(name)] == [
        f"{lost.stem}.tfrecord"
    ]


def test_without_an_objective_no_label_is_missed(create, tmp_path, capsys):
    options = ExampleOptions(LENGTH, PREDICTIONS, seed=99, sentence_objective="none")
    manifest = create(tmp_path / "records", options, dupe_factor=1)
    segments = segments_of(tmp_path / "records" / "segments", "train")
    assert manifest.splits["train"].examples == len(segments)
    assert manifest.drawn_with["unlabelled"] == 0
    assert "random label" not in capsys.readouterr().out
    for features in read_features(manifest.paths(str(tmp_path / "records"), "train")):
        assert features["next_sentence_labels"] == ("int64_list", [0])
    with pytest.raises(ValueError, match="sentence_objective 'none' there, 'sop' here"):
        create(tmp_path / "records", dupe_factor=1)


def test_what_is_read_is_what_was_drawn(record_dir, tiny_vocabulary):
    """The batches of a static directory: renamed, labels of pairs count, the last batch filled."""
    manifest = Manifest.read(str(record_dir))
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    manifest.check(str(record_dir), tokenizer, OPTIONS)
    written = list(read_features(manifest.paths(str(record_dir), "heldout")))
    dataset = evaluation_dataset(str(record_dir), "heldout", OPTIONS, tokenizer, 13)
    batches = [{k: v.numpy() for k, v in batch.items()} for batch in dataset]
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "input_mask",
        "input_type_ids": "segment_ids",
        "masked_lm_positions": "masked_lm_positions",
        "masked_lm_ids": "masked_lm_ids",
        "masked_lm_weights": "masked_lm_weights",
    }
    for ours, theirs in names.items():
        rows = np.concatenate([batch[ours] for batch in batches])
        expected = [features[theirs][1] for features in written]
        np.testing.assert_array_equal(rows[: len(written)], expected, err_msg=ours)
        assert not rows[len(written) :].any()
    weights = np.concatenate([batch["sentence_order_weights"] for batch in batches])
    is_pair = [float(any(features["segment_ids"][1])) for features in written]
    assert weights.tolist() == is_pair + [0.0] * (len(weights) - len(written))
    assert 0 < sum(is_pair) < len(written)
    records = tf.data.TFRecordDataset(manifest.paths(str(record_dir), "heldout")).batch(999)
    (lengths,) = (parse_examples(r, OPTIONS, with_lengths=True)["length_features"] for r in records)
    count = np.array([sum(features["input_mask"][1]) for features in written])
    len_b = np.array([sum(features["segment_ids"][1]) for features in written])
    assert lengths.numpy().tolist() == np.stack([count - len_b, len_b], axis=1).tolist()
    labels = np.concatenate([batch["sentence_order_labels"] for batch in batches])
    assert labels[: len(written)].tolist() == [f["next_sentence_labels"][1][0] for f in written]


def test_static_examples_are_what_they_are(record_dir, tiny_vocabulary):
    manifest, tokenizer = Manifest.read(str(record_dir)), AlbertTokenizer(str(tiny_vocabulary))

    def check(**changes):
        values = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, **changes}
        manifest.check(str(record_dir), tokenizer, ExampleOptions(**values))

    check(sentence_objective="none")
    for changes, remedy in (
        ({"max_seq_length": 64}, "max_seq_length 41, not 64: give --max_seq_length=41"),
        ({"max_predictions_per_seq": 8}, "give --max_predictions_per_seq=7"),
        ({"sentence_objective": "nsp"}, "give --sentence_objective=sop"),
    ):
        with pytest.raises(ValueError, match=remedy):
            check(**changes)
