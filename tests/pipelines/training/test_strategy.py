"""What the user is told of a TF_CONFIG that names no machines."""

from __future__ import annotations

import pytest

from pipelines.training.strategy import create_strategy


@pytest.mark.parametrize(
    ("tf_config", "problem"),
    [
        ("", "does not name the machines"),
        ('{"task": {"type": "worker", "index": 0}}', "does not name the machines"),
        ('["cluster"]', "does not name the machines"),
        ('{"cluster": 5}', "must be a dictionary"),
        ('{"cluster": {"worker": ["a:1"]}', "delimiter"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}}', "task_type"),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
            "2",
        ),
    ],
    ids=["none", "no cluster", "a list", "a number", "cut short", "no task", "a third of two"],
)
def test_tf_config_that_names_no_machines(monkeypatch, tf_config, problem):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises(
        ValueError, match=rf"TF_CONFIG is wrong \(.*{problem}.*\); expected"
    ) as raised:
        create_strategy("multi_worker")
    assert "\n" not in str(raised.value)
