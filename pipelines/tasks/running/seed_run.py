"""Fine-tunes with one seed, then predicts and computes metrics with the best weights."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf import optimization
from albert_tf.checkpoints import model_directory
from albert_tf.jobs import program
from albert_tf.jobs.settings import setting
from albert_tf.storage import files
from ...training.run import InitialModel, Run
from ...training.settings import LoopSettings, TrainingSettings, precision
from ...training.strategy import check_hosts_agree, is_tpu
from ...training.train_loop import TrainLoop
from ...training.train_step import Objective, TrainStep
from ..reading.dev_split import SharedTexts
from ..reading.sequences import Sequences
from ..scoring.figures import draw_learning_curves
from ..task import Answers, Outputs, Task, create_model
from .batches import Prediction, training_dataset
from .results import RESULTS_FILE


@dataclasses.dataclass(frozen=True)
class FinetuneSettings(TrainingSettings):
    """The settings of fine-tuning, without the seed.

    A learning rate, number of steps or bias correction of None is chosen; see defaults.choose.
    """

    default_warmup = 0.1

    max_seq_length: int | None = setting(
        program.define_max_seq_length,
        "Longer texts are truncated or split into windows. Default: --init_checkpoint's length.",
        None,
    )
    freeze_encoder: bool = setting(
        flags.DEFINE_bool,
        "Train only the task's output layer. This is fast but usually less accurate. The default "
        "--learning_rate is then 1e-3.",
        False,
    )
    adamw_bias_correction: bool | None = setting(
        flags.DEFINE_bool,
        "Apply bias correction to AdamW's moments, as torch.optim.AdamW does (default). The "
        "recipes' learning rates were chosen without it. Corrected updates are smaller, by a "
        "factor of 0.32 in step 1, 0.15 in step 12 and 0.80 in step 1,000.",
        None,
    )


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """The task, model and settings of a fine-tuning run.

    One model is trained for each of `random_seeds`. If there is no dev file, `divide` can select
    training examples for dev (see dev_split.split_off_dev). `loop`: how often to log, save and
    evaluate. `baselines`: see score_baselines; None: still to be scored on dev. `chosen`: values of
    flags that were not given, for the plan.
    """

    task: Task
    initial: InitialModel
    output_dir: str
    random_seeds: Sequence[int]
    settings: FinetuneSettings
    loop: LoopSettings
    strategy: tf.distribute.Strategy
    divide: Callable[[list, SharedTexts], np.ndarray] | None = None
    baselines: dict[str, dict] | None = dataclasses.field(default_factory=dict)
    chosen: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def max_seq_length(self) -> int:
        """Maximum length of a sequence. Default: the length at which the weights were trained."""
        return self.settings.max_seq_length or self.initial.trained_length


# The content of a seed's results.json: metrics, their details and a hash of the inputs, by split.
NO_RESULTS: dict[str, dict] = {"metrics": {}, "details": {}, "predicted": {}}


class TaskSplit(NamedTuple):
    """A tokenized split of a task's data."""

    examples: list
    sequences: Sequences
    features: list


