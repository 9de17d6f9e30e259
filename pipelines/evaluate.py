"""Evaluates a pre-trained ALBERT on records that it was not trained on.

Prints masked-LM loss and accuracy of all predictions, and of those at [MASK] alone. The baseline
always predicts the most frequent piece. Prints sentence-order accuracy with 95 % intervals,
separately for pairs at the start of a document and for pairs inside documents. Two baseline
classifiers see only the first words of each part, or only the word overlap at the ends of the
parts. If a model beats both, it must be comparing the two parts. The masks are the same in all
calls. The metrics are also saved in MODEL_DIR/evaluations.

Examples:
  python -m pipelines.evaluate --checkpoint=runs/base --record_dir=records
  python -m pipelines.evaluate --checkpoint=runs/base/checkpoints/ckpt-5000 --record_dir=records
"""

import dataclasses
import os

import tensorflow as tf
from absl import flags

import albert_tf
from albert_tf import metrics
from albert_tf.checkpoints import model_directory, pretrained
from albert_tf.checkpoints.opening import ALBERT_TF, open_model
from albert_tf.jobs import program
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from albert_tf.text.tokenization import AlbertTokenizer
from .data.examples import DRAWS
from .data.order_baselines import order_baselines
from .data.pretraining_dataset import evaluation_dataset, evaluation_options
from .data.records import Manifest, naming_damaged_shards
from .data.sentence_pairs import SENTENCE_OBJECTIVES
from .training.heldout import check_heldout_split, make_scoring

