"""Averages the weights of the newest checkpoints of a pre-training run.

While the learning rate is high, the average is a better model than each of the checkpoints
(pipelines/recipes/README.md, "A night"). So the model of a long run can be used before the run
ends. The run itself is not changed and can go on.

Example:
  python -m pipelines.average_checkpoints --checkpoint=runs/night --output_dir=runs/evening
"""

from __future__ import annotations

import json
import os

import numpy as np
from absl import flags

from albert_tf.checkpoints import model_directory
from albert_tf.jobs import program
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer

FLAGS = flags.FLAGS

# Settings of the run that are also true of the average.
_KEPT_SETTINGS = ("max_seq_length", "heldout_split", "origin")


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_string(
        "checkpoint", None, "Model directory of a run of pipelines.pretrain.", required=True
    )
    flags.DEFINE_integer(
        "num_checkpoints", 3, "Number of checkpoints. A run keeps its newest three.", lower_bound=2
    )
    flags.DEFINE_string("output_dir", None, "Output directory. Must not exist.", required=True)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    average_checkpoints(FLAGS.checkpoint, FLAGS.num_checkpoints, FLAGS.output_dir)


def average_checkpoints(model_dir: str, num_checkpoints: int, output_dir: str) -> None:
    """Writes a model directory with the mean weights of a run's newest checkpoints, atomically.

    Raises a UserError if the run has too few checkpoints, or if its number of layers changed
    between them. Source: Izmailov et al. 2018 (without their cyclic learning rate).
    """
    model_directory.check_pretrained(model_dir)
    found, newest = model_directory.find_checkpoint(model_dir)
    if found != files.absolute(model_dir.rstrip("/")):
        raise UserError(f"{model_dir!r} is a single checkpoint: name the directory of the run")
    with files.new_directory(output_dir) as partial:
        model, _ = model_directory.load_for_pretraining(newest)
        checkpoints = model_directory.list_checkpoints(os.path.dirname(newest))
        if len(checkpoints) < num_checkpoints:
            raise UserError(
                f"{model_dir!r} has {len(checkpoints)} checkpoints; expected at least "
                f"{num_checkpoints} (--num_checkpoints)"
            )
        chosen = checkpoints[-num_checkpoints:]
        sums = [np.zeros(variable.shape) for variable in model.variables]
        for checkpoint in chosen:
            layers = model_directory.read_config(found, checkpoint).num_hidden_layers
            if layers != model.config.num_hidden_layers:
                raise UserError(
                    f"{checkpoint!r} and {newest!r} differ in their number of layers, {layers} "
                    f"and {model.config.num_hidden_layers}: average fewer checkpoints "
                    "(--num_checkpoints), or let the run go on"
                )
            model_directory.restore_weights(model, checkpoint)
            for total, variable in zip(sums, model.variables):
                total += variable.numpy()
        for total, variable in zip(sums, model.variables):
            variable.assign(total / len(chosen))
        model_directory.save_for_pretraining(model, partial)
        AlbertTokenizer.load(found).save(partial)
        _write_settings(found, partial, [os.path.basename(path) for path in chosen])
    print(f"wrote {output_dir}: the mean of {', '.join(map(os.path.basename, chosen))}")


def _write_settings(model_dir: str, output_dir: str, names: list[str]) -> None:
    """Writes the run.json of the average, which names its checkpoints."""
    recorded = model_directory.recorded_settings(model_dir)
    kept = {name: recorded[name] for name in _KEPT_SETTINGS if name in recorded}
    text = json.dumps({**kept, "averaged_checkpoints": names}, indent=2) + "\n"
    files.write_atomically(os.path.join(output_dir, model_directory.RUN_FILE), text)


if __name__ == "__main__":
    define_flags()
    program.run(main)
