"""Conversions and predictions with gs:// in and out: killed, repeated, read back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.jobs import run, weights
from tests.object_store import Rule
from tests.test_remote_places import download, kill_after

pytestmark = pytest.mark.slow


def test_a_conversion_is_killed_repeated_and_read_back(store, pretrained, tmp_path):
    store.upload(pretrained, "bucket/model")
    command = (
        "pipelines.convert_checkpoint",
        "--input=gs://bucket/model",
        "--output_dir=gs://bucket/hub",
        "--output_format=huggingface",
    )
    store.rules.append(Rule("write", name="safetensors", call_after=kill_after))
    run(*command, exit_code=-9)
    assert {".unfinished", "model.safetensors"} <= store.under("bucket/hub/").keys()
    store.put("bucket/hub/stale.bin", b"of the killed one")
    run(*command)
    local = (command[0], f"--input={pretrained}", f"--output_dir={tmp_path}/hub", command[3])
    run(*local)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "hub").iterdir()}
    assert store.under("bucket/hub/") == expected
    assert "exists already" in run(*command, exit_code=2)[1]

    run(command[0], "--input=gs://bucket/hub", "--output_dir=gs://bucket/back")
    back = download(store, "bucket/back/", tmp_path / "back")
    ours, theirs = weights(back), weights(pretrained)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_damaged_model_is_named_as_it_was_given(store, tmp_path):
    store.put("bucket/hub/config.json", b'{"vocab_size": 9, "hidden_size": 4}')
    store.put("bucket/hub/model.safetensors", b"nothing of the kind")
    flags = ("--input=gs://bucket/hub", f"--output_dir={tmp_path}/out")
    _, err = run("pipelines.convert_checkpoint", *flags, exit_code=2)
    assert "gs://bucket/hub/" in err and "/tmp" not in err.replace(str(tmp_path), "")


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
