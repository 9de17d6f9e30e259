"""The jobs with gs:// in and out, on TensorFlow's own file system and a store in memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal

import pytest

from tests.builders import finetune_flags, write_sentences
from tests.jobs import pretrain_flags, record_flags, run
from tests.object_store import Rule

STEPS = ["--num_train_steps=4", "--save_checkpoint_steps=2"]


def kill():
    """Kills the programs that jobs.run started; the request that does so has no effect."""
    kill_after()
    raise ConnectionResetError


def kill_after():
    """The same, but the request had its effect."""
    for process in multiprocessing.active_children():
        # Not joined: two threads that wait for one process take its exit code from each other.
        os.kill(process.pid, signal.SIGKILL)


def assert_same_records(store, work):
    records = {path.name: path.read_bytes() for path in (work / "records").glob("*.tfrecord")}
    found = store.under("bucket/records/")
    assert {name: data for name, data in found.items() if "tfrecord" in name} == records


def unfinished(store):
    """Returns what a job may leave while it runs, but not at its end."""
    return [name for name in store.objects if re.search(r"partial|_temp|\.lock|error\.txt", name)]


def download(store, prefix, directory):
    for name, data in store.under(prefix).items():
        path = directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def test_vocabulary_and_records_in_remote_places(work, store):
    """They are those of local places, byte for byte, also after a kill in an upload.

    Nothing unfinished is left.
    """
    store.upload(work / "corpus.txt", "bucket/corpus/corpus.txt")
    run(
        "pipelines.train_vocab",
        "--input_file=gs://bucket/corpus/*.txt",
        "--output_prefix=gs://bucket/vocabulary",
        "--vocab_size=83",
    )
    vocabulary = store.objects["bucket/vocabulary.model"]
    assert vocabulary == (work / "vocabulary.model").read_bytes()
    flags = record_flags(
        "gs://bucket", "gs://bucket/records", "--input_file=gs://bucket/corpus/*.txt"
    )
    store.rules.append(Rule("write", name="tfrecord", after=1, call_after=kill_after))
    run("pipelines.create_pretraining_data", *flags, exit_code=-9)
    assert "bucket/records/manifest.json" not in store.objects
    run("pipelines.create_pretraining_data", *flags)
    assert_same_records(store, work)
    assert "finished before" in run("pipelines.create_pretraining_data", *flags)[0]
    assert unfinished(store) == []


@pytest.mark.slow
def test_evaluation_and_export_in_remote_places(work, store):
    store.upload(work / "records", "bucket/records")
    run("pipelines.pretrain", *pretrain_flags(work, "gs://bucket/run"), *STEPS)
    run("pipelines.evaluate", "--checkpoint=gs://bucket/run", "--record_dir=gs://bucket/records")
    flags = ("--checkpoint=gs://bucket/run", "--output=gs://bucket/export")
    out, _ = run("export.export_saved_model", *flags)
    assert "verified" in out
    assert "exported before" in run("export.export_saved_model", *flags)[0]
    answer, _ = run("export.ask", "--saved_model=gs://bucket/export", "--fill_mask=the [MASK] fox")
    assert answer
    assert {name.split("/")[2] for name in store.objects if "bucket/export/" in name} == {"1"}
    assert unfinished(store) == []


def assert_same_files(store, prefix, directory, but=r"\0"):
    """Asserts that the objects of a prefix are the files of a directory, byte for byte."""
    local = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not re.search(but, str(path))
    }
    remote = {n: data for n, data in store.under(f"{prefix}/").items() if not re.search(but, n)}
    assert remote.keys() == local.keys()
    assert [name for name in local if remote[name] != local[name]] == []


@pytest.mark.slow
def test_static_examples_in_remote_places(work, store, tmp_path):
    """Written in the reference's format, indexed, and shown."""
    static = ("--format=reference", "--dupe_factor=2", "--max_predictions_per_seq=5")
    for name in ("corpus.txt", "vocabulary.model"):
        store.upload(work / name, f"bucket/{name}")
    module = "pipelines.create_pretraining_data"
    run(module, *record_flags(work, tmp_path / "static", *static))
    run(module, *record_flags("gs://bucket", "gs://bucket/static", *static))
    assert_same_files(store, "bucket/static", tmp_path / "static", "json$")
    for place, output in ((tmp_path, tmp_path), ("gs://bucket", "gs://bucket")):
        run(
            "pipelines.index_records",
            f"--input_file={place}/static/train*.tfrecord",
            f"--heldout_file={place}/static/heldout*.tfrecord",
            f"--spm_model_file={place if output != tmp_path else work}/vocabulary.model",
            f"--output_dir={output}/indexed",
            "--num_workers=1",
        )
    assert "bucket/indexed/manifest.json" in store.objects
    shown, _ = run(
        "pipelines.show_records",
        "--record_dir=gs://bucket/indexed",
        "--spm_model_file=gs://bucket/vocabulary.model",
        "--num_examples=2",
    )
    assert "example 2: label" in shown
    assert unfinished(store) == []


@pytest.mark.slow
def test_fine_tuning_and_prediction_in_remote_places(work, store, tmp_path):
    """Scores and predictions are those of local places."""
    run("pipelines.pretrain", *pretrain_flags(work, tmp_path / "run"), *STEPS)
    store.upload(tmp_path / "run", "bucket/run")
    write_sentences(tmp_path, train=61, dev=37)
    for split in ("train", "dev"):
        store.upload(tmp_path / f"{split}.tsv", f"bucket/{split}.tsv")
    for place in (tmp_path, "gs://bucket"):
        flags = finetune_flags(place, f"{place}/run")
        run("pipelines.finetune", *flags, f"--output_dir={place}/tuned")
        run(
            "pipelines.predict",
            f"--model={place}/tuned",
            f"--input_file={place}/dev.tsv",
            f"--output_file={place}/labelled.csv",
        )
    results = json.loads(store.objects["bucket/tuned/results.json"])
    assert results == json.loads((tmp_path / "tuned/results.json").read_text())
    assert store.objects["bucket/labelled.csv"] == (tmp_path / "labelled.csv").read_bytes()
    assert unfinished(store) == []
