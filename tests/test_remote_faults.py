"""Jobs with gs:// places: refusals, outages, two jobs at once, and the log of a run."""

import json
import os
import re
import socket
import threading

import pytest
import tensorflow as tf

from albert_tf.jobs import program, remote_lock
from tests.jobs import pretrain_flags, record_flags, run, run_code
from tests.object_store import Rule
from tests.test_remote_places import STEPS, unfinished, upload_inputs

LOOK = """
import sys
from albert_tf.jobs import program
from albert_tf.storage import files
place = sys.argv.pop()
def main(_):
    print(len(files.sizes(files.match_files(place, "input_file"))))
program.run(main)
"""
RECORDS = (
    "pipelines.create_pretraining_data",
    *record_flags("gs://bucket", "gs://bucket/out", "--shard_bytes=60000"),
)
PRETRAINING = ("pipelines.pretrain", *pretrain_flags("gs://bucket", "gs://bucket/out"), *STEPS)


@pytest.fixture
def inputs(work, store):
    upload_inputs(work, store)


# One line names what TensorFlow tried eleven times.
OUTAGE = r"error: All 10 retry attempts failed.*503.*gs://bucket/.*\n"


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        pytest.param("gs://bucket/*.txt", 503, OUTAGE, marks=pytest.mark.slow),  # waits for 6 s
        ("gs://bucket/*.txt", 403, "error: .*HTTP response code 403.* gs://bucket/.*\n"),
        ("s3://bucket/a.txt", None, "error: .*scheme 's3' not implemented.*s3://bucket/a.*\n"),
    ],
)
def test_a_refusal_or_an_outage_is_one_line(store, place, code, message):
    store.rules.append(Rule(times=None, code=code))
    _, err = run_code(LOOK, place, exit_code=2)
    assert re.fullmatch(message, err), err
    assert len(store.requests) == 11 or code != 503


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kind", "name"),
    [
        ((*RECORDS, "--num_workers=2"), "start", "train-"),
        (RECORDS, "start", "manifest.json"),
        (PRETRAINING, "start", "checkpoints/ckpt-2"),
        (PRETRAINING, "read", "tfrecord"),
    ],
)
def test_an_outage_in_the_middle_of_a_job(inputs, store, command, kind, name):
    """The same command resumes when it is over."""
    store.rules.append(Rule(kind, name=name, times=None, code=503))
    _, err = run(*command, exit_code=2)
    assert re.search(f"(?m)^{OUTAGE}\\Z", err) and "Traceback" not in err
    store.rules.clear()
    run(*command)
    assert unfinished(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("code", [503, 403])
def test_an_outage_while_a_run_resumes_damages_nothing(inputs, store, code):
    """Nothing is said of the checkpoint, and no older one is taken in its place."""
    longer = (*PRETRAINING, "--num_train_steps=6")
    store.rules.append(Rule("start", name="checkpoints/ckpt-6", times=None, code=403))
    run(*longer, exit_code=2)
    saved = store.under("bucket/out/checkpoints/")
    assert "ckpt-4.index" in saved
    store.rules[:] = [Rule("read", name=r"checkpoints/ckpt-4\.data", times=11, code=code)]
    _, err = run(*longer, exit_code=2)
    assert "damaged" not in err and "backup" not in err and f"code {code}" in err
    assert err.count("error: ") == 1 and "Traceback" not in err
    assert store.under("bucket/out/checkpoints/") == saved
    store.rules.clear()
    run(*longer)
    entries = map(json.loads, store.objects["bucket/out/metrics.jsonl"].splitlines())
    assert [entry["step"] for entry in entries if "loss" in entry] == [2, 4, 6]


def test_which_errors_are_those_of_a_store():
    ours = tf.errors.InvalidArgumentError(None, None, "Shapes [2] and [3] do not match")
    lost = tf.errors.UnavailableError(None, None, "Socket closed: grpc://10.0.0.1:80")
    text = (
        "{{function_node f}} Error executing an HTTP request: libcurl code 7 meaning 'Couldn't "
        "connect to server', error details: \n\t when reading gs://bucket/a [[{{node Read}}]]"
    )
    store_error = tf.errors.UnavailableError(None, None, text)
    assert list(map(program.is_user_error, (ours, lost, store_error))) == [False, False, True]
    assert program.is_user_error(MemoryError())
    assert "when reading gs://bucket/a (" in program.store_error(text)
    assert "node" not in program.store_error(text)


HOLD = """
from albert_tf.jobs import job_directory, program
job_directory.define_flags()
def main(_):
    with job_directory.lock("gs://bucket/out"):
        print("held")
program.run(main)
"""


def put_lock(store, **changed):
    holder = {"host": "elsewhere", "process": 1, "started": "5", "time": "2026-01-01 00:00:00"}
    store.put("bucket/out/.lock.json", json.dumps({"run": "another", **holder, **changed}).encode())


def test_locks(store):
    """Of another machine it is taken over on demand, of this one if its process has ended."""
    put_lock(store)
    out, err = run_code(HOLD, exit_code=2)
    assert out == "" and "'gs://bucket/out': process 1 on elsewhere, begun at 2026-01-01" in err
    assert err.endswith("--take_over\n") and unfinished(store) == ["bucket/out/.lock.json"]
    assert run_code(HOLD, "--take_over")[0] == "held\n" and unfinished(store) == []
    here = {"host": socket.gethostname(), "process": os.getpid()}
    put_lock(store, **here, started=remote_lock._start_of(os.getpid()))
    assert run_code(HOLD, "--take_over", exit_code=2)[1].endswith("wait for its end\n")
    put_lock(store, **here, started="5")
    assert run_code(HOLD)[0] == "held\n"


# Logs two entries before each checkpoint, ends without a word where the third argument says so.
LOG = """
import os, sys
from pipelines.training.metrics_log import MetricsLog
begin, end, last = map(int, sys.argv[1:])
log = MetricsLog("gs://bucket/run", begin)
for step in range(begin + 1, end + 1):
    log.write(step, {"loss": 1 / step, "accuracy": step / 10})
    if step % 2 == 0:
        log.upload()
if last:
    log.upload()
"""


def curve(store, tmp_path):
    """Returns (step, loss) of the only TensorBoard file."""
    (name,) = (name for name in store.objects if "bucket/run/tensorboard/" in name)
    (tmp_path / "events").write_bytes(store.objects[name])
    return [
        (event.step, tf.make_ndarray(value.tensor).item())
        for event in tf.compat.v1.train.summary_iterator(str(tmp_path / "events"))
        for value in event.summary.value
        if value.tag == "loss"
    ]


def test_a_killed_run_leaves_no_gap(store, tmp_path):
    """Entries beyond the checkpoint are deleted, in TensorBoard's file too."""
    run_code(LOG, "0", "6", "0")
    assert [step for step, _ in curve(store, tmp_path)] == [1, 2, 3, 4, 5, 6]
    run_code(LOG, "4", "10", "1")
    assert curve(store, tmp_path) == [(n, pytest.approx(1 / n)) for n in range(1, 11)]
    lines = store.objects["bucket/run/metrics.jsonl"].splitlines()
    assert len(lines) == 10 and lines[3].startswith(b'{"step": 4,')


def test_a_log_that_cannot_be_written_is_a_warning(store):
    rule = Rule("start", name="bucket/run/", times=None, code=403)
    store.rules.append(rule)
    _, err = run_code(LOG, "0", "4", "1")
    assert "the log is not stored, training continues" in err
    assert rule.seen >= 3 and not store.under("bucket/run/")


@pytest.mark.slow
def test_two_jobs_at_once(work, store):
    """One stalls in the middle; the other is refused; the first writes what a local job does."""
    upload_inputs(work, store)
    job = "pipelines.create_pretraining_data", *record_flags("gs://bucket", "gs://bucket/out")
    arrived, go_on = threading.Event(), threading.Event()
    store.rules.append(Rule("write", "tfrecord", call=lambda: (arrived.set(), go_on.wait(200))))
    first = threading.Thread(target=run, args=job)
    first.start()
    assert arrived.wait(200)
    _, err = run(*job, exit_code=2)
    assert re.fullmatch(r"error: another job is writing to 'gs://bucket/out': .*\n", err)
    go_on.set()
    first.join()
    records = {path.name: path.read_bytes() for path in (work / "records").glob("*.tfrecord*")}
    written = store.under("bucket/out/")
    assert records and "manifest.json" in written and unfinished(store) == []
    assert {name: data for name, data in written.items() if name in records} == records
