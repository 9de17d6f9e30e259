import dataclasses
import itertools
import json
import os
import random
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data import records, shard_writer, unit_job
from pipelines.data.corpus import read_documents
from pipelines.data.examples import ExampleOptions
from pipelines.data.records import Manifest, SegmentManifest, Shard, Split
from pipelines.data.segments import split_document
from pipelines.data.shard_writer import Range, Settings, TextUnit
from tests.builders import raises_one_line
from tests.pipelines.data.small_records import manifest_of, read_segments, reference_manifest


@pytest.fixture
def manifest() -> SegmentManifest:
    two, three, four = (
        Shard(f"{n}.tfrecord", "text", n + 1, n + 30, n + 700, f"{n:064x}", [0, n + 99])
        for n in (2, 3, 4)
    )
    splits = {"train": Split((two, four)), "heldout": Split((three,))}
    return manifest_of(splits, max_seq_length=128, vocab_sha256="ab" * 32, vocab_size=211)


@pytest.fixture
def job(tmp_path, tiny_corpus, tiny_vocabulary) -> SimpleNamespace:
    output_dir = tmp_path / "records"
    settings = Settings("", str(output_dir), str(tiny_vocabulary), 13, 0.1, 0.2, 12345)
    output_dir.mkdir()
    size = os.path.getsize(tiny_corpus)
    unit = TextUnit("00001-of-00003", size, (Range(str(tiny_corpus), 0, size),), 1, 3)
    write = partial(shard_writer.write_unit, settings=settings)
    return SimpleNamespace(unit=unit, settings=settings, output_dir=output_dir, write=write)


def test_manifest_is_read_as_written(manifest, tmp_path):
    manifest.write(str(tmp_path))
    values = json.loads((tmp_path / "manifest.json").read_text())
    assert values["splits"]["train"]["examples"] == 3 + 5
    assert values["splits"]["heldout"]["pieces"] == 33
    # Of static examples, too.
    reference = reference_manifest(manifest)
    for written, name in ((manifest, "segments"), (reference, "reference")):
        written.write(str(tmp_path))
        assert Manifest.read(str(tmp_path)) == written
        assert json.loads((tmp_path / "manifest.json").read_text())["format"] == name
    assert reference.fingerprint() == manifest.fingerprint()
    # Nothing else is, nor one of another version.
    path = tmp_path / "manifest.json"
    values = {**values, "code_version": "0.2.0", "colour": 1}
    del values["openings_with_order"]
    differs = r"of another version \(0\.2\.0; this code is "
    for text in ("", "{", "[]", "{}", '{"format": "images"}', json.dumps(values)):
        path.write_text(text)
        with pytest.raises(UserError, match=differs if "colour" in text else r"manifest\.json: "):
            Manifest.read(str(tmp_path))
    path.unlink()
    with pytest.raises(ValueError, match=r"no manifest\.json in"):
        Manifest.read(str(tmp_path))


def test_fingerprint_paths_and_mean_length(manifest):
    def with_shards(**changes):
        shards = manifest.splits["train"].shards
        shards = tuple(dataclasses.replace(shard, **changes) for shard in shards)
        splits = {**manifest.splits, "train": Split(shards)}
        return dataclasses.replace(manifest, splits=splits)

    assert with_shards(source="elsewhere").fingerprint() == manifest.fingerprint()
    assert with_shards(sha256="0" * 64).fingerprint() != manifest.fingerprint()
    # 54 pieces, two [CLS] and four [SEP] in two examples, in each of two shards.
    assert with_shards(examples=2, pieces=54).mean_length == 30
    for file, path in (("x", "gs://b/dir/x"), ("/far/x", "/far/x"), ("gs://x", "gs://x")):
        assert with_shards(file=file).paths("gs://b/dir", "train") == [path, path]


def test_check_names_what_does_not_fit(manifest, tmp_path):
    fits = {"sha256": "ab" * 32, "vocab_size": 211, "settings": (True, False, False)}

    def check(length=128, directory=str(tmp_path), **changes):
        manifest.check(directory, SimpleNamespace(**{**fits, **changes}), ExampleOptions(length))

    shards = [*manifest.splits["train"].shards, *manifest.splits["heldout"].shards]
    for shard in shards:
        (tmp_path / shard.file).write_bytes(bytes(shard.bytes))
    check()
    check(512)
    (tmp_path / shards[-1].file).write_bytes(bytes(shards[-1].bytes + 1))
    with pytest.raises(ValueError, match=f"{shards[-1].file} has .* bytes"):
        check()
    for changes, message in (
        ({"sha256": "cd" * 32}, "^the records in 'r' .* another vocabulary"),
        ({"settings": (True, True, False)}, "do_lower_case=True, keep_accents=False"),
        ({"length": 127}, "max_seq_length 128 .* 127"),
    ):
        with pytest.raises(ValueError, match=message):
            check(directory="r", **changes)


