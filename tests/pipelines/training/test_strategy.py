import pytest
import tensorflow as tf

from pipelines.training import strategy
from pipelines.training.strategy import check_hosts_agree, create_strategy
from tests.builders import raises_one_line
from tests.replicas import mirrored

WORKERS = '{"cluster": {"worker": ["a:1", "b:1"]}'


def test_tf_config_that_names_no_machines(monkeypatch):
    for tf_config, problem in (
        ("", "does not name the machines"),
        ('{"task": {"type": "worker", "index": 0}}', "does not name the machines"),
        ('["cluster"]', "does not name the machines"),
        ('{"cluster": 5}', "must be a dictionary"),
        (WORKERS, "delimiter"),
        (WORKERS + "}", "task_type"),
        (WORKERS + ', "task": {"type": "worker", "index": 2}}', "2"),
    ):
        monkeypatch.setenv("TF_CONFIG", tf_config)
        with raises_one_line(rf"TF_CONFIG is wrong \(.*{problem}.*\)"):
            create_strategy("multi_worker")


def test_hosts_agree_at_any_step_or_are_refused(monkeypatch):
    """test_distributed.py asks two real ones."""
    monkeypatch.setattr(strategy, "has_several_hosts", lambda _: True)
    for step in (0, 2**31, 2**33):
        check_hosts_agree(mirrored(), step, {"seed": 1})
    monkeypatch.setattr(strategy.zlib, "crc32", lambda _: 2 * 7)
    for other in ([2**33 + 1, 7], [2**33, 8]):  # step, hash

        def all_reduce(self, op, mine, other=other):
            return mine + other

        monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", all_reduce)
        with pytest.raises(ValueError, match="do not agree: this one is at step 8589934592"):
            check_hosts_agree(mirrored(), 2**33, {})
