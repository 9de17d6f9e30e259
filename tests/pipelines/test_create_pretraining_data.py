import gzip
import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from pipelines import create_pretraining_data as job
from pipelines.data import shard_writer
from pipelines.data.corpus import TextFormat
from pipelines.data.records import Manifest
from pipelines.data.shard_writer import Settings
from tests.conftest import make_text


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Two files of 31 and 17 documents."""
    directory = tmp_path_factory.mktemp("texts")
    (directory / "a.txt").write_text(make_text(31, seed=1), encoding="utf-8")
    (directory / "b.txt").write_text(make_text(17, seed=2), encoding="utf-8")
    return directory


@pytest.fixture
def create(texts, tiny_vocabulary, tmp_path):
    """Runs the job over the texts, with other settings where they are named."""

    def run(
        output="records", input_file=f"{texts}/*.txt", shard_bytes=9000, num_workers=1, **changes
    ) -> Manifest:
        values = {
            "spm_model_file": str(tiny_vocabulary),
            "do_lower_case": True,
            "max_seq_length": 41,
            "short_seq_prob": 0.1,
            "heldout_fraction": 0.2,
            "random_seed": 12345,
            "remove_duplicates": False,
            **changes,
        }
        return job.create_pretraining_data(
            input_file=str(input_file),
            output_dir=str(tmp_path / output),
            settings=Settings(**values),
            shard_bytes=shard_bytes,
            num_workers=num_workers,
        )

    return run


def contents(directory) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


def records(directory, manifest, split) -> bytes:
    return b"".join((directory / shard.file).read_bytes() for shard in manifest.split(split))


def test_manifest_says_what_there_is(create, tmp_path, capsys):
    manifest = create()
    assert manifest == Manifest.read(str(tmp_path / "records"))
    assert (manifest.documents, manifest.max_seq_length, manifest.seed) == (48, 41, 12345)
    assert manifest.splits["train"].examples > manifest.splits["heldout"].examples > 0
    assert manifest.pieces == sum(split.pieces for split in manifest.splits.values())
    shards = manifest.split("train") + manifest.split("heldout")
    for shard in shards:
        content = (tmp_path / "records" / shard.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
    found = {name for name in os.listdir(tmp_path / "records") if name.endswith(".tfrecord")}
    assert found == {shard.file for shard in shards}
    shown = capsys.readouterr()
    assert "2 files" in shown.out and "48 documents" in shown.out
    assert "(100 %)" in shown.err


def test_a_finished_job_is_not_done_again(create, tmp_path, monkeypatch, capsys):
    create()
    before = contents(tmp_path)
    monkeypatch.setattr(job.beam_job, "run", None)
    create()
    assert contents(tmp_path) == before
    assert "finished before" in capsys.readouterr().out


def test_goes_on_after_a_crash(create, tmp_path, monkeypatch):
    create()
    records = tmp_path / "records"
    whole = contents(records)
    # As a killed job leaves it: no manifest, a unit without its marker, unfinished files.
    (records / "manifest.json").unlink()
    lost = "00001-of-00005"
    (records / "units" / f"{lost}.json").unlink()
    (records / f"train-{lost}.tfrecord").write_bytes(b"old")
    (records / f".train-{lost}.tfrecord.partial-123").write_bytes(b"half")
    (records / "units" / f".{lost}.json.partial-123").write_bytes(b"half")
    (records / "units" / "error.txt").write_text("the error of then")
    inodes = {path: path.stat().st_ino for path in records.rglob("[!.]*-of-*")}
    create()
    assert contents(records) == whole
    renewed = {path for path, inode in inodes.items() if path.stat().st_ino != inode}
    assert [path.name for path in renewed] == [f"train-{lost}.tfrecord"]


@pytest.mark.parametrize("remove_duplicates", [False, True])
def test_records_do_not_depend_on_the_order_of_units(
    create, texts, tmp_path, monkeypatch, remove_duplicates
):
    (tmp_path / "copies.txt").write_text((texts / "a.txt").read_text().upper(), encoding="utf-8")
    options = {
        "input_file": f"{texts}/*.txt,{tmp_path}/copies.txt",
        "remove_duplicates": remove_duplicates,
    }
    create("in_order", **options)
    run, rng = job.beam_job.run, random.Random(3)

    def run_in_any_order(function, units, *rest):
        run(function, rng.sample(units, len(units)), *rest)

    monkeypatch.setattr(job.beam_job, "run", run_in_any_order)
    for output in ("shuffled", "shuffled_again"):
        create(output, **options)
        assert contents(tmp_path / output) == contents(tmp_path / "in_order")


def test_duplicates_are_left_out_of_both_splits(create, texts, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    shutil.copytree(texts, corpus)
    documents = (texts / "a.txt").read_text(encoding="utf-8").rstrip().split("\n\n")
    near = [document + "\nOne more." for document in documents[:5]]
    copies = [document.upper().replace(" ", " - ") for document in documents[::2]]
    (corpus / "c.txt").write_text("\n\n".join(near + copies), encoding="utf-8")
    shutil.copy(corpus / "b.txt", corpus / "d.txt")
    manifest = create(input_file=f"{corpus}/*", remove_duplicates=True)
    # Of 31 + 17 + (5 + 16) + 17 documents.
    assert (manifest.documents, manifest.duplicate_documents) == (53, 33)
    assert "53 documents" in capsys.readouterr().out
    assert Manifest.read(str(tmp_path / "records")) == manifest

    # What stays gives the records that it gives alone, in both splits.
    (corpus / "c.txt").write_text("\n\n".join(near), encoding="utf-8")
    (corpus / "d.txt").unlink()
    alone = create("alone", input_file=f"{corpus}/*")
    for split in ("train", "heldout"):
        assert manifest.splits[split].examples > 20
        assert records(tmp_path / "records", manifest, split) == (
            records(tmp_path / "alone", alone, split)
        )
    assert (alone.documents, alone.duplicate_documents) == (53, 0)


def test_the_size_of_shards_changes_no_record(create, tmp_path):
    few, many = create("few", shard_bytes=10**6), create("many", shard_bytes=999)
    assert len(many.split("train")) > len(few.split("train")) == 2
    for split in ("train", "heldout"):
        assert records(tmp_path / "few", few, split) == records(tmp_path / "many", many, split)


def test_what_one_unit_holds_may_become_several_shards(create, texts, tmp_path, monkeypatch):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress((texts / "a.txt").read_bytes()))
    whole = create("whole", input_file=path)
    monkeypatch.setattr(shard_writer, "_MAX_SHARD_BYTES", 7000)
    parts = create("parts", input_file=path)
    # The first has the name that the only one would have.
    assert [shard.file for shard in whole.split("train")] == ["train-00000-of-00001.tfrecord"]
    assert [shard.file for shard in parts.split("train")][:3] == [
        "train-00000-of-00001.tfrecord",
        "train-00000-of-00001-0001.tfrecord",
        "train-00000-of-00001-0002.tfrecord",
    ]
    for split in ("train", "heldout"):
        shards = parts.split(split)
        assert records(tmp_path / "parts", parts, split) == (
            records(tmp_path / "whole", whole, split)
        )
        # As much as fits: a record is smaller than 300 bytes.
        assert all(6700 < shard.bytes <= 7000 for shard in shards[:-1])
        for shard in shards:
            path = tmp_path / "parts" / shard.file
            assert hashlib.sha256(path.read_bytes()).hexdigest() == shard.sha256
            assert path.stat().st_size == shard.bytes
            assert sum(1 for _ in tf.data.TFRecordDataset(str(path))) == shard.examples
    assert parts.splits["train"].pieces == whole.splits["train"].pieces
    assert parts.splits["train"].examples == whole.splits["train"].examples
    assert len(list((tmp_path / "parts").glob("*.tfrecord"))) == sum(
        len(split.shards) for split in parts.splits.values()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 40}, "max_seq_length 41 there, 40 here"),
        ({"random_seed": 1}, "random_seed 12345 there, 1 here"),
        ({"shard_bytes": 8999}, "shard_bytes 9000 there, 8999 here"),
        ({"input_file": "only a"}, "input_file '2 files .*there, '1 files"),
    ],
)
def test_refuses_the_directory_of_another_job(create, texts, changes, message):
    create()
    if "input_file" in changes:
        changes = {"input_file": texts / "a.txt"}
    with pytest.raises(ValueError, match=message):
        create(**changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no text"),
        (b"\n \n\t\r\n", "no text"),
        (b"one\n\ntwo\n\nthr\xe9e\n", r"x.txt:5: byte 0xE9 is not UTF-8"),
        ("text\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_refuses_unusable_text(create, tmp_path, content, message):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        create(input_file=path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "records" / "manifest.json").exists()
    assert not list((tmp_path / "records").glob("**/.*"))


def test_refuses_missing_files(create):
    with pytest.raises(ValueError, match=r"--input_file: no file matches 'nowhere\.txt'"):
        create(input_file="nowhere.txt")


def test_skipping_may_be_decided_later(create, tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\n\ntwo\n\xe9\nthree\n\nfour\n")
    with pytest.raises(ValueError, match="--on_bad_line=skip"):
        create(input_file=path, shard_bytes=5)
    manifest = create(input_file=path, shard_bytes=5, text_format=TextFormat(on_bad_line="skip"))
    assert (manifest.skipped_lines, manifest.documents, manifest.sentences) == (1, 3, 4)


def test_units_cover_files():
    units = job.plan_units({"a": 25, "b": 0, "c.gz": 31, "d": 10}, shard_bytes=10)
    assert [(unit.source, unit.begin, unit.end) for unit in units] == [
        ("a", 0, 8),
        ("a", 8, 16),
        ("a", 16, 25),
        ("c.gz", 0, 31),
        ("d", 0, 10),
    ]
    assert [unit.name for unit in units][-1] == "00004-of-00005"