def test_a_unit_holds_every_segment_of_its_documents(job):
    marker = job.write(job.unit)
    names = {split: f"{split}-00001-of-00003.tfrecord" for split in ("heldout", "train")}
    assert sorted(os.listdir(job.output_dir)) == [*names.values()]
    tokenizer, source = AlbertTokenizer(job.settings.spm_model_file), job.unit.ranges[0].source
    sentences, documents = list(read_documents(source)), {}
    for offset, group in itertools.groupby(sentences, key=lambda s: s.document_offset):
        texts = [sentence.text for sentence in group]
        pieces = map(tokenizer.encode, texts)
        rng = random.Random(f"12345/{os.path.basename(source)}/{offset}")
        segments = split_document(pieces, 13, 0.1, tokenizer.word_starts(), rng)
        documents[shard_writer.opening_hash(texts[:3]) >> 1] = list(segments)
    sides = {}
    for split, name in names.items():
        found = read_segments([job.output_dir / name])
        shard = Shard(**marker["shards"][split][0])
        assert shard.pieces == sum(len(segment.input_ids) for segment, _ in found)
        assert max(len(segment.input_ids) for segment, _ in found) == 10
        sides[split] = {document for _, document in found}
        expected = [(s, document) for document in sides[split] for s in documents[document]]
        assert sorted(found) == sorted(expected)
        # In random order: neighbours are seldom of one document.
        assert sum(a == b for (_, a), (_, b) in itertools.pairwise(found)) < 0.5 * len(found)
    assert not sides["train"] & sides["heldout"]
    assert sides["train"] | sides["heldout"] == documents.keys()
    assert (marker["documents"], marker["sentences"]) == (60, len(sentences))


def test_a_failing_unit_leaves_nothing_but_its_error(job, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good line of text\n" * 900 + b"\xff\n")
    bad = dataclasses.replace(job.unit, ranges=(*job.unit.ranges, Range(str(path), 0, 99_999)))
    with pytest.raises(ValueError, match=r"bad.txt:901"):
        job.write(bad)
    assert os.listdir(job.output_dir) == []
    unit_job.work_or_error(job.write, str(job.output_dir), "json", bad)
    assert "bad.txt:901" in (job.output_dir / unit_job.ERROR_FILE).read_text()
    # After an error, the units that come later do nothing.
    unit_job.work_or_error(job.write, str(job.output_dir), "json", job.unit)
    assert os.listdir(job.output_dir) == ["units"]


def test_an_opening_is_hashed_without_case_and_spacing():
    openings = [[f"Sentence {n}.", "And another"] for n in range(4000)]
    hashes = [shard_writer.opening_hash(opening, "5") for opening in openings]
    assert np.mean(hashes) / 2**64 == pytest.approx(0.5, abs=4 * (1 / 12 / 4000) ** 0.5)
    near = [[text.upper().replace(" ", "  ") for text in opening] for opening in openings[:50]]
    assert [shard_writer.opening_hash(opening, "5") for opening in near] == hashes[:50]
    assert shard_writer.opening_hash(openings[0], "6") != hashes[0]


def test_a_damaged_shard_is_named(tmp_path, capsys):
    shards = []
    for name in ("a.tfrecord", "b.tfrecord"):
        written = records.write_records(str(tmp_path / name), [b"12345678"] * 3)
        shards.append(Shard(file=name, source="text", pieces=3, **written))
    manifest_of(
        {"train": Split(tuple(shards)), "heldout": Split(())}, vocab_sha256="", vocab_size=1
    ).write(str(tmp_path))
    path = tmp_path / "b.tfrecord"

    def read():
        with records.naming_damaged_shards(str(tmp_path)):
            list(tf.data.TFRecordDataset(str(path)))

    read()
    path.write_bytes(path.read_bytes().replace(b"4", b"5", 1))
    with raises_one_line(r"/b.tfrecord is damaged: its SHA-256 differs .* copy it again, or write"):
        read()
    # An error of another cause comes out.
    shutil.copy(tmp_path / "a.tfrecord", path)
    with pytest.raises(tf.errors.DataLossError), records.naming_damaged_shards(str(tmp_path)):
        raise tf.errors.DataLossError(None, None, "of another file")
    assert "comparing the shards" in capsys.readouterr().err
    for fail, compared in (
        (lambda: records.parse_segments(tf.constant(["garbage"])), True),
        (lambda: tf.reshape([1, 2], [3]), False),
    ):
        error = pytest.raises(tf.errors.InvalidArgumentError)
        with error, records.naming_damaged_shards(str(tmp_path)):
            fail()
        assert ("comparing the shards" in capsys.readouterr().err) == compared
