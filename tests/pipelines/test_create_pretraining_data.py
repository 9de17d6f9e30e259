import gzip
import hashlib
import math
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from pipelines import create_pretraining_data as job
from pipelines.data import shard_writer
from pipelines.data.records import Manifest
from tests.conftest import make_text
from tests.jobs import run
from tests.pipelines.data.small_records import contents, create_records, read_segments


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    (directory / "a.txt").write_text(make_text(31, seed=1), encoding="utf-8")
    (directory / "b.txt").write_text(make_text(17, seed=2), encoding="utf-8")
    return directory


@pytest.fixture
def create(texts, tiny_vocabulary, tmp_path, in_this_process):
    def run(output="records", input_file=f"{texts}/*.txt", shard_bytes=9000, **changes) -> Manifest:
        directory = tmp_path / output
        return create_records(input_file, directory, tiny_vocabulary, shard_bytes, **changes)

    return run


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--run_pieces=22", "--run_pieces=22: a run does not fit into --max_seq_length=24 with 3"),
        ("--output_dir=", "the output directory is '': expected a path"),
    ],
)
def test_refused_flags_leave_no_directory(texts, tiny_vocabulary, tmp_path, flag, message):
    paths = [f"--input_file={texts}/a.txt", f"--spm_model_file={tiny_vocabulary}"]
    paths += ["--max_seq_length=24", f"--output_dir={tmp_path}/records", flag]
    assert f"error: {message}" in run("pipelines.create_pretraining_data", *paths, exit_code=2)[1]
    assert not list(tmp_path.iterdir())


