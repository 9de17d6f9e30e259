"""Held-out records: that a run was not trained on them, and its figures of them as it goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from albert_tf import files, losses, metrics
from albert_tf.checkpoints.model_directory import RUN_FILE


def check_heldout_split(model_dir: str, heldout_split: dict[str, Any] | None) -> None:
    """Makes sure that a run was not trained on what records hold out, as far as run.json tells.

    Args:
      model_dir: of the run; may have no run.json.
      heldout_split: Manifest.heldout_split of the records.

    Raises:
      ValueError: if their held-out documents were drawn otherwise than those of the run's records.
    """
    run_file = os.path.join(model_dir, RUN_FILE)
    run = files.read_json(run_file) if tf.io.gfile.exists(run_file) else {}
    trained = run.get("heldout_split")
    if not trained or not heldout_split:
        return
    # Of one seed, fewer held-out documents are some of more.
    if (
        trained["random_seed"] != heldout_split["random_seed"]
        or trained["heldout_fraction"] < heldout_split["heldout_fraction"]
    ):
        raise ValueError(
            f"the held-out documents of these records were drawn with {heldout_split}, those of "
            f"the run in {model_dir!r} with {trained}: it may have been trained on them; write the "
            "records anew with the run's values (of text that the run has never seen, "
            "pipelines.evaluate takes --split=train)"
        )


def make_evaluation(
    strategy: tf.distribute.Strategy,
    forward: Callable[[dict, tf.Tensor], dict],
    dataset: tf.data.Dataset,
    known: Mapping[str, float],
) -> Callable[[Callable[[], bool]], dict[str, float]]:
    """Returns evaluate(is_stopped) -> scalars of one pass over a dataset, none if it was stopped.

    They are metrics.pretraining_metrics with `heldout_` before their names, and how far each layer
    moves its input (metrics.layer_distances).

    Args:
      strategy: in whose scope the model was made.
      forward: (batch, dropout seed) -> outputs of AlbertForPreTraining with its hidden states.
      dataset: global batches of static shape, whose number of rows the replicas divide.
      known: figures of the dataset that no weights change, which go into the scalars too.
    """
    options = tf.data.Options()
    # Each host reads all and takes its rows.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = strategy.experimental_distribute_dataset(dataset.with_options(options))

    def score_replica(batch):
        outputs = forward(batch, None)
        values = {
            "sums": losses.pretraining_sums(outputs, batch),
            "layers": metrics.layer_distances(outputs["hidden_states"], batch["input_mask"]),
        }
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)

    @tf.function
    def score(batch):
        values = strategy.run(score_replica, (batch,))
        # Every replica holds the global value.
        return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], values)

    def evaluate(is_stopped: Callable[[], bool] = lambda: False) -> dict[str, float]:
        totals = None
        for batch in batches:
            if is_stopped():
                return {}
            totals = metrics.add_exactly(totals, score(batch))
        figures = {**metrics.pretraining_metrics(totals["sums"]), **known}
        scalars = {f"heldout_{name}": value for name, value in figures.items()}
        layers = totals["layers"]
        for name in ("l2_distance", "degrees"):
            means = (layers[name] / layers["weight"]).tolist()
            scalars.update({f"layers/{name}_{i:02d}": mean for i, mean in enumerate(means, 1)})
        return scalars

    return evaluate
