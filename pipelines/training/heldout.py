"""Evaluates on held-out records, and checks that a run was not trained on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert_tf import losses, metrics
from albert_tf.checkpoints.model_directory import recorded_settings
from albert_tf.storage.errors import UserError

# A plateau is reported after this many evaluations without progress.
_PLATEAU_EVALUATIONS = 3
_PROGRESS = 0.01
# A tenth of the pieces to predict is not masked (data/masking.py): copying needs no context.
_KEPT_SHARE = 0.1
_PLATEAU = (
    "warning: held-out masked LM stands at {accuracy:.1%}; always the most frequent piece has "
    "{baseline:.1%}. The model predicts frequent pieces and copies those that are not masked: it "
    "does not read the text yet. Long runs have stayed there. What helped here: first a part with "
    "--max_seq_length=32 --ngram=1 and two layers, a vocabulary of your own of 8,000 pieces, a "
    "higher --learning_rate (pipelines/recipes/README.md, An hour on two cores)"
)


def check_heldout_split(model_dir: str, heldout_split: dict[str, Any] | None) -> None:
    """Refuses a run that, by its run.json, may have been trained on held-out documents.

    `heldout_split` is Manifest.heldout_split of the records.
    """
    trained = recorded_settings(model_dir).get("heldout_split")
    if not trained or not heldout_split:
        return
    # With the same seed, a smaller held-out set is a subset of a larger one.
    if (
        trained["random_seed"] != heldout_split["random_seed"]
        or trained["heldout_fraction"] < heldout_split["heldout_fraction"]
    ):
        raise UserError(
            f"these records drew their held-out documents with {heldout_split}, the run in "
            f"{model_dir!r} with {trained}: it may have been trained on them; write the records "
            "anew with the run's values (of text that the run has never seen, pipelines.evaluate "
            "takes --split=train)"
        )


def make_scoring(
    strategy: tf.distribute.Strategy,
    forward: Callable[[dict, tf.Tensor], dict],
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    vocab_size: int,
) -> Callable[[Callable[[int], bool]], dict[str, Any] | None]:
    """Returns score(on_batch) -> float64 sums over one pass of a dataset.

    The sums are `losses` (losses.pretraining_sums), `layers` (metrics.layer_distances) and
    `targets` [vocab_size], the number of predictions per piece. Before each batch it calls
    `on_batch` with the number of batches done, and returns None if that returns true.

    Args:
      strategy: the model was created in its scope.
      forward: (batch, dropout seed) -> outputs of AlbertForPreTraining with its hidden states.
      dataset_fn: (input context) -> batches of this host's replicas, the same number on each host.
      vocab_size: the length of `targets`.
    """
    batches = strategy.distribute_datasets_from_function(dataset_fn)

    def score_replica(batch):
        outputs = forward(batch, None)
        values = {
            "losses": losses.pretraining_sums(outputs, batch),
            "layers": metrics.layer_distances(outputs["hidden_states"], batch["input_mask"]),
            "targets": tf.math.bincount(
                batch["masked_lm_ids"], weights=batch["masked_lm_weights"], minlength=vocab_size
            ),
        }
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)

    @tf.function
    def score_batch(batch):
        values = strategy.run(score_replica, (batch,))
        # Every replica holds the global value.
        return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], values)

    def score(on_batch: Callable[[int], bool] = lambda _: False) -> dict[str, Any] | None:
        totals = None
        for number, batch in enumerate(batches):
            if on_batch(number):
                return None
            totals = metrics.add_exactly(totals, score_batch(batch))
        return totals

    return score


def make_evaluation(
    score: Callable[[Callable[[int], bool]], dict[str, Any] | None], known: Mapping[str, float]
) -> Callable[[Callable[[], bool]], dict[str, float]]:
    """Returns evaluate(is_stopped) -> scalars to log, empty if it was stopped.

    The scalars are metrics.pretraining_metrics with the prefix `heldout_`, how far each layer moves
    its input (metrics.layer_distances), and `known`, which does not depend on the weights.
    """
    accuracies: list[float] = []  # masked LM, at each evaluation

    def evaluate(is_stopped: Callable[[], bool] = lambda: False) -> dict[str, float]:
        totals = score(lambda _: is_stopped())
        if totals is None:
            return {}
        values = {**metrics.pretraining_metrics(totals["losses"]), **known}
        scalars = {f"heldout_{name}": value for name, value in values.items()}
        for name, means in metrics.layer_means(totals["layers"]).items():
            scalars.update({f"layers/{name}_{i:02d}": mean for i, mean in enumerate(means, 1)})
        if "masked_lm_accuracy" in values:
            accuracies.append(values["masked_lm_accuracy"])
            targets = totals["targets"]
            baseline = float(targets.max() / targets.sum())
            is_new = not knows_frequencies_only(accuracies[:-1], baseline)
            if is_new and knows_frequencies_only(accuracies, baseline):
                print(_PLATEAU.format(accuracy=accuracies[-1], baseline=baseline), flush=True)
        return scalars

    return evaluate


def knows_frequencies_only(accuracies: Sequence[float], baseline: float) -> bool:
    """Returns whether masked LM has only learnt piece frequencies for some evaluations.

    `baseline` is the accuracy of always predicting the most frequent piece.
    """
    last = accuracies[-_PLATEAU_EVALUATIONS:]
    if len(last) < _PLATEAU_EVALUATIONS:
        return False
    knows_frequencies = 0.8 * baseline <= min(last) and max(last) < baseline + _KEPT_SHARE
    return knows_frequencies and max(last) - min(last) < _PROGRESS