def run_seed(run: Run, job: Finetuning, splits: dict[str, TaskSplit], seed: int) -> dict:
    """Trains with one seed, then predicts and scores all splits except "train".

    Work of earlier calls is not repeated: a finished seed only predicts splits that were not
    predicted with the same decoding settings. Returns the content of MODEL_DIR/results.json.
    """
    task, settings = job.task, job.settings
    predicted, path = what_is_predicted(task, splits), os.path.join(run.model_dir, RESULTS_FILE)
    is_trained = tf.io.gfile.exists(path)
    kept = kept_results(files.read_json(path) if is_trained else NO_RESULTS, predicted)
    if is_trained and predicted.items() <= kept["predicted"].items():
        return kept
    if is_trained and run.is_chief:
        # After a kill, outdated results must not be used for new predictions.
        files.write_json(path, kept)
    model, optimizer = _create_model(job, seed)
    # TPUs and XLA require all batches to have the same shape.
    length = (job.max_seq_length, settings.jit_compile or is_tpu(run.strategy))
    rows = settings.global_batch_size // settings.gradient_accumulation_steps
    predict = Prediction(run.strategy, model, rows, *length)
    if not is_trained:
        train = splits["train"].sequences
        with run.strategy.scope():
            step = TrainStep(model, model, task_objective(task), optimizer, settings, seed)
        evaluate = None
        if job.loop.eval_steps:
            examples, _, features = dev = splits["dev"]
            labels = task.targets(examples, features, job.max_seq_length)
            evaluate = functools.partial(_score_dev, task, dev, labels, predict)
        TrainLoop(
            run,
            step,
            lambda first_step, context: training_dataset(
                train, settings.global_batch_size, seed, first_step, *length, context
            ),
            job.loop,
            len(train.pieces) / len(train),
            evaluate,
        ).train()
    kept_step = _restore_best(run, model, job.loop)
    new = {name: split for name, split in splits.items() if name not in kept["predicted"]}
    found = {**_predict(run, task, new, predict), "predicted": predicted}
    results = {part: {**kept[part], **found[part]} for part in NO_RESULTS}
    if run.is_chief:
        drawn = job.baselines or {}
        path = draw_learning_curves(run.model_dir, kept_step, task.best_metric, drawn)
        print(f"curves       {path}")
        _write_results(task, run.model_dir, job.max_seq_length, results)
    return results


def _predict(
    run: Run, task: Task, splits: dict[str, TaskSplit], predict: Prediction
) -> dict[str, dict]:
    """Writes the predictions of all splits except "train". Returns `metrics` and `details`."""
    directory = os.path.join(run.model_dir, "predictions")
    found: dict[str, dict] = {"metrics": {}, "details": {}}
    for name, (examples, sequences, features) in splits.items():
        if name == "train":
            continue
        answers = task.answers(examples, features, predict(sequences))
        if metrics := task.score(answers.rows()):
            found["metrics"][name] = metrics
        if details := task.details(examples, answers):
            found["details"][name] = details
        if run.is_chief:
            for path in task.write(directory, name, examples, answers):
                print(f"predictions  {path}")
    return found


def _score_dev(
    task: Task, split: TaskSplit, labels: dict[str, np.ndarray], predict: Prediction, on_batch
) -> dict[str, float]:
    outputs = predict(split.sequences, on_batch)
    metrics = task.score(task.answers(split.examples, split.features, outputs).rows())
    if task.has_dev_loss:
        metrics = {**metrics, "loss": mean_loss(task, outputs, labels)}
    return {f"dev_{name}": value for name, value in metrics.items()}


def mean_loss(task: Task, outputs: Outputs, labels: dict[str, np.ndarray]) -> float:
    """Returns the mean of the task's losses, given the outputs of each feature and its labels."""
    alike: dict[tuple, list[int]] = {}  # Batches are padded to different lengths.
    for place, output in enumerate(outputs):
        alike.setdefault(tuple(value.shape for value in output.values()), []).append(place)
    total = 0.0
    for places in alike.values():
        found = {n: tf.stack([outputs[place][n] for place in places]) for n in outputs[places[0]]}
        batch = {name: tf.constant(values[places]) for name, values in labels.items()}
        total += float(tf.reduce_sum(task.losses(found, batch)))
    return total / len(outputs)


def _write_results(task: Task, model_dir: str, max_seq_length: int, results: dict) -> None:
    """Writes task.json and results.json. The latter marks the seed as finished."""
    model, decoding, source = task.description()
    description = {
        "task": task.name,
        "max_seq_length": max_seq_length,
        **model,
        **decoding,
        **source,
    }
    files.write_json(os.path.join(model_dir, model_directory.TASK_FILE), description)
    files.write_json(os.path.join(model_dir, RESULTS_FILE), results)


