"""Evaluates a model on held-out records, and checks that it was not trained on them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert_tf import losses, metrics
from albert_tf.checkpoints.model_directory import recorded_settings
from albert_tf.storage.errors import UserError
from .metrics_log import accuracy_text

# A plateau has at least so many steps and evaluations.
_PLATEAU_STEPS, _PLATEAU_EVALUATIONS = 200, 3
_PLATEAU = (
    "warning: held-out masked-LM accuracy at [MASK] stays at {accuracy:.1%}; the most frequent "
    "piece alone gives {baseline:.1%}. The model only predicts frequent pieces: it does not use "
    "the context yet. Some long runs never passed this plateau. What helped: first "
    "pre-train two layers with --max_seq_length=32 --ngram=1; a vocabulary of 8,000 pieces from "
    "your own text; a higher --learning_rate (pipelines/recipes/README.md, hour/)"
)


def check_heldout_split(model_dir: str, heldout_split: dict[str, Any] | None) -> None:
    """Raises a UserError if a run may have been trained on held-out documents.

    Compares the run's run.json with `heldout_split`, the Manifest.heldout_split of the records.
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
            f"the held-out documents of these records were drawn with {heldout_split}, but the run "
            f"in {model_dir!r} used {trained}, so it may have been trained on them: write the "
            "records again with the run's values (if the run has never seen the text, use "
            "pipelines.evaluate --split=train)"
        )


def make_scoring(
    strategy: tf.distribute.Strategy,
    forward: Callable[[dict, tf.Tensor], dict],
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    vocab_size: int,
    mask_id: int,
) -> Callable[[Callable[[int], None]], dict[str, Any]]:
    """Returns a function `score(on_batch)` that makes one pass over a dataset.

    `score` returns a dict of float64 sums: `losses` (see losses.pretraining_sums, and
    `masked_lm_at_mask` for the predictions at [MASK] alone) and `targets` [vocab_size], the number
    of predictions whose target was each piece. Before each batch it calls `on_batch` with the
    number of finished batches.

    The model must have been created in the scope of `strategy`. `forward` takes a batch and a
    dropout seed, and returns the outputs of AlbertForPreTraining. `dataset_fn` returns the batches
    of this host's replicas, as many as on the other hosts.
    """
    batches = strategy.distribute_datasets_from_function(dataset_fn)

    def score_replica(batch):
        outputs = forward(batch, None)
        sums = losses.pretraining_sums(outputs, batch)
        inputs = tf.gather(batch["input_word_ids"], batch["masked_lm_positions"], batch_dims=1)
        sums["masked_lm_at_mask"] = losses.weighted_cross_entropy(
            outputs["masked_lm_logits"],
            batch["masked_lm_ids"],
            batch["masked_lm_weights"] * tf.cast(inputs == mask_id, tf.float32),
        )
        values = {
            "losses": sums,
            "targets": tf.math.bincount(
                batch["masked_lm_ids"], weights=batch["masked_lm_weights"], minlength=vocab_size
            ),
        }
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)

    @tf.function(autograph=False)
    def score_batch(batch):
        values = strategy.run(score_replica, (batch,))
        # All replicas hold the same global values.
        return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], values)

    def score(on_batch: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        totals: Any = None
        for number, batch in enumerate(batches):
            on_batch(number)
            totals = metrics.add_exactly(totals, score_batch(batch))
        return totals

    return score


def make_evaluation(
    score: Callable[[Callable[[int], None]], dict[str, Any]],
    known: Mapping[str, float],
    eval_steps: int,
    id_to_piece: Callable[[int], str],
) -> Callable[[Callable[[int], None]], dict[str, float]]:
    """Returns a function `evaluate(on_batch)` that returns the metrics to log.

    For `score` and `on_batch` see make_scoring. The prefix `heldout_` marks the results of
    metrics.pretraining_metrics and the metrics in `known`, which do not depend on the weights.
    `evaluate` also prints the accuracies and a baseline: always predicting the most frequent piece.
    """
    accuracies: list[float] = []  # masked-LM accuracy at [MASK] of each evaluation
    evaluations = max(_PLATEAU_EVALUATIONS, 1 + math.ceil(_PLATEAU_STEPS / eval_steps))

    def evaluate(on_batch: Callable[[int], None] = lambda _: None) -> dict[str, float]:
        totals = score(on_batch)
        values = {**metrics.pretraining_metrics(totals["losses"]), **known}
        scalars = {f"heldout_{name}": value for name, value in values.items()}
        targets = totals["targets"]
        baseline = float(targets.max() / max(targets.sum(), 1))
        scalars["heldout_most_frequent_accuracy"] = baseline
        print(_summary(scalars, id_to_piece(int(targets.argmax()))), flush=True)
        if "masked_lm_at_mask_accuracy" in values:
            accuracies.append(values["masked_lm_at_mask_accuracy"])
            # Warn only once per plateau.
            is_new = not knows_frequencies_only(accuracies[:-1], baseline, evaluations)
            if is_new and knows_frequencies_only(accuracies, baseline, evaluations):
                print(_PLATEAU.format(accuracy=accuracies[-1], baseline=baseline), flush=True)
        return scalars

    return evaluate


def _summary(scalars: Mapping[str, float], most_frequent: str) -> str:
    name, where = "heldout_masked_lm_at_mask_accuracy", " at [MASK]"
    if name not in scalars:
        name, where = "heldout_masked_lm_accuracy", ""
    kinds = ("sentence_order", "openings", "inside")
    names = [f"heldout_{kind}_accuracy" for kind in kinds]
    order = [accuracy_text(name, scalars) for name in names if name in scalars]
    masked = (
        f"held out: {100 * scalars.get(name, math.nan):.1f} % of pieces{where} "
        f"({100 * scalars['heldout_most_frequent_accuracy']:.1f} % always {most_frequent!r})"
    )
    return ", ".join([masked, *order])


def knows_frequencies_only(accuracies: Sequence[float], baseline: float, evaluations: int) -> bool:
    """Returns True if the model seems to have learnt only the frequencies of pieces.

    Only the last `evaluations` masked-LM accuracies at [MASK] count. `baseline` is the accuracy of
    always predicting the most frequent piece. A plateau on novels was at 0.97 to 1.02 times it.
    """
    last = accuracies[-evaluations:]
    if len(last) < evaluations:
        return False
    knows_frequencies = 0.5 * baseline <= min(last) and max(last) < 1.25 * baseline
    return knows_frequencies and max(last) - min(last) < baseline / 6
