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
        ('{"cluster": {"worker": ["a:1"]}', r"is not JSON \(.*\)"),
    ],
    ids=["none", "no cluster", "a list", "cut short"],
)
def test_tf_config_that_names_no_machines(monkeypatch, tf_config, problem):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises(ValueError, match=f"TF_CONFIG {problem}; expected") as raised:
        create_strategy("multi_worker")
    assert "\n" not in str(raised.value)