def _restore_best(run: Run, model: tf.keras.Model, loop: LoopSettings) -> int:
    """Restores the best weights on dev, else the last weights. Returns their step."""
    # Barrier: other hosts must not look for the weights before the chief has written them.
    check_hosts_agree(run.strategy, 0, run.settings)
    directory = run.model_dir
    if loop.eval_steps:
        directory = os.path.join(directory, model_directory.BEST_DIR)
    _, weights = model_directory.find_checkpoint(directory)
    step = int(weights.rpartition("-")[2])
    check_hosts_agree(run.strategy, step, run.settings)
    model_directory.restore_weights(model, weights)
    return step


def answers_untrained(job: Finetuning, split: TaskSplit) -> Answers:
    """Returns the answers of the initial weights. On several hosts, only the caller computes."""
    strategy = tf.distribute.get_strategy()
    model, _ = _create_model(dataclasses.replace(job, strategy=strategy), job.random_seeds[0])
    outputs = Prediction(strategy, model, 32, job.max_seq_length, False)(split.sequences)
    return job.task.answers(split.examples, split.features, outputs)


def _create_model(
    job: Finetuning, seed: int
) -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer]:
    """Creates the model with the initial weights, and its optimizer."""
    settings, initial = job.settings, job.initial.weights
    assert settings.adamw_bias_correction is not None, "defaults.choose replaces it"
    # Initializers use Keras' global seed, in the order in which variables are created.
    tf.keras.utils.set_random_seed(seed)
    with job.strategy.scope(), precision(settings.mixed_precision):
        model = create_model(job.task, job.initial.config, settings.recompute)
        model.create_variables()
        job.task.initialise(model)
        model.encoder.trainable = not settings.freeze_encoder
        optimizer = optimization.adamw(
            optimization.WarmUpPolynomialDecay(
                settings.learning_rate, settings.num_train_steps, settings.num_warmup_steps or 0
            ),
            settings.weight_decay,
            settings.adamw_bias_correction,
        )
    if initial:
        model_directory.restore_encoder(model.encoder, initial.checkpoint)
    return model, optimizer


def kept_results(results: dict, predicted: dict) -> dict:
    """Returns the earlier results that are still valid (same decoding settings and examples)."""
    earlier = results["predicted"]
    if earlier.get("decoding") != predicted["decoding"]:
        return NO_RESULTS
    earlier = {
        name: value for name, value in earlier.items() if predicted.get(name, value) == value
    }
    kept = {
        part: {name: values for name, values in results[part].items() if name in earlier}
        for part in ("metrics", "details")
    }
    return {**kept, "predicted": earlier}


def task_objective(task: Task) -> Objective:
    """Returns the training objective: the mean of the examples' losses."""
    return Objective(
        weights=lambda batch: tf.reduce_sum(batch["weight"]),
        sums=lambda outputs, batch: {
            "loss": tf.reduce_sum(task.losses(outputs, batch) * batch["weight"]),
            "weight": tf.reduce_sum(batch["weight"]),
        },
        loss=lambda sums, weight: sums["loss"] / weight,
        metrics=lambda sums: {"loss": sums["loss"] / sums["weight"]} if sums["weight"] else {},
        zero_sums=lambda: {"loss": tf.zeros([]), "weight": tf.zeros([])},
        best_by=(f"dev_{task.best_metric}", "dev_loss"),
    )


def what_is_predicted(task: Task, splits: dict[str, TaskSplit]) -> dict:
    """Returns the values that a seed's predictions depend on, except the weights."""
    return {
        "decoding": task.description().decoding,
        **{name: fingerprint(split) for name, split in splits.items() if name != "train"},
    }


def fingerprint(split: TaskSplit) -> str:
    """Returns a hash of the examples and their sequences."""
    digest = hashlib.sha256()
    for example in split.examples:
        digest.update(repr(example).encode("utf-8", "replace"))
    for values in (split.sequences.pieces, split.sequences.row_splits):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]
