import json

import pytest

from pipelines.compare import compare


def make_run(path, entries, **settings):
    path.mkdir(parents=True)
    settings = {"num_train_steps": 20, "global_batch_size": 8, **settings}
    (path / "run.json").write_text(json.dumps(settings))
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_settings_that_differ_and_figures(tmp_path, capsys):
    heldout = {"heldout_loss": 3.0, "heldout_masked_lm_accuracy": 0.25, "layers/degrees_01": 9.0}
    earlier = {**heldout, "heldout_masked_lm_accuracy": 0.125}
    entries = [{"step": 5, "loss": 4.0}, {"step": 5, **earlier}]
    entries += [{"step": 10, **heldout}, {"step": 20, "loss": 3.5}]
    make_run(tmp_path / "one", entries, learning_rate=0.001, ngram=3)
    make_run(tmp_path / "two", [], learning_rate=0.002, ngram=3)
    tuned = tmp_path / "tuned"
    make_run(tuned, [], learning_rate=0.001, task="cola")
    results = {"task": "cola", "dev": {"median": {"accuracy": 0.75}}}
    (tuned / "results.json").write_text(json.dumps(results))
    for seed in (1, 2):
        make_run(tuned / f"seed_{seed}", [{"step": 5, "loss": 1.0, "dev_accuracy": 0.75}])
        (tuned / f"seed_{seed}/results.json").write_text("{}")
    (tmp_path / "records").mkdir()
    (tmp_path / "records/run.json").write_text('{"seed": 1}')  # a record job's
    found = compare([f"{tmp_path}/*/"], str(tmp_path / "curves.png"))
    assert [run.path for run in found] == [f"{tmp_path}/{name}" for name in ("one", "tuned", "two")]
    assert found[0].figures == {"step": 10, "heldout_masked_lm_accuracy": 0.25}
    assert found[1].figures == {"seeds": 2, "dev accuracy": 0.75}
    assert found[2].figures == {"step": 0}
    assert [len(curve) for curve in found[1].curves] == [1, 1]
    words = map(str.split, filter(None, capsys.readouterr().out.splitlines()))
    lines = {name: values for name, *values in words}
    assert lines["learning_rate"] == ["0.001", "0.001", "0.002"]
    assert lines["ngram"] == ["3", "-", "3"]
    assert "global_batch_size" not in lines, "it is the same in all"
    assert lines["heldout_masked_lm_accuracy"] == ["0.2500", "-", "-"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no directory of pretrain or finetune there"):
        compare([f"{tmp_path}/records", f"{tmp_path}/nowhere"])
