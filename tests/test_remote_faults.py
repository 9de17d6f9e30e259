"""What may happen to jobs with gs:// places: kills at any request, refusals, outages, two at once.

No test has more than a few kills by default; those with REMOTE_TRIALS=1 have 66.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time

import pytest
import tensorflow as tf

from albert_tf import program
from tests.jobs import pretrain_flags, run, run_code
from tests.object_store import ObjectStore, Rule
from tests.test_remote_places import STEPS, kill, kill_after, record_flags, unfinished

LOOK = """
import sys
from albert_tf import files, program
place = sys.argv.pop()
def main(_):
    print(len(files.sizes(files.match_files(place, "input_file"))))
program.run(main)
"""

# Written, but not run to their end yet: the numbers of requests in them are estimates.
untried = pytest.mark.skipif(
    not os.environ.get("REMOTE_TRIALS"), reason="untried: REMOTE_TRIALS=1 runs it, for many minutes"
)


def job(program_name, work):
    """Returns the command of a job whose places are all remote."""
    if program_name == "records":
        flags = record_flags("gs://bucket", "gs://bucket/out", "--shard_bytes=60000")
        return ("pipelines.create_pretraining_data", *flags)
    if program_name == "export":
        return (
            "export.export_saved_model",
            "--checkpoint=gs://bucket/run",
            "--output=gs://bucket/out",
        )
    return ("pipelines.pretrain", *pretrain_flags("gs://bucket", "gs://bucket/out"), *STEPS)


@pytest.fixture(scope="module")
def inputs(work, tmp_path_factory):
    """The objects that the jobs read."""
    store = ObjectStore(tmp_path_factory.mktemp("inputs"))
    for name in ("corpus.txt", "config.json", "vocabulary.model", "records"):
        store.upload(work / name, f"bucket/{name}")
    return store.objects


@pytest.fixture(scope="module")
def trained(work, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    run("pipelines.pretrain", *pretrain_flags(work, directory / "run"), *STEPS)
    return directory / "run"


def result(store):
    """Returns what a job made, without what differs between two runs of a command."""
    made = store.under("bucket/out/")
    kept = {}
    for name, data in made.items():
        if "tensorboard/" in name or name.endswith(("curves.png", "fingerprint.pb")):
            continue
        if name == "metrics.jsonl":
            data = [
                {
                    key: entry[key]
                    for key in entry
                    if "per_second" not in key and key != "waiting_for_data"
                }
                for entry in map(json.loads, data.splitlines())
            ]
        kept[name] = data
    return kept


NUMBERS = {
    "records": {"list": 7, "stat": 9, "read": 6, "start": 14, "write": 14, "delete": 1},
    "pre-training": {"list": 6, "stat": 30, "read": 40, "start": 16, "write": 16, "delete": 1},
    "export": {"list": 6, "stat": 20, "read": 14, "start": 14, "write": 14, "delete": 1},
}


def kills(program_name):
    """Yields (kind, how many such requests pass before, whether the fatal one has its effect)."""
    for kind, count in NUMBERS[program_name].items():
        for share in range(4):
            yield kind, count * share // 4, share % 2 == 1


def check_kills(program_name, cases, work, inputs, trained, store):
    command = job(program_name, work)

    def fresh():
        store.objects.clear()
        store.rules.clear()
        for name, data in inputs.items():
            store.put(name, data)
        if program_name == "export":
            store.upload(trained, "bucket/run")

    fresh()
    run(*command)
    whole = result(store)
    assert whole
    killed = 0
    for kind, after, has_effect in cases:
        fresh()
        store.rules.append(
            Rule(
                kind,
                after=after,
                **{"call_after" if has_effect else "call": kill_after if has_effect else kill},
            )
        )
        try:
            run(*command, exit_code=-9)
            killed += 1
            print(f"{program_name} killed at {kind} request {after + 1}", flush=True)
        except AssertionError as error:
            assert str(error).startswith("0\n"), error  # there are not so many requests of a kind
        store.rules.clear()
        run(*command)
        found = result(store)
        assert found.keys() == whole.keys(), (kind, after, has_effect)
        for name in whole:
            # The graph of a SavedModel and the versions of its functions differ from run to run.
            if not name.endswith("saved_model.pb"):
                assert found[name] == whole[name], (name, kind, after, has_effect)
        assert unfinished(store) == [], (kind, after, has_effect)
    return killed


@untried
@pytest.mark.parametrize("program_name", NUMBERS)
def test_killed_at_any_request(program_name, work, inputs, trained, store):
    killed = check_kills(program_name, list(kills(program_name)), work, inputs, trained, store)
    assert killed >= 20


def test_corpus_of_many_files_is_listed_once(store):
    for number in range(100):
        store.put(f"bucket/corpus/{number:03d}.txt", b"A line.\n")
    store.put("bucket/corpus/more/200.txt", b"A line.\n")
    out, _ = run_code(LOOK, "gs://bucket/corpus/*")
    assert out == "100\n"
    assert store.counts("list") <= 5
    assert store.counts("stat") <= 102 and store.counts("read") == 0


@pytest.mark.parametrize(
    "place, code, message",
    [
        ("gs://bucket/*.txt", 403, "HTTP response code 403"),
        ("gs://bucket/*.txt", 401, "HTTP response code 401"),
        ("s3://bucket/a.txt", None, "File system scheme 's3' not implemented"),
        ("gs://bucket/a.txt", None, "--input_file: no file matches 'gs://bucket/a.txt'"),
    ],
)
def test_a_refusal_is_one_line(store, place, code, message):
    if code:
        store.rules.append(Rule(times=None, code=code))
    _, err = run_code(LOOK, place, exit_code=2)
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err and place[:12] in err


@untried
def test_an_outage_is_one_line(store):
    """TensorFlow tries eleven times, over three minutes."""
    store.rules.append(Rule(times=None, code=503))
    _, err = run_code(LOOK, "gs://bucket/*.txt", exit_code=2)
    assert err.startswith("error: All 10 retry attempts failed") and err.count("\n") == 1
    assert "503" in err and "gs://bucket/" in err


def test_which_errors_are_those_of_a_store():
    ours = tf.errors.InvalidArgumentError(None, None, "Shapes [2] and [3] do not match")
    lost = tf.errors.UnavailableError(None, None, "Socket closed: grpc://10.0.0.1:80")
    text = (
        "{{function_node f}} Error executing an HTTP request: libcurl code 7 meaning 'Couldn't "
        "connect to server', error details: \n\t when reading gs://bucket/a [[{{node Read}}]]"
    )
    store_error = tf.errors.UnavailableError(None, None, text)
    assert not program.is_user_error(ours)
    assert not program.is_user_error(lost)
    assert program.is_user_error(store_error)
    assert "when reading gs://bucket/a (" in program.store_error(text)
    assert "node" not in program.store_error(text)


@untried
def test_two_jobs_at_once(work, inputs, store):
    """One stalls in the middle; the other is refused; the first ends as if it had been alone."""
    for name, data in inputs.items():
        store.put(name, data)
    command = job("records", work)
    store.rules.append(Rule("write", name="tfrecord", after=1, seconds=20))
    first = threading.Thread(target=run, args=command)
    first.start()
    while not store.counts("write", "tfrecord"):
        time.sleep(0.1)
    _, err = run(*command, exit_code=2)
    assert re.fullmatch(r"error: another job is writing to 'gs://bucket/out': .*\n", err)
    first.join()
    assert "manifest.json" in result(store)
    assert unfinished(store) == []


@untried
def test_a_log_that_cannot_be_written_is_a_warning(work, inputs, store):
    for name, data in inputs.items():
        store.put(name, data)
    store.rules.append(Rule("start", name="metrics.jsonl", times=None, code=403))
    _, err = run(*job("pre-training", work))
    assert "the log is not stored, training continues" in err
    assert "checkpoints/ckpt-4.index" in store.under("bucket/out/")
    # Of a log two requests at each of the two checkpoints, of TensorBoard likewise.
    store.rules.clear()
    for name in [name for name in store.objects if name.startswith("bucket/out/")]:
        del store.objects[name]
    store.requests.clear()
    run(*job("pre-training", work))
    writes = [
        kind
        for kind, name in store.requests
        if name.endswith("metrics.jsonl") and kind in ("start", "write")
    ]
    assert len(writes) <= 3 * 2
