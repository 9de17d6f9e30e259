from types import SimpleNamespace

import tensorflow as tf

from pipelines.training import time_budget


def test_hours_at_the_rate_of_the_first_minute(monkeypatch):
    """Loops of 3 steps take 0.75 s, the first one, which compiles, 20 s: 4 steps a second."""
    clock, loops = [100.0], []

    def run_steps(batches, num_steps, *_):
        loops.append(next(batches))
        clock[0] += 0.75 if len(loops) > 1 else 20.0
        return {"steps": num_steps}

    monkeypatch.setattr(time_budget, "make_step_loop", lambda *_: run_steps)
    monkeypatch.setattr(time_budget.optimization, "create_slots", lambda *_: None)
    monkeypatch.setattr(time_budget.time, "monotonic", lambda: clock[0])
    step = SimpleNamespace(optimizer=None, model=None)
    strategy = tf.distribute.get_strategy()

    def steps(hours):
        return time_budget.steps_of_hours(
            hours, strategy, step, lambda first, _: tf.data.Dataset.range(first, 10_000), 3
        )

    assert steps(0.5) == 7200 and len(loops) == 81
    loops.clear()
    assert steps(1e-9) == 3