_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The model, records and options of an evaluation."""

    checkpoint: str = setting(flags.DEFINE_string, "A model directory or one of its checkpoints.")
    record_dir: str = setting(flags.DEFINE_string, "Record directory to evaluate on.")
    split: str = setting(
        flags.DEFINE_enum, "Split to evaluate on.", "heldout", enum_values=["heldout", "train"]
    )
    sentence_objective: str | None = setting(
        flags.DEFINE_enum,
        "Sentence objective to evaluate. Default: that of the run, or sop if run.json records no "
        "objective.",
        None,
        enum_values=list(SENTENCE_OBJECTIVES),
    )


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    define_settings_flags(Evaluation)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    settings = settings_from_flags(Evaluation)
    with naming_damaged_shards(settings.record_dir):
        print(report(evaluate(settings)))


def evaluate(settings: Evaluation) -> dict:
    """Evaluates on all examples of a split. Stores and returns the metrics."""
    record_dir, split = settings.record_dir, settings.split
    manifest = Manifest.read(record_dir)
    opened = open_model(settings.checkpoint, [ALBERT_TF], pretrained=True)
    model_dir, config = opened.directory, opened.config
    tokenizer = AlbertTokenizer.load(model_dir)
    trained = model_directory.recorded_settings(model_dir).get("sentence_objective", "sop")
    objective = settings.sentence_objective or trained
    options = evaluation_options([manifest], manifest.max_seq_length, objective)
    manifest.check(record_dir, tokenizer, options)
    if not manifest.splits[split].examples:
        raise UserError(
            f"{record_dir!r} has no {split} records: write records of more text or with a larger "
            "--heldout_fraction. If the run was not trained on these records, pass --split=train"
        )
    longest, rows = options.max_seq_length, config.max_position_embeddings
    if longest > rows:
        raise UserError(
            f"{record_dir!r} has segments of up to {longest} pieces, but the position table of the "
            f"model has {rows} rows: write records with --max_seq_length={rows}"
        )
    if split == "heldout":
        check_heldout_split(model_dir, manifest.heldout_split)
    model, _, notes, _ = pretrained.load(opened, tokenizer)
    for note in notes:
        print(f"note         {note}")

    def dataset_fn(context):
        return evaluation_dataset(
            record_dir, split, options, tokenizer, _BATCH_SIZE, context=context
        )

    examples = manifest.splits[split].examples
    strategy = tf.distribute.get_strategy()
    score = make_scoring(strategy, model, dataset_fn, config.vocab_size, tokenizer.mask_id)
    with Progress("evaluating", examples, unit="example") as progress:
        totals = score(lambda done: progress.update(done * _BATCH_SIZE))
        progress.update(examples)
    baselines = {}
    if options.objective.has_label:
        baselines = order_baselines(record_dir, split, options, tokenizer)
    result = {
        "checkpoint": os.path.basename(opened.checkpoint),
        "config": dataclasses.asdict(config),
        "records": manifest.fingerprint(),
        "split": split,
        "max_seq_length": options.max_seq_length,
        "sentence_objective": options.sentence_objective,
        "draws": DRAWS,
        "code_version": albert_tf.__version__,
        "examples": examples,
        **_figures(totals, baselines, tokenizer),
    }
    parts = (result["checkpoint"], split, options.sentence_objective, result["records"][:8])
    path = os.path.join(model_dir, "evaluations", f"{'-'.join(parts)}.json")
    files.write_json(path, result)
    print(f"stored in {path}")
    return result


def _figures(totals: dict, baselines: dict, tokenizer: AlbertTokenizer) -> dict:
    """Computes metrics and baselines. `totals` are the sums of make_scoring."""
    sums, targets = totals["losses"], totals["targets"]
    order = sums["sentence_order"]
    kinds = metrics.order_kinds(sums) or {
        "pairs": (float(order["correct"]), float(order["weight"]))
    }
    most_frequent = int(targets.argmax())
    return {
        "masked_lm_predictions": int(sums["masked_lm"]["weight"]),
        "masked_lm_at_mask_predictions": int(sums["masked_lm_at_mask"]["weight"]),
        "sentence_order_predictions": int(order["weight"]),
        **metrics.pretraining_metrics(sums),
        "sentence_order": {
            kind: {
                "pairs": int(pairs),
                "accuracy": correct / pairs,
                "interval": list(metrics.wilson_interval(correct, pairs)),
                **{f"{k}_accuracy": right / n for k, (right, n) in baselines.get(kind, {}).items()},
            }
            for kind, (correct, pairs) in kinds.items()
            if pairs
        },
        "most_frequent_piece": tokenizer.id_to_piece(most_frequent),
        "most_frequent_accuracy": float(targets[most_frequent] / max(targets.sum(), 1)),
    }


def report(result: dict) -> str:
    """Formats the output of `evaluate`."""
    lines = [
        f"{result['checkpoint']} on {result['examples']:,} {result['split']} segments",
        f"  masked LM       {_masked_lm(result, 'masked_lm')} predictions",
    ]
    # Kept pieces can be copied, so the accuracy at [MASK] is compared with the baseline.
    name, where = "masked_lm", ""
    if result["masked_lm_at_mask_predictions"]:
        name, where = "masked_lm_at_mask", " at [MASK]"
        lines.append(f"    at [MASK]     {_masked_lm(result, name)} of them")
    baseline = result["most_frequent_accuracy"]
    times = result[f"{name}_accuracy"] / baseline if baseline else float("inf")
    lines.append(
        f"  baseline        {100 * baseline:.2f} %: always guessing "
        f"{result['most_frequent_piece']!r}; the model has {times:.2f} times that{where}"
    )
    if result["sentence_order_predictions"]:
        lines.append(
            f"  {SENTENCE_OBJECTIVES[result['sentence_objective']].title:14}  loss "
            f"{result['sentence_order_loss']:.4f} nats, accuracy "
            f"{100 * result['sentence_order_accuracy']:.2f} % of "
            f"{result['sentence_order_predictions']:,}"
        )
    for kind, figures in result["sentence_order"].items():
        low, high = figures["interval"]
        lines.append(
            f"    {kind:<14}{100 * figures['accuracy']:.2f} % of {figures['pairs']:,}, 95 % "
            f"interval {100 * low:.2f} to {100 * high:.2f} %"
        )
        if "words_accuracy" in figures:
            lines.append(
                f"    baselines     {100 * figures['words_accuracy']:.2f} % from the words that "
                f"each part begins with, {100 * figures['overlap_accuracy']:.2f} % from the "
                "overlap of words"
            )
    return "\n".join(lines)


def _masked_lm(result: dict, name: str) -> str:
    return (
        f"loss {result[f'{name}_loss']:.4f} nats, accuracy "
        f"{100 * result[f'{name}_accuracy']:.2f} % of {result[f'{name}_predictions']:,}"
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
