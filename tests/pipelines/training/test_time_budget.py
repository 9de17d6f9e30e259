from types import SimpleNamespace

import pytest
import tensorflow as tf

from pipelines.training import time_budget


@pytest.mark.parametrize(
    ("seconds", "hours", "steps", "longest", "minutes"),
    [
        (0.25, 0.5, 7200, 4, 1),  # loops of a second
        (0.01, 0.01, 3600, 20, 1),  # loops of --steps_per_loop=20
        (609.0, 6, 35, 1, 609 / 60),  # no more than a step: more would take hours
        (0.25, 1e-9, 1, 4, 1),
    ],
)
def test_hours_at_the_rate_of_the_first_minute(
    monkeypatch, seconds, hours, steps, longest, minutes
):
    """The first loop, which compiles, takes 20 s more."""
    clock, loops = [100.0], []

    def run_steps(batches, num_steps, *_):
        next(batches)
        clock[0] += seconds * int(num_steps) + (0 if loops else 20.0)
        loops.append(int(num_steps))
        return {"steps": num_steps}

    monkeypatch.setattr(time_budget, "make_step_loop", lambda *_: run_steps)
    monkeypatch.setattr(time_budget.optimization, "create_slots", lambda *_: None)
    monkeypatch.setattr(time_budget.time, "monotonic", lambda: clock[0])
    step = SimpleNamespace(optimizer=None, model=None)

    def dataset_fn(first, _):
        return tf.data.Dataset.range(first, 10_000)

    found = time_budget.steps_of_hours(
        hours, tf.distribute.get_strategy(), step, dataset_fn, steps_per_loop=20
    )
    assert found == steps
    assert loops[:2] == [1, 1] and max(loops) == longest
    assert sum(loops[1:]) * seconds == pytest.approx(60 * minutes, abs=max(1, seconds / 99))
