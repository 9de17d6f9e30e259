"""Jobs with gs:// places that are killed at a request of each kind, then run again.

Each ends as if it had not been killed, bit for bit, and leaves nothing unfinished.
"""

import json
import re
import shutil
from collections import Counter

import pytest

from tests import test_remote_places as places
from tests.jobs import TIMINGS, bytes_of_weights, pretrain_flags, run, run_code
from tests.object_store import Rule
from tests.test_remote_faults import PRETRAINING, RECORDS

EXPORT = ("--checkpoint=gs://bucket/run", "--output=gs://bucket/out")
# Each job, and how often it is killed at requests of a kind, from the first request to the last.
JOBS = {
    "records": (RECORDS, 4),
    "pre-training": (PRETRAINING, 3),
    "export": (("export.export_saved_model", *EXPORT), 2),
}
# Without verification, which starts another process for each export and reads local files alone.
UNVERIFIED = """
import runpy
from export import verify
verify.verify = lambda *_: 0.0
runpy.run_module("export.export_saved_model", None, "__main__", alter_sys=True)
"""


def run_job(program, *flags, exit_code=0):
    if program.startswith("export."):
        return run_code(UNVERIFIED, *flags, exit_code=exit_code)
    return run(program, *flags, exit_code=exit_code)


def kills(requests, number_of_a_kind):
    """Yields (kind, how many such requests pass before, whether the fatal one has its effect)."""
    for kind, count in sorted(Counter(request.kind for request in requests).items()):
        places = {(count - 1) * i // (number_of_a_kind - 1) for i in range(number_of_a_kind)}
        for number, place in enumerate(sorted(places)):
            yield kind, place, number % 2 == 1


def result(store, directory):
    """Returns what a job made, without what differs between two runs of a command.

    Checkpoints are downloaded into `directory`: of them the variables count.
    """
    kept = {}
    for name, data in store.under("bucket/out/").items():
        if "tensorboard/" in name or name.endswith(("curves.png", "fingerprint.pb")):
            continue
        if name == "metrics.jsonl":
            entries = map(json.loads, data.splitlines())
            data = [{k: v for k, v in entry.items() if k not in TIMINGS} for entry in entries]
        # The graph of a SavedModel and the versions of its functions differ from run to run.
        kept[name] = b"" if re.search(r"saved_model\.pb|/ckpt-\d+\.", name) else data
    if "checkpoints/checkpoint" in kept:
        shutil.rmtree(directory, ignore_errors=True)
        kept["weights"] = bytes_of_weights(places.download(store, "bucket/out/", directory))
    return kept


@pytest.fixture(scope="module")
def trained(work, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    run("pipelines.pretrain", *pretrain_flags(work, directory / "run"), *places.STEPS)
    return directory / "run"


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_killed_at_a_request_of_each_kind(job, work, trained, store, tmp_path):
    command, number_of_a_kind = JOBS[job]
    places.upload_inputs(work, store)
    store.upload(trained, "bucket/run")
    inputs = dict(store.objects)
    run_job(*command)
    whole, requests = result(store, tmp_path / "space"), list(store.requests)
    assert whole and places.unfinished(store) == []
    if job == "pre-training":  # the weights are those of a local run
        assert whole["weights"] == bytes_of_weights(trained)
    killed = Counter()
    for kind, after, has_effect in kills(requests, number_of_a_kind):
        store.objects.clear()
        for name, data in inputs.items():
            store.put(name, data)
        fatal = {"call_after": places.kill_after} if has_effect else {"call": places.kill}
        store.rules[:] = [Rule(kind, after=after, **fatal)]
        try:
            run_job(*command, exit_code=-9)
            killed[kind] += 1
        except AssertionError as error:
            # The last of these may be missing: the progress lists what is there every few seconds,
            # and the lock is read and written every 30.
            assert kind in ("list", "read", "write") and str(error).startswith("0\n"), error  # noqa: PT017
        store.rules.clear()
        run_job(*command)
        found, case = result(store, tmp_path / "space"), (kind, after, has_effect)
        assert found.keys() == whole.keys(), case
        for name in whole:
            assert found[name] == whole[name], (name, case)
        assert places.unfinished(store) == [], case
        print(f"{job}: {case}, {killed[kind]} killed", flush=True)
    assert sum(killed.values()) >= 5 * (number_of_a_kind - 1)
