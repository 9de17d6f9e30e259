import gzip
import hashlib
import importlib.util
import json
import math
import os
import random
import re
import shutil
import time
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import create_pretraining_data as job
from pipelines.data import shard_writer, text_files, unit_job
from pipelines.data.corpus import TextFormat
from pipelines.data.records import SEGMENT_FEATURES, Manifest
from pipelines.data.shard_writer import Settings, TextUnit
from tests.conftest import make_text
from tests.jobs import run as run_program
from tests.pipelines.data.small_records import contents


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Two files of 31 and 17 documents."""
    directory = tmp_path_factory.mktemp("texts")
    (directory / "a.txt").write_text(make_text(31, seed=1), encoding="utf-8")
    (directory / "b.txt").write_text(make_text(17, seed=2), encoding="utf-8")
    return directory


@pytest.fixture
def create(texts, tiny_vocabulary, tmp_path, in_this_process):
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


def records(directory, manifest, split) -> list[bytes]:
    """Returns the records of a split in an order that is not that of files."""
    paths = manifest.paths(str(directory), split)
    return sorted(tf.data.TFRecordDataset(paths).as_numpy_iterator())


def test_manifest_says_what_there_is(create, tmp_path, capsys):
    manifest = create()
    assert manifest == Manifest.read(str(tmp_path / "records"))
    assert (manifest.documents, manifest.max_seq_length, manifest.seed) == (48, 41, 12345)
    assert manifest.splits["train"].examples > manifest.splits["heldout"].examples > 0
    assert manifest.pieces == sum(split.pieces for split in manifest.splits.values())
    assert manifest.segments == sum(split.examples for split in manifest.splits.values())
    share = round(100 * manifest.segments_with_order / manifest.segments)
    assert 20 < share < 95
    shards = manifest.split("train") + manifest.split("heldout")
    for shard in shards:
        content = (tmp_path / "records" / shard.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
    found = {name for name in os.listdir(tmp_path / "records") if name.endswith(".tfrecord")}
    assert found == {shard.file for shard in shards}
    shown = capsys.readouterr()
    assert "2 files" in shown.out and "48 documents" in shown.out
    assert f"; {share} % of the segments can have a sentence-order label" in shown.out
    assert "(100 %)" in shown.err


@pytest.fixture(scope="module")
def short_documents(tmp_path_factory) -> Path:
    """300 documents of three to six sentences, all shorter than 60 pieces."""
    rng = random.Random(3)
    words = "the cat saw a dog and it ran off to him".split()
    documents = [
        [" ".join(rng.choices(words, k=rng.randint(2, 4))) + "." for _ in range(rng.randint(3, 6))]
        for _ in range(300)
    ]
    path = tmp_path_factory.mktemp("short") / "short.txt"
    path.write_text("\n\n".join("\n".join(d) for d in documents), encoding="utf-8")
    return path


def test_short_documents_have_an_order_to_learn(create, short_documents):
    manifest = create(input_file=short_documents, max_seq_length=128, short_seq_prob=0.0)
    assert manifest.documents == manifest.segments == 300
    assert manifest.segments_with_order >= 0.95 * 300
    assert manifest.openings_with_order == manifest.segments_with_order
    # With shorter targets too, of all segments that have two sentences.
    manifest = create("others", short_documents, max_seq_length=128, short_seq_prob=0.5)
    assert manifest.openings_with_order > 0.6 * 300


def parsed(directory, split) -> dict[int, list[tuple[list[int], list[int]]]]:
    """Returns document -> (pieces, sentence starts) of its segments."""
    found = {}
    for record in records(directory, Manifest.read(str(directory)), split):
        values = tf.io.parse_single_example(record, SEGMENT_FEATURES)
        segment = values["input_ids"].numpy().tolist(), values["sentence_starts"].numpy().tolist()
        found.setdefault(int(values["document_id"]), []).append(segment)
    return found


def test_a_limit_of_sentences(create, short_documents, tmp_path):
    manifest = create(
        input_file=short_documents, max_seq_length=128, short_seq_prob=0.0, max_sentences=2
    )
    segments = [s for found in parsed(tmp_path / "records", "train").values() for s in found]
    assert {len(starts) for _, starts in segments} == {1, 2}
    # Behind a full segment any sentence can open B: every segment of two has a label.
    two = sum(len(starts) == 2 for _, starts in segments)
    two += sum(
        len(starts) == 2
        for found in parsed(tmp_path / "records", "heldout").values()
        for _, starts in found
    )
    assert manifest.segments_with_order == two > manifest.openings_with_order == 300


def test_shuffled_sentences_are_a_control(create, short_documents, tmp_path):
    create(input_file=short_documents, max_seq_length=128, short_seq_prob=0.0)
    create(
        "shuffled", short_documents, max_seq_length=128, short_seq_prob=0.0, shuffle_sentences=True
    )
    for split in ("train", "heldout"):
        as_read = parsed(tmp_path / "records", split)
        shuffled = parsed(tmp_path / "shuffled", split)
        assert as_read.keys() == shuffled.keys()  # the same documents are held out
        moved = 0
        for document, segments in as_read.items():
            ordered = [sorted(pieces) for pieces, _ in segments]
            assert ordered == [sorted(pieces) for pieces, _ in shuffled[document]]
            moved += segments != shuffled[document]
        assert moved > 0.6 * len(as_read)


def test_a_finished_job_is_not_done_again(create, tmp_path, monkeypatch, capsys):
    create()
    before = contents(tmp_path)
    monkeypatch.setattr(job.beam_job, "run", None)
    create()
    assert contents(tmp_path) == before
    assert "finished before" in capsys.readouterr().out


def test_resumes_after_a_crash(create, tmp_path, monkeypatch):
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


def test_it_says_if_nothing_is_held_out(create, capsys):
    create(heldout_fraction=0.001)
    assert "hint: none of the few documents is held out" in capsys.readouterr().out
    create(output="none_asked", heldout_fraction=0.0)
    assert "held out; evaluation" not in capsys.readouterr().out


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
    assert len(many.split("train")) > len(few.split("train")) == 1
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
        # As much as fits: a record is smaller than 300 bytes, and takes 16 more on disk.
        assert all(6700 < shard.bytes - 16 * shard.examples <= 7000 for shard in shards[:-1])
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


def test_refuses_the_directory_of_another_job(create, texts, monkeypatch):
    create()
    for changes, message in (
        ({"max_seq_length": 40}, "max_seq_length 41 there, 40 here"),
        ({"random_seed": 1}, "random_seed 12345 there, 1 here"),
        ({"shard_bytes": 8999}, "shard_bytes 9000 there, 8999 here"),
        ({"input_file": texts / "a.txt"}, "input_file '2 files .*there, '1 files"),
    ):
        with pytest.raises(ValueError, match=message):
            create(**changes)
    # Other code may cut the same files into other units.
    monkeypatch.setattr(job, "_MIN_UNIT_BYTES", 3500)
    with pytest.raises(ValueError, match=r"units '\d+, .*' there, '\d+, .*' here"):
        create()


@pytest.mark.parametrize("input_format", ["sentences", "jsonl"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_plan_is_right_where_the_text_is_not_everywhere_the_same(
    create, tmp_path, monkeypatch, capsys, input_format, suffix
):
    monkeypatch.setattr(job, "_MIN_UNIT_BYTES", 3000)
    # The first third has a piece for almost every byte.
    documents = ["7 # 7 # 7 # 7 # 7 #\n" * 12] * 100
    documents += ["the cat saw a dog and it ran off\n" * 15] * 150
    if input_format == "jsonl":
        documents = [json.dumps({"text": text, "id": "x" * 300}) for text in documents]
    text = ("\n\n" if input_format == "sentences" else "\n").join(documents).encode()
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(gzip.compress(text) if suffix else text)
    monkeypatch.setattr(job, "_GZIP_RATIO", len(text) / path.stat().st_size)
    monkeypatch.setattr(job, "_SAMPLE_COMPRESSED_BYTES", len(text))
    manifest = create(input_file=path, text_format=TextFormat(input_format))
    planned = int(re.search(r"about ([\d,]+) pieces", capsys.readouterr().out)[1].replace(",", ""))
    assert planned == pytest.approx(manifest.pieces, rel=0.08)


@pytest.mark.parametrize("number", [1, 20])
def test_the_plan_reads_little_of_compressed_files(tmp_path, monkeypatch, number):
    """Of one document, too; and beyond the beginning of many."""
    monkeypatch.setattr(job, "_SAMPLE_COMPRESSED_BYTES", 800_000 // number)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 1000)
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"%07d a sentence\n" % i for i in range(100_000))))
    units = [TextUnit(((str(path), 0, 1),), i, number) for i in range(number)]
    places = list(job._sampled_places(units, TextFormat("sentences")))
    assert {len(place) for place in places} == {64}
    assert len(places) == (16 if number == 1 else 4 * 16)
    last = max(int(place[0].text.split()[0]) for place in places)
    assert last == (39_473 if number == 1 else 192)


@pytest.mark.parametrize("name", ["long.txt", "long.txt.gz"])
def test_progress_inside_a_unit(create, tmp_path, monkeypatch, capsys, name):
    text = make_text(120, seed=5).replace("\n\n", "\n").encode()  # one document
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    size = path.stat().st_size
    done = []
    monkeypatch.setattr(unit_job, "_SECONDS_BETWEEN_NOTES", 0)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 4096)
    write = unit_job.files.write_atomically

    def write_and_look(file, content):
        write(file, content)
        if "partial-bytes" in file:
            done.append(int(content))
            time.sleep(0.02)  # the thread of the progress looks meanwhile

    monkeypatch.setattr(unit_job.files, "write_atomically", write_and_look)
    seen = []
    monkeypatch.setattr(
        unit_job.Progress, "update", lambda self, done, detail="": seen.append((done, detail))
    )
    # Three units of plain text: the document begins in the first and ends in the last.
    create(input_file=path, shard_bytes=size // 3 + 1)
    assert max(done) == size and len({number for number, _ in seen}) > 2
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    beyond = [detail for _, detail in seen if "past the end of its unit" in detail]
    assert bool(beyond) == (name == "long.txt")
    assert seen[-1][0] == size and all(number < size for number, detail in seen[:-1] if beyond)
    assert not list((tmp_path / "records").glob("**/.*"))


def test_the_plan_names_files_that_cannot_be_cut(create, texts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job, "_MIN_UNIT_BYTES", 3000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress((texts / "a.txt").read_bytes()))
    create(input_file=f"{path},{texts}/b.txt")
    assert re.search(r"1 compressed files, such as .*a\.txt\.gz, cannot", capsys.readouterr().out)


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
    units = job.plan_units({"a": 25, "b": 0, "c.gz": 31, "d": 4, "e": 6, "f": 1}, shard_bytes=10)
    assert [unit.ranges for unit in units] == [
        (("a", 0, 8),),
        (("a", 8, 16),),
        (("a", 16, 25),),
        (("c.gz", 0, 31),),
        (("d", 0, 4), ("e", 0, 6)),
        (("f", 0, 1),),
    ]
    assert [unit.bytes for unit in units] == [8, 8, 9, 31, 10, 1]
    assert [unit.name for unit in units][-1] == "00005-of-00006"
    assert [unit.source for unit in units][2:5] == [
        "bytes 16 to 25 of a",
        "bytes 0 to 31 of c.gz",
        "2 files, d to e",
    ]


@pytest.mark.parametrize(
    ("count", "size", "shard_bytes", "files_per_unit"),
    [
        (100, 100_000, 64_000_000, 5),  # 500 kB at least
        (640, 1_000_000, 64_000_000, 5),  # a 128th of the text
        (10_000, 1_000_000, 64_000_000, 64),  # at most what one worker does at a time
        (100, 1_000_000, 2_500_000, 1 / 2),
        (50, 2_000_000, 64_000_000, 1 / 3),
        (100_000, 3, 64_000_000, 100_000),
        (1, 30_000_000, 64_000_000, 1 / 60),  # work for 30 cores
        (1, 5_000_000_000, 64_000_000, 1 / 128),
        (1, 64_000_000_000, 64_000_000, 1 / 1000),
    ],
)
def test_small_files_are_taken_together(count, size, shard_bytes, files_per_unit):
    units = job.plan_units({f"{n:06d}": size for n in range(count)}, shard_bytes)
    assert {len(unit.ranges) for unit in units[:-1]} <= {max(files_per_unit, 1)}
    assert len(units) == math.ceil(count / files_per_unit)
    assert max(unit.bytes for unit in units) <= shard_bytes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12), st.integers(1, 30))
def test_no_byte_is_left_out_or_done_twice(files, shard_bytes):
    sizes = {f"{n}.{'gz' if packed else 'txt'}": size for n, (size, packed) in enumerate(files)}
    units = job.plan_units(sizes, shard_bytes)
    # In the order of files, each of which is read from its first byte to the last.
    left = list(sizes.items())
    at = 0
    for path, begin, end in (part for unit in units for part in unit.ranges):
        while at == left[0][1]:
            left.pop(0)
            at = 0
        assert (path, begin) == (left[0][0], at) and begin < end
        assert end == left[0][1] or not path.endswith("gz")
        at = end
    assert at == sum(size for _, size in left)
    assert all(unit.bytes <= shard_bytes or len(unit.ranges) == 1 for unit in units)
    assert [unit.index for unit in units] == list(range(len(units)))


def texts_of(directory, manifest) -> list:
    """Returns what the records of both splits hold, but for the files that it came from."""
    found = []
    for split in ("train", "heldout"):
        for record in records(directory, manifest, split):
            values = tf.io.parse_single_example(record, SEGMENT_FEATURES)
            found.append((split, {k: v.numpy().tolist() for k, v in sorted(values.items())}))
    return sorted(found, key=repr)


def test_many_small_files_give_the_records_of_a_big_one(create, texts, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    documents = (texts / "a.txt").read_text(encoding="utf-8").split("\n\n")
    # One document or three a file, some of them compressed, one without text.
    parts = [documents[i : i + 1 + 2 * (i % 2)] for i in (0, 1, 4, 5, 8, 9)] + [documents[12:]]
    for number, part in enumerate(parts):
        content = "\n\n".join(part).encode()
        if number % 3 == 1:
            (small / f"{number}.txt.gz").write_bytes(gzip.compress(content))
        else:
            (small / f"{number}.txt").write_bytes(content)
    (small / "3b.txt").write_bytes(b"\n \n")
    # Short segments are drawn for each file.
    options = {"short_seq_prob": 0.0}
    one = create("one", input_file=texts / "a.txt", shard_bytes=10**6, **options)
    many = create("many", input_file=f"{small}/*", shard_bytes=10**6, **options)
    assert (one.documents, one.sentences) == (
        many.documents,
        many.sentences,
    ) and one.documents == 31
    assert [shard.source for shard in many.split("train")] == [
        f"8 files, {small}/0.txt to {small}/6.txt"
    ]
    assert texts_of(tmp_path / "one", one) == texts_of(tmp_path / "many", many)


@pytest.mark.parametrize(("shard_bytes", "units"), [(10**6, 1), (900, 7)])
def test_duplicates_among_small_files(create, texts, tmp_path, shard_bytes, units):
    documents = (texts / "a.txt").read_text(encoding="utf-8").split("\n\n")[:6]
    a, b, c, d, e, f = (document[:400] for document in documents)
    small = tmp_path / "small"
    small.mkdir()
    copies = {"0": [a, b], "1": [b, c, a.upper()], "2": [d], "3": [c, d, e], "4": [a], "5": [f]}
    for name, some in copies.items():
        (small / f"{name}.txt").write_text("\n\n".join(some), encoding="utf-8")
    options = {"short_seq_prob": 0.0, "shard_bytes": shard_bytes}
    manifest = create(input_file=f"{small}/*", remove_duplicates=True, **options)
    assert len(list((tmp_path / "records/units").glob("*.json"))) == units
    assert (manifest.documents, manifest.duplicate_documents) == (6, 5)
    (tmp_path / "once.txt").write_text("\n\n".join([a, b, c, d, e, f]), encoding="utf-8")
    once = create("once", input_file=tmp_path / "once.txt", **options)
    assert texts_of(tmp_path / "records", manifest) == texts_of(tmp_path / "once", once)


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        ("DataflowRunner", r"needs apache-beam\[gcp\] .*pip install 'albert_tf\[dataflow\]'"),
        ("no.such.Runner", "No module named 'no'; expected a runner of Apache Beam, or MODULE"),
    ],
)
def test_a_runner_that_is_not_installed(texts, tiny_vocabulary, tmp_path, runner, message):
    if runner == "DataflowRunner" and importlib.util.find_spec("google.api_core"):
        pytest.skip("apache-beam[gcp] is installed")
    _, err = run_program(
        "pipelines.create_pretraining_data",
        f"--input_file={texts}/a.txt",
        f"--spm_model_file={tiny_vocabulary}",
        f"--output_dir={tmp_path}/records",
        f"--runner={runner}",
        exit_code=2,
    )
    assert re.fullmatch(rf"error: --runner={runner}.*{message}.*", err.splitlines()[-1]), err
