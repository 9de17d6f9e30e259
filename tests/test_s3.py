"""Each job with s3:// in and out: TensorFlow's plugin for it, and moto's server on loopback.

`make test-extras` runs it: requirements.txt has neither.
"""

from __future__ import annotations

import json
import logging
import signal

import pytest

from tests.conftest import make_text
from tests.jobs import assert_same_bits, pretrain_flags, start, wait_for

CONFIG = {
    "vocab_size": 83,
    "embedding_size": 24,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 48,
    "hidden_dropout_prob": 0.1,
}

pytestmark = [pytest.mark.slow, pytest.mark.extras("moto", "tensorflow_io")]


@pytest.fixture(scope="module")
def bucket():
    """A client of a bucket, which s3://bucket is in the programs that a test starts."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "S3_ENDPOINT": url,
        }.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield client
    server.stop()


def names(client):
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
    return [found["Key"] for page in pages for found in page.get("Contents", [])]


def download(client, directory):
    for name in names(client):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file("bucket", name, str(path))
    return directory


def write_inputs(directory):
    (directory / "corpus.txt").write_text(make_text(150, seed=11), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    for name, seed in (("train", 1), ("dev", 2)):
        lines = [line for line in make_text(12, seed=seed).splitlines() if line]
        rows = [f"{line}\t{'even' if len(line) % 2 == 0 else 'odd'}" for line in lines[:60]]
        (directory / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")


def commands(place):
    """Returns program -> flags, in their order, with all paths in `place`."""
    fine_tuned = f"{place}/fine_tuned"
    return {
        "pipelines.train_vocab": [
            f"--input_file={place}/corp*.txt",
            f"--output_prefix={place}/vocabulary",
            "--vocab_size=83",
        ],
        "pipelines.create_pretraining_data": [
            f"--input_file={place}/corpus.txt",
            f"--spm_model_file={place}/vocabulary.model",
            f"--output_dir={place}/records",
            "--max_seq_length=40",
            "--heldout_fraction=0.2",
            "--shard_bytes=20000",
            "--num_workers=2",
            "--remove_duplicates",
        ],
        "pipelines.pretrain": [
            *pretrain_flags(place, f"{place}/run"),
            "--num_train_steps=8",
            "--eval_steps=4",
            "--eval_examples=18",
        ],
        "pipelines.evaluate": [f"--checkpoint={place}/run", f"--record_dir={place}/records"],
        "pipelines.finetune": [
            "--task=classification",
            f"--train_file={place}/train.tsv",
            f"--dev_file={place}/dev.tsv",
            f"--init_checkpoint={place}/run",
            f"--output_dir={fine_tuned}",
            "--max_seq_length=40",
            "--global_batch_size=12",
            "--num_train_steps=6",
            "--num_warmup_steps=1",
            "--eval_steps=3",
            "--steps_per_loop=3",
            "--save_checkpoint_steps=3",
        ],
        "pipelines.predict": [
            f"--model={fine_tuned}",
            f"--input_file={place}/dev.tsv",
            f"--output_file={place}/answers/dev.csv",
        ],
        "export.export_saved_model": [f"--checkpoint={place}/run", f"--output={place}/export"],
        "export.ask": [f"--saved_model={place}/export", "--fill_mask=the [MASK] fox"],
        "pipelines.convert_checkpoint": [
            f"--input={place}/run",
            f"--output_dir={place}/for_the_hub",
            "--output_format=huggingface",
        ],
    }


def run(program, flags):
    """Runs a program in an interpreter of its own, as its exit is tested, too."""
    process = start(program, *flags)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, f"{program} {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err and "terminate called" not in err, err
    return out


def test_every_job(bucket, tmp_path):
    """What they write equals what they write locally; one is killed and resumes."""
    local = tmp_path / "local"
    local.mkdir()
    write_inputs(local)
    for path in local.iterdir():
        bucket.upload_file(str(path), "bucket", path.name)
    for program, flags in commands("s3://bucket").items():
        if program == "pipelines.pretrain":
            process = start(program, *flags)
            wait_for(lambda: "run/checkpoints/ckpt-4.index" in names(bucket), [process])
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert "run/checkpoints/ckpt-8.index" not in names(bucket)
        out = run(program, flags)
        print(f"{program}: {len(names(bucket))} objects")
        if program == "export.ask":
            assert "[MASK] 1:" in out
    back = ["--input=s3://bucket/for_the_hub", "--output_dir=s3://bucket/back"]
    run("pipelines.convert_checkpoint", back)
    for program, flags in commands(str(local)).items():
        if program not in ("pipelines.evaluate", "export.ask"):
            run(program, flags)

    assert_same_results(download(bucket, tmp_path / "there"), local)
    again = run("export.export_saved_model", commands("s3://bucket")["export.export_saved_model"])
    assert "exported before" in again


def assert_same_results(there, local):
    assert not list(there.rglob(".*"))  # locks and unfinished uploads
    same = [local / "vocabulary.model", *local.glob("records/*.tfrecord")]
    same += [local / "answers/dev.csv", *local.glob("for_the_hub/*"), *local.glob("export/1/*/*")]
    same = [path for path in same if path.is_file()]
    assert len(same) > 20
    for path in same:
        assert (there / path.relative_to(local)).read_bytes() == path.read_bytes(), path
    for directory in ("run", "fine_tuned/seed_12345"):
        assert_same_bits(there / directory, local / directory)
    assert (there / "run/metrics.jsonl").read_text().count("\n") > 4