def check_shards(directory, manifest):
    """Holds the manifest's figures of its shards, and that there are no others."""
    shards = manifest.splits["train"].shards + manifest.splits["heldout"].shards
    assert {path.name for path in directory.glob("*.tfrecord")} == {shard.file for shard in shards}
    for shard in shards:
        content = (directory / shard.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
        assert len(read_segments([directory / shard.file])) == shard.examples


def segments_of(directory) -> dict[str, list]:
    """Returns each split's segments with their documents, in an order that is not that of files."""
    manifest = Manifest.read(str(directory))
    paths = {split: manifest.paths(str(directory), split) for split in ("train", "heldout")}
    return {split: sorted(read_segments(of_split)) for split, of_split in paths.items()}


def test_the_manifest_tells_all_and_the_job_is_done_once(
    create, texts, tmp_path, monkeypatch, capsys
):
    manifest = create()
    assert manifest == Manifest.read(str(tmp_path / "records"))
    assert (manifest.documents, manifest.max_seq_length, manifest.seed) == (48, 41, 12345)
    assert manifest.splits["train"].examples > manifest.splits["heldout"].examples > 0
    assert manifest.pieces == sum(split.pieces for split in manifest.splits.values())
    assert manifest.segments == sum(split.examples for split in manifest.splits.values())
    share = round(100 * manifest.segments_with_order / manifest.segments)
    assert 20 < share < 95
    check_shards(tmp_path / "records", manifest)
    shown = capsys.readouterr()
    assert f"; {share} % of the segments can have a sentence-order label" in shown.out
    assert "(100 %)" in shown.err
    before = contents(tmp_path)
    monkeypatch.setattr(job.beam_job, "run", None)
    for path in texts.glob("*"):
        os.utime(path, (2**32, 2**32))
    create()
    assert contents(tmp_path) == before and "modified after" not in shown.out
    shown = capsys.readouterr().out
    assert "finished before" in shown and "a.txt and 1 more modified after" in shown
    # A later version keeps finished records; it does not add to unfinished ones.
    monkeypatch.setattr(job.albert_tf, "__version__", "99.0")
    assert create() == manifest
    assert contents(tmp_path) == before
    (tmp_path / "records/manifest.json").unlink()
    with pytest.raises(ValueError, match=r"code_version '.*' there, '99\.0' here"):
        create()


def test_short_documents_have_an_order_to_learn(create, tmp_path):
    # 100 documents of three to six sentences, all shorter than 60 pieces.
    rng, words = random.Random(3), "the cat saw a dog and it ran off to him".split()
    documents = [
        [" ".join(rng.choices(words, k=rng.randint(2, 4))) + "." for _ in range(rng.randint(3, 6))]
        for _ in range(100)
    ]
    path = tmp_path / "short.txt"
    path.write_text("\n\n".join(map("\n".join, documents)), encoding="utf-8")
    options = {"input_file": path, "max_seq_length": 128}
    assert create("half", short_seq_prob=0.5, **options).openings_with_order > 0.6 * 100
    options["short_seq_prob"] = 0.0
    manifest = create(**options)
    assert manifest.documents == manifest.segments == 100
    assert manifest.openings_with_order == manifest.segments_with_order >= 0.95 * 100
    # Shuffled sentences: the same documents are held out, of the same sentences.
    create("shuffled", shuffle_sentences=True, **options)
    as_read, shuffled = (segments_of(tmp_path / name) for name in ("records", "shuffled"))
    for split in ("train", "heldout"):
        ours, theirs = ({d: s.input_ids for s, d in of[split]} for of in (as_read, shuffled))
        assert ours.keys() == theirs.keys()
        assert all(sorted(ids) == sorted(theirs[d]) for d, ids in ours.items())
        assert sum(ids != theirs[d] for d, ids in ours.items()) > 0.6 * len(ours)
    # Behind a full segment any sentence can open B: every segment of two has a label.
    manifest = create("limited", max_sentences=2, **options)
    segments = sum(segments_of(tmp_path / "limited").values(), [])
    counts = Counter(len(segment.sentence_starts) for segment, _ in segments)
    assert counts.keys() == {1, 2}
    assert manifest.segments_with_order == counts[2] > manifest.openings_with_order == 100


def test_the_size_of_shards_changes_no_record(create, tmp_path):
    few, many = create("few", shard_bytes=10**6), create("many", shard_bytes=999)
    assert len(many.splits["train"].shards) > len(few.splits["train"].shards) == 1
    assert segments_of(tmp_path / "few") == segments_of(tmp_path / "many")


def test_a_unit_may_become_several_shards(create, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MIN_UNIT_BYTES", 3000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress((texts / "a.txt").read_bytes()))
    whole = create("whole", input_file=path)
    monkeypatch.setattr(shard_writer, "_MAX_SHARD_BYTES", 7000)
    parts = create("parts", input_file=path)
    names = [shard.file for shard in parts.splits["train"].shards]
    assert names[:2] == ["train-00000-of-00001.tfrecord", "train-00000-of-00001-0001.tfrecord"]
    assert [shard.file for shard in whole.splits["train"].shards] == names[:1]
    assert segments_of(tmp_path / "parts") == segments_of(tmp_path / "whole")
    check_shards(tmp_path / "parts", parts)
    for split in ("train", "heldout"):
        # As much as fits: a record is smaller than 300 bytes, and takes 16 more on disk.
        for shard in parts.splits[split].shards[:-1]:
            assert 6700 < shard.bytes - 16 * shard.examples <= 7000
    for count in ("pieces", "examples"):
        assert getattr(parts.splits["train"], count) == getattr(whole.splits["train"], count)


def test_units_cover_files_of_any_size():
    units = job.plan_units({"a": 25, "b": 0, "c.gz": 31, "d": 4, "e": 6, "f": 1}, shard_bytes=10)
    assert [unit.bytes for unit in units] == [8, 8, 9, 31, 10, 1]
    assert units[-1].name == "00005-of-00006"
    sources = ["bytes 16 to 25 of a", "bytes 0 to 31 of c.gz", "2 files, d to e"]
    assert [unit.source for unit in units][2:5] == sources
    # Small files are taken together.
    for count, size, shard_bytes, files_per_unit in (
        (100, 100_000, 64_000_000, 5),  # 500 kB at least
        (640, 1_000_000, 64_000_000, 5),  # a 128th of the text
        (10_000, 1_000_000, 64_000_000, 64),  # at most what one worker does at a time
        (100_000, 3, 64_000_000, 100_000),
        (1, 64_000_000_000, 64_000_000, 1 / 1000),
    ):
        units = job.plan_units({f"{n:06d}": size for n in range(count)}, shard_bytes)
        assert len(units) == math.ceil(count / files_per_unit)


def test_small_files_give_the_records_of_a_big_one(create, texts, tmp_path, monkeypatch):
    documents = (texts / "a.txt").read_text(encoding="utf-8").split("\n\n")
    a, b, c, d, e, f, g = (document[:400] for document in documents[:7])
    small = tmp_path / "small"
    small.mkdir()
    copies = [[a, b], [b, c, a.upper()], [d], [c, d, e], [a], [f], ["", " "]]
    for number, some in enumerate(copies):
        (small / f"{number}.txt").write_text("\n\n".join(some), encoding="utf-8")
    (small / "7.txt.gz").write_bytes(gzip.compress(g.encode()))
    (tmp_path / "once.txt").write_text("\n\n".join([a, b, c, d, e, f, g]))
    # Short segments are drawn for each file.
    options = {"short_seq_prob": 0.0, "shard_bytes": 900}
    once = create("once", input_file=tmp_path / "once.txt", **options)
    options.update(input_file=f"{small}/*", remove_duplicates=True)
    manifest = create(**options)
    assert (manifest.documents, manifest.duplicate_documents) == (7, 5)
    assert manifest.sentences == once.sentences
    assert len(list((tmp_path / "records/units").glob("*.json"))) == 8
    assert segments_of(tmp_path / "records") == segments_of(tmp_path / "once")
    # In any order of units, in each of the three passes.
    run, rng = job.beam_job.run, random.Random(3)

    def run_in_any_order(function, units, *rest):
        run(function, rng.sample(units, len(units)), *rest)

    monkeypatch.setattr(job.beam_job, "run", run_in_any_order)
    create("shuffled", **options)
    assert contents(tmp_path / "shuffled") == contents(tmp_path / "records")
