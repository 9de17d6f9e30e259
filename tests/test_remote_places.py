"""The jobs with gs:// in and out, on TensorFlow's own file system and a store in memory."""

import json
import multiprocessing
import os
import re
import signal

import pytest

from tests.builders import table_flags
from tests.jobs import bytes_of_weights, pretrain_flags, run
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


def upload_inputs(work, store):
    for name in ("corpus.txt", "config.json", "vocabulary.model", "records"):
        store.upload(work / name, f"bucket/{name}")


def unfinished(store):
    """Returns what a job may leave while it runs, but not at its end."""
    return [name for name in store.objects if re.search(r"partial|_temp|\.lock|error\.txt", name)]


def download(store, prefix, directory):
    for name, data in store.under(prefix).items():
        path = directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


@pytest.mark.slow
def test_evaluation_and_export_in_remote_places(work, store):
    store.upload(work / "corpus.txt", "bucket/corpus.txt")
    corpus = "--input_file=gs://bucket/corpus.txt", "--vocab_size=83"
    run("pipelines.train_vocab", *corpus, "--output_prefix=gs://bucket/vocabulary")
    assert store.objects["bucket/vocabulary.model"] == (work / "vocabulary.model").read_bytes()
    store.upload(work / "records", "bucket/records")
    store.rules.append(Rule("start", name=r"curves\.png", times=None, code=403))
    _, err = run("pipelines.pretrain", *pretrain_flags(work, "gs://bucket/run"), *STEPS)
    assert "the curves are not stored, the run is whole" in err
    run("pipelines.evaluate", "--checkpoint=gs://bucket/run", "--record_dir=gs://bucket/records")
    flags = ("--checkpoint=gs://bucket/run", "--output=gs://bucket/export")
    out, _ = run("export.export_saved_model", *flags)
    assert "verified" in out
    assert "exported before" in run("export.export_saved_model", *flags)[0]
    answer, _ = run("export.ask", "--saved_model=gs://bucket/export", "--text=the [MASK] fox")
    assert answer
    assert {name.split("/")[2] for name in store.objects if "bucket/export/" in name} == {"1"}
    assert unfinished(store) == []


@pytest.mark.slow
def test_fine_tuning_in_remote_places(work, store, table, tmp_path):
    run("pipelines.pretrain", *pretrain_flags(work, tmp_path / "run"), *STEPS)
    store.upload(tmp_path / "run", "bucket/run")
    store.upload(table, "bucket")
    for place, tables in ((tmp_path, table), ("gs://bucket", "gs://bucket")):
        run("pipelines.finetune", *table_flags(tables, f"{place}/run", f"{place}/tuned"))
    results = json.loads(store.objects["bucket/tuned/results.json"])
    assert results == json.loads((tmp_path / "tuned/results.json").read_text())
    assert unfinished(store) == []


@pytest.mark.slow
def test_a_conversion_is_killed_repeated_and_read_back(store, pretrained, tmp_path):
    store.upload(pretrained, "bucket/model")
    module, form = "pipelines.convert_checkpoint", "--output_format=huggingface"
    command = (module, "--input=gs://bucket/model", "--output_dir=gs://bucket/hub", form)
    store.rules.append(Rule("write", name="safetensors", call_after=kill_after))
    run(*command, exit_code=-9)
    assert {".unfinished", "model.safetensors"} <= store.under("bucket/hub/").keys()
    store.put("bucket/hub/stale.bin", b"of the killed one")
    run(*command)
    run(module, f"--input={pretrained}", f"--output_dir={tmp_path}/hub", form)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "hub").iterdir()}
    assert store.under("bucket/hub/") == expected
    assert "exists already" in run(*command, exit_code=2)[1]

    run(module, "--input=gs://bucket/hub", "--output_dir=gs://bucket/back")
    back = download(store, "bucket/back/", tmp_path / "back")
    assert bytes_of_weights(back) == bytes_of_weights(pretrained)


@pytest.mark.slow
def test_predictions_are_killed_and_repeated(store, table, tuned, tmp_path):
    store.upload(tuned, "bucket/tuned")
    store.upload(table / "dev.tsv", "bucket/dev.tsv")

    def command(place):
        return (
            "pipelines.predict",
            f"--model={place or tuned.parent}/{'tuned' if place else tuned.name}",
            f"--input_file={place or table}/dev.tsv",
            f"--output_file={place or tmp_path}/out.csv",
        )

    run(*command(""))
    expected = {path.name: path.read_bytes() for path in tmp_path.glob("out.csv*")}
    # In the table's own upload: the answers are there, but not the table.
    store.rules.append(Rule("start", name=r"/out\.csv$", call_after=kill_after))
    run(*command("gs://bucket"), exit_code=-9)
    assert "bucket/out.csv" not in store.objects
    assert any("out.csv.parts/part-" in name for name in store.objects)
    run(*command("gs://bucket"))
    found = {name: data for name, data in store.under("bucket/").items() if "out.csv" in name}
    assert found == expected
    assert "exists, and not from" in run(*command("gs://bucket"), "--top_k=9", exit_code=2)[1]
