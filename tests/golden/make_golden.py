"""Writes the small fixtures of this directory from numbers that the reference computed.

  python -m tests.golden.make_golden ../shared/golden

Each CASE.npz contains a random model (TF1 names), a batch and a summary of every output and
gradient that the reference implementation computed from them. A summary is the largest element, the
norm, a projection onto fixed numbers and up to 64 elements. optimizer_steps.npz contains such
summaries of weights and slots after steps of the reference's optimizers, and a description of each
run. learning_rates.json contains learning rates of the reference's schedule.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

DIRECTORY = Path(__file__).resolve().parent
CASES = ("forward", "forward_noproj")
RUNS = ("lamb_sched", "adamw_sched")  # of optimizers, with the model and batch of "forward"
STEPS = DIRECTORY / "optimizer_steps.npz"
LEARNING_RATES = DIRECTORY / "learning_rates.json"

SUMMARY_SHAPE = (67,)

_INPUTS = {
    "input_ids": "input_word_ids",
    "segment_ids": "input_type_ids",
    "next_sentence_labels": "sentence_order_labels",
}
_OUTPUTS = {
    "mlm_log_probs": "masked_lm_log_probs",
    "mlm_loss": "masked_lm_loss",
    "sop_log_probs": "sentence_order_log_probs",
    "sop_loss": "sentence_order_loss",
}


@dataclasses.dataclass
class Case:
    """A model, a batch, and the reference's results for them: arrays, or summaries of arrays."""

    config: dict
    weights: dict[str, np.ndarray]  # TF1 name -> float32
    batch: dict[str, np.ndarray]  # in the format of AlbertForPreTraining and the losses
    outputs: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]  # TF1 name -> gradient of the total loss, no clip, no dropout


def summary(array: np.ndarray) -> np.ndarray:
    """Returns float64 [67]: largest element, norm, projection, equally spaced elements."""
    flat = np.asarray(array, np.float64).ravel()
    samples = np.zeros(64)
    chosen = flat[:: -(-flat.size // 64)]
    samples[: chosen.size] = chosen
    projection = flat @ np.cos(np.arange(flat.size))
    return np.concatenate([[np.abs(flat).max(), np.linalg.norm(flat), projection], samples])


def _under(values: Mapping, prefix: str) -> dict[str, np.ndarray]:
    """Selects the arrays whose names begin with a prefix; removes it and replaces `|` by `/`."""
    names = [name for name in values if name.startswith(prefix)]
    return {name[len(prefix) :].replace("|", "/"): values[name] for name in names}


def read_reference(golden: Path, name: str) -> Case:
    """Reads a case, with whole arrays, from the reference's files."""
    config = json.loads((golden / f"google_tf1/{name}.json").read_text())["config"]
    arrays = np.load(golden / f"google_tf1/{name}.npz")
    parts = [_under(arrays, part) for part in ("inputs/", "outputs/", "weights/", "grads/")]
    inputs, reference_outputs, weights, gradients = parts
    batch = {_INPUTS.get(key, key): array for key, array in inputs.items()}
    batch["sentence_order_labels"] = batch["sentence_order_labels"][:, 0]
    batch["sentence_order_weights"] = np.ones(len(batch["sentence_order_labels"]), np.float32)
    outputs = {}
    for key, array in reference_outputs.items():
        if key.startswith("encoder_layer_"):
            key = f"layer_{int(key.rpartition('_')[2])}"
        if not key.endswith(("example_loss", "grad_global_norm")):
            outputs[_OUTPUTS.get(key, key)] = array
    return Case(config, weights, batch, outputs, gradients)


def write_fixture(case: Case, path: Path) -> None:
    results = {
        **{f"outputs/{key}": summary(array) for key, array in case.outputs.items()},
        **{f"gradients/{key}": summary(array) for key, array in case.gradients.items()},
    }
    description = {
        "config": case.config,
        "weights": {name: array.shape for name, array in case.weights.items()},
        "results": list(results),
    }
    np.savez_compressed(
        path,
        description=json.dumps(description),
        weights=np.concatenate([array.ravel() for array in case.weights.values()]),
        results=np.stack(list(results.values())).astype(np.float32),
        **{f"batch/{key}": array for key, array in case.batch.items()},
    )


def read_fixture(name: str) -> Case:
    """Reads a file of write_fixture; outputs and gradients are summaries."""
    arrays = np.load(DIRECTORY / f"{name}.npz")
    description = json.loads(str(arrays["description"]))
    weights, start = {}, 0
    for key, shape in description["weights"].items():
        size = int(np.prod(shape))
        weights[key] = arrays["weights"][start : start + size].reshape(shape)
        start += size
    results = dict(zip(description["results"], arrays["results"]))
    outputs, gradients = _under(results, "outputs/"), _under(results, "gradients/")
    return Case(description["config"], weights, _under(arrays, "batch/"), outputs, gradients)


def read_run(golden: Path, run: str) -> tuple[dict, dict[int, dict[str, np.ndarray]]]:
    """Returns the reference's description of a run of an optimizer, and its arrays.

    These are {step: {TF1 name: whole array}}; names of slots end in /adam_m or /adam_v.
    """
    described = json.loads((golden / "google_tf1/lamb.json").read_text())[run]
    arrays = np.load(golden / "google_tf1/lamb.npz")
    steps = range(1, described["steps"] + 1)
    return described, {step: _under(arrays, f"{run}/step{step}/") for step in steps}


def write_steps(golden: Path, path: Path) -> None:
    contents, descriptions = {}, {}
    for run in RUNS:
        described, found = read_run(golden, run)
        names = list(found[1])
        descriptions[run] = {"described": described, "steps": list(found), "names": names}
        contents[run] = np.array(
            [[summary(arrays[name]) for name in names] for arrays in found.values()], np.float32
        )
    np.savez_compressed(path, descriptions=json.dumps(descriptions), **contents)


def read_run_fixture(run: str) -> tuple[dict, dict[int, dict[str, np.ndarray]]]:
    """Reads a run from the file of write_steps, like read_run but with summaries for arrays."""
    with np.load(STEPS) as arrays:
        description = json.loads(str(arrays["descriptions"]))[run]
        summaries = arrays[run]
    found = {
        step: dict(zip(description["names"], of_step))
        for step, of_step in zip(description["steps"], summaries)
    }
    return description["described"], found


def read_learning_rates(golden: Path) -> list[dict]:
    """Reads the schedules, with pairs of step and rate, that this project implements too."""
    cases = json.loads((golden / "lr_schedule.json").read_text())
    # With start_warmup_step the reference's rate is negative.
    return [case for case in cases if case["start_warmup_step"] == 0]


def main(golden: Path, directory: Path) -> None:
    for name in CASES:
        write_fixture(read_reference(golden, name), directory / f"{name}.npz")
    write_steps(golden, directory / STEPS.name)
    rates = json.dumps(read_learning_rates(golden))
    (directory / LEARNING_RATES.name).write_text(rates + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), DIRECTORY)
