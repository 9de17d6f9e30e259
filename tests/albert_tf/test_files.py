"""What the plugin for s3:// does not tell: a store that does not answer, and the object's name."""

from __future__ import annotations

import pytest
import tensorflow as tf

from albert_tf import files


@pytest.fixture
def nothing_there(monkeypatch):
    """Lets every directory be missing; returns a function that lets the bucket answer or not."""

    def missing(path):
        raise tf.errors.NotFoundError(None, None, f"Could not find directory {path}")

    monkeypatch.setattr(tf.io.gfile, "listdir", missing)
    monkeypatch.setattr(tf.io.gfile, "glob", lambda pattern: [])
    return lambda answers: monkeypatch.setattr(tf.io.gfile, "isdir", lambda path: answers)


def test_a_store_that_does_not_answer_is_not_empty(nothing_there):
    nothing_there(True)
    assert files.names_in("s3://bucket/a/b") == files.glob("s3://bucket/a/*") == []
    nothing_there(False)
    for look in (files.names_in, files.glob):
        with pytest.raises(OSError, match=r"^s3://bucket/a: s3://bucket/ does not answer, or"):
            look("s3://bucket/a")
        assert look("gs://bucket/a") == look("a") == []


def test_a_failed_write_names_the_object(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise tf.errors.UnknownError(None, None, ": curlCode: 7, Couldn't connect to server")

    monkeypatch.setattr(tf.io.gfile, "copy", fail)
    monkeypatch.setattr(tf.io.gfile.GFile, "write", lambda *_: None)
    monkeypatch.setattr(tf.io.gfile.GFile, "close", fail)
    for write in (
        lambda: files.upload(str(tmp_path), "s3://bucket/a"),
        lambda: files.write_atomically("s3://bucket/a", "text"),
    ):
        with pytest.raises(OSError, match=r"^s3://bucket/a: curlCode: 7, .* again\)$"):
            write()
