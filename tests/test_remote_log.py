"""The log of a run in an object store: few requests, no gaps after a kill, failures that warn."""

from __future__ import annotations

import pytest
import tensorflow as tf

from pipelines.training.metrics_log import MetricsLog
from tests.jobs import run_code
from tests.object_store import Rule

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
    log.upload(last=True)
"""


def event_files(store):
    return [name for name in store.objects if name.startswith("bucket/run/tensorboard/")]


def curve(store, tmp_path):
    """Returns (step, loss) of the only TensorBoard file."""
    (name,) = event_files(store)
    (tmp_path / "events").write_bytes(store.objects[name])
    return [
        (event.step, tf.make_ndarray(value.tensor).item())
        for event in tf.compat.v1.train.summary_iterator(str(tmp_path / "events"))
        for value in event.summary.value
        if value.tag == "loss"
    ]


def losses(steps):
    return [(step, pytest.approx(1 / step)) for step in steps]


def test_requests_of_a_log(store, tmp_path):
    """At most three for each of ten checkpoints, and four once for reading and listing."""
    run_code(LOG, "0", "20", "1")
    made = [request for request in store.requests if request.name.startswith("bucket/run/")]
    assert len(made) <= 3 * 10 + 4, made
    assert curve(store, tmp_path) == losses(range(1, 21))
    assert store.under("bucket/run/")["metrics.jsonl"].count(b"\n") == 20


def test_a_killed_run_leaves_no_gap(store, tmp_path):
    """What TensorBoard's file lacked is there after the resume; what was logged beyond is not."""
    run_code(LOG, "0", "6", "0")
    assert [step for step, _ in curve(store, tmp_path)] == [1, 2, 3, 4]
    run_code(LOG, "4", "10", "1")
    assert curve(store, tmp_path) == losses(range(1, 11))
    lines = store.objects["bucket/run/metrics.jsonl"].splitlines()
    assert len(lines) == 10 and lines[3].startswith(b'{"step": 4,')


def test_a_log_that_cannot_be_written_is_a_warning(store):
    rule = Rule("start", name="bucket/run/", times=None, code=403)
    store.rules.append(rule)
    _, err = run_code(LOG, "0", "4", "1")
    assert "the log is not stored, training continues" in err
    assert rule.seen >= 3 and not store.under("bucket/run/")


def test_a_local_log_is_written_at_once(tmp_path):
    log = MetricsLog(str(tmp_path), 0)
    log.write(1, {"loss": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1.0}\n'
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
