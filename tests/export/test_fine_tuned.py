"""A fine-tuned model, exported: on raw strings it scores what fine-tuning reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export import export_saved_model
from export.ask import ask
from export.export_saved_model import export, how_to_use
from tests.builders import read_tsv


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tuned):
    """Not verified: test_verify.py has each kind."""
    output = tmp_path_factory.mktemp("exports") / "river"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_saved_model, "verify", lambda *_: 0.0)
        return export(checkpoint=str(tuned / "seed_1"), output=str(output))


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(exported)


def test_the_dev_set_is_answered_as_in_fine_tuning(tuned, loaded, table):
    rows = read_tsv(table / "dev.tsv")
    answers = loaded.signatures["serving_default"](
        text=tf.constant([row["first"] for row in rows]),
        text_pair=tf.constant([row["second"] for row in rows]),
    )
    labels = [label.decode() for label in loaded.signatures["labels"]()["labels"].numpy()]
    assert labels == ["other", "river"]
    expected = read_tsv(tuned / "seed_1/predictions/dev_predictions.tsv")
    found = [label.decode() for label in answers["label"].numpy()]
    assert found == [row["prediction"] for row in expected]
    columns = [[float(row[f"probability_{label}"]) for label in labels] for row in expected]
    np.testing.assert_allclose(answers["probabilities"], columns, atol=2e-6)
    assert np.ptp(columns) > 1e-2


def test_the_export_says_what_it_is_of(tuned, exported):
    exported = Path(exported)
    assert (exported / "assets/task.json").read_bytes() == (tuned / "seed_1/task.json").read_bytes()
    provenance = json.loads((exported / "assets.extra/export.json").read_text())
    assert provenance["kind"] == "classifier" and provenance["max_seq_length"] == 48
    assert provenance["task"]["labels"] == ["other", "river"]
    assert "serving_default(text, text_pair) -> label, probabilities" in how_to_use(str(exported))


def test_it_is_asked(exported, loaded, monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", lambda _: loaded)
    lines = ask(saved_model=exported, pairs=["a river runs ||| some river"])
    assert lines[0] == f"{exported} answers"
    assert lines[2:4] == ["text: a river runs", "text_pair: some river"]
    assert lines[4].startswith("  label: ") and lines[5].startswith("  probabilities: 0.")
    assert lines[-1] == "(probabilities of other, river)"
    with pytest.raises(ValueError, match="answers to text and text_pair, not to text"):
        ask(saved_model=exported, texts=["alone"])
    with pytest.raises(ValueError, match="not to context and question"):
        ask(saved_model=exported, question="Who?", context="Birds.")
    with pytest.raises(ValueError, match="fills no"):
        ask(saved_model=exported, masked_texts=["[MASK]"])
