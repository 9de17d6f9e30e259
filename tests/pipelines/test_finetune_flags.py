"""Fine-tuning's flags: what does not fit is one line, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.jobs import run
from tests.pipelines.test_finetune import pretrained, table  # noqa: F401

OWN = ("--task=classification", "--train_file={train}", "--init_checkpoint={model}")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--task=rte"], "give --data_dir"),
        (["--task=rte", "--data_dir=/nowhere"], "--data_dir: there is no directory '/nowhere'"),
        (["--task=classification"], "give --train_file"),
        (
            ["--task=classification", "--train_file=/none.tsv"],
            "--train_file: no file matches '/none.tsv'",
        ),
        (["--task=classification", "--train_file={train}"], "give --init_checkpoint"),
        (["--task=rte", "--data_dir=.", "--dev_file={train}"], "is for sets of your own"),
        (["--task=squad_v2", "--data_dir=."], "there is no './train-v2.0.json'"),
        (
            [
                "--task=classification",
                "--train_file={train}",
                "--init_checkpoint={model}",
                "--albert_config=albert_base",
            ],
            "--albert_config is the checkpoint's own",
        ),
        (["--task=race", "--data_dir=.", "--random_seeds=1,1"], "expected different whole numbers"),
        (["--task=race", "--data_dir=.", "--random_seeds=-1"], "expected different whole numbers"),
        (["--task=race", "--data_dir=.", "--labels=a,b"], "--labels says nothing to --task=race"),
        (["--task=classification", "--train_file={train}", "--labels=a,a"], "two different labels"),
        (["--task=classification", "--train_file={train}", "--data_dir=."], "not --data_dir"),
        (["--task=race", "--data_dir=.", "--random_seeds=1,x"], "expected different whole numbers"),
        (
            [
                "--task=classification",
                "--train_file={train}",
                "--init_checkpoint={model}",
                "--text_column=body",
            ],
            "train.tsv",
        ),
    ],
)
def test_one_line_for_wrong_flags(flags, message, table, pretrained, tmp_path):  # noqa: F811
    flags = [flag.format(train=table / "train.tsv", model=pretrained) for flag in flags]
    _, err = run("pipelines.finetune", *flags, f"--output_dir={tmp_path}/out", exit_code=2)
    lines = [line for line in err.strip().splitlines() if "absl::InitializeLog" not in line]
    assert len(lines) == 1 and message in lines[0], err
    assert not (tmp_path / "out").exists()
