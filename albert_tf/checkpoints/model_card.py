"""The model card README.md, which Hugging Face's hub shows for a model."""

from __future__ import annotations

import os

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.storage import files

# The settings of a run that the card lists.
_SETTINGS = (
    "origin",
    "learning_rate",
    "global_batch_size",
    "num_train_steps",
    "num_warmup_steps",
    "max_seq_length",
    "seed",
)


def write_model_card(
    directory: str,
    model_dir: str | None,
    task: dict | None,
    config: AlbertConfig,
    pipeline: str = "fill-mask",
) -> None:
    """Writes README.md with data, figures and settings, as far as they are known.

    The figures and settings are read from results.json and run.json in `model_dir`. `task` is the
    content of task.json, None for a pre-trained model; `pipeline` is the task's name in the hub.
    """
    results, run = (_read(model_dir, name) for name in ("results.json", model_directory.RUN_FILE))
    figures = results.get("metrics", {})
    lines = ["---", "library_name: transformers", "tags:", "- albert", f"pipeline_tag: {pipeline}"]
    lines += ["---", "", f"# ALBERT: {task['task'] if task else 'pre-trained'}", ""]
    lines += [
        f"{config.num_hidden_layers} layers of {config.hidden_size}, {config.vocab_size:,} pieces. "
        "Made with albert_tf."
    ]
    if task and "labels" in task:
        lines += ["", "## Labels", "", ", ".join(f"`{label}`" for label in task["labels"])]
    if figures:
        lines += ["", "## Figures", "", "| data | figure | value |", "| --- | --- | --- |"]
        for split, metrics in figures.items():
            lines += [f"| {split} | {name} | {value:.4f} |" for name, value in metrics.items()]
    settings = {name: run[name] for name in _SETTINGS if name in run}
    if settings:
        lines += ["", "## Settings", "", "| setting | value |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in settings.items()]
    lines += ["", "## Data", "", _data(run), ""]
    files.write_atomically(os.path.join(directory, "README.md"), "\n".join(lines))


def _data(run: dict) -> str:
    hashes = [f"{name} `{run[name]}`" for name in ("train", "dev") if run.get(name)]
    known = f"Hashes of the examples: {', '.join(hashes)}. " if hashes else ""
    return f"{known}Describe here what the data are, where they come from and their licence."


def _read(model_dir: str | None, name: str) -> dict:
    """Reads a JSON object from the model's directory, or from its parent; {} if both lack it."""
    if model_dir is None:
        return {}
    read, above = model_directory.read_if_exists, os.path.dirname(model_dir.rstrip("/"))
    return read(model_dir, name) or read(above, name)
