"""Fine-tunes an ALBERT on GLUE, SQuAD, RACE or your own data, and scores it on the dev set.

Reads the task's standard files from --data_dir, or tables from --train_file, --dev_file and
--test_file. Trains one model per seed in --random_seeds, and writes it to OUTPUT_DIR/seed_N. Run
the same command again to resume a killed run. If the run is finished, the command only predicts new
files, such as another --test_file. To predict without training data, use pipelines.predict.

The plan prints the values of the flags that are not given. They follow from the size of the model
and of the data. Several values of --learning_rate and --num_epochs train each combination.
--folds=5 cross-validates.

Examples:
  python -m pipelines.finetune --flagfile=pipelines/recipes/finetune/rte.flags \\
      --data_dir=glue/RTE --init_checkpoint=runs/base --output_dir=runs/rte --random_seeds=1,2,3
  python -m pipelines.finetune --task=classification --train_file=tickets.csv \\
      --text_column=subject --text_pair_column=body --label_column=queue \\
      --init_checkpoint=runs/base --output_dir=runs/tickets
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from albert_tf import config as config_lib
from albert_tf.config import AlbertConfig
from albert_tf.encoder import sharing_plan
from albert_tf.jobs import job_directory, program
from albert_tf.jobs.settings import define_settings_flags, settings_from_flags
from albert_tf.kinds import KINDS
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .tasks.reading import dev_split, split_report
from .tasks.running import results, seed_run
from .tasks.running.baselines import kept_baselines, score_baselines, scored
from .tasks.running.defaults import choose
from .tasks.running.fine_tuned import score_out_of_fold
from .tasks.running.seed_run import FinetuneSettings, Finetuning, TaskSplit
from .tasks.task_flags import chosen_flags, create_task, define_task_flags
from .training.run import (
    InitialModel,
    Run,
    hash_of_weights,
    initial_path,
    origin_of,
    read_initial_model,
)
from .training.settings import LoopSettings, check_steps_flags
from .training.strategy import create_strategy, define_strategy_flags, is_chief, naming_lost_workers

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    job_directory.define_flags()
    define_task_flags()
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Initial weights: a model directory, one of its checkpoints, or a published model "
        "(hf://OWNER/NAME@COMMIT, or a URL of TF-Hub or Kaggle). A published model is converted to "
        "OUTPUT_DIR/.initial_model. Without this flag, the weights are random, and "
        "--albert_config and --spm_model_file are required.",
    )
    flags.DEFINE_string(
        "albert_config",
        None,
        f"Config if --init_checkpoint is unset: a named size ({', '.join(config_lib.NAMES)}) or an "
        "albert_config.json file.",
    )
    flags.DEFINE_string("spm_model_file", None, "Vocabulary if --init_checkpoint is unset.")
    flags.DEFINE_integer(
        "num_hidden_layers",
        None,
        "Number of layers. Default: the checkpoint's. Layers that share all weights can be applied "
        "fewer or more times. Of other layers, the last ones can be removed.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "output_dir", None, "Output directory. Existing runs are resumed.", required=True
    )
    flags.DEFINE_list(
        "random_seeds", ["12345"], "Seeds of new weights, data order and dropout. One run per seed."
    )
    flags.DEFINE_float(
        "hidden_dropout_prob",
        None,
        "Dropout rate of the encoder, attention probabilities included. Default: the config's.",
        0,
        0.9,
    )
    flags.DEFINE_bool("baseline", True, "Also score a linear model of words on dev.")
    define_settings_flags(
        FinetuneSettings,
        several=("learning_rate", "num_epochs"),
        global_batch_size=32,
        num_train_steps=None,
        num_warmup_steps=None,
        learning_rate=None,
    )
    define_settings_flags(
        LoopSettings, steps_per_loop=10, save_checkpoint_steps=500, eval_steps=None
    )
    define_strategy_flags()


def main(_) -> None:
    """Runs the program with the values of its flags."""
    check_steps_flags()
    combinations = _combinations(FLAGS.learning_rate, FLAGS.num_epochs)
    task, seeds = create_task(FLAGS), _seeds(FLAGS.random_seeds)
    chosen = chosen_flags(FLAGS, task)
    values = {**FLAGS.flag_values_dict(), **chosen}
    initial = initial_model(
        FLAGS.init_checkpoint
        and initial_path(FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.strategy),
        FLAGS.albert_config,
        FLAGS.spm_model_file,
        values["hidden_dropout_prob"],
        FLAGS.num_hidden_layers,
    )
    strategy = create_strategy(FLAGS.strategy, FLAGS.tpu)
    fraction = values["dev_fraction"]
    job = Finetuning(
        task=task,
        initial=initial,
        output_dir=FLAGS.output_dir,
        random_seeds=seeds,
        settings=next(iter(combinations.values())),
        loop=settings_from_flags(LoopSettings, eval_steps=values["eval_steps"]),
        strategy=strategy,
        divide=functools.partial(dev_split.split_off_dev, fraction=fraction) if fraction else None,
        baselines=None if FLAGS.baseline else {},
        chosen=chosen,
    )
    if FLAGS.folds:
        cross_validate(job, FLAGS.folds)
    elif len(combinations) > 1:
        compare_settings(job, combinations)
    else:
        finetune(job)


def finetune_each(runs: Mapping[str, Finetuning]) -> dict[str, dict]:
    """Fine-tunes several runs in OUTPUT_DIR/NAME. Returns a dict that maps names to summaries."""
    seeds = len(next(iter(runs.values())).random_seeds)
    print(f"{len(runs)} runs, {seeds} {'seed' if seeds == 1 else 'seeds'} each: {', '.join(runs)}")
    summaries = {}
    for number, (name, job) in enumerate(runs.items(), start=1):
        print(f"\n{name}, run {number} of {len(runs)}")
        path = os.path.join(job.output_dir, name)
        summaries[name] = finetune(dataclasses.replace(job, output_dir=path))
    return summaries


def _combinations(
    learning_rates: Sequence[float] | None, num_epochs: Sequence[float] | None
) -> dict[str, FinetuneSettings]:
    """Returns a dict that maps a directory name to settings, for all combinations of values."""
    combinations: dict[str, FinetuneSettings] = {}
    choices: list[Sequence[float | None]] = [learning_rates or [None], num_epochs or [None]]
    for pair in itertools.product(*choices):
        values = dict(zip(("learning_rate", "num_epochs"), pair))
        name = "-".join(f"{name}_{value:g}" for name, value in values.items() if value is not None)
        if name in combinations:
            raise UserError(f"--learning_rate, --num_epochs: {name} is there twice")
        combinations[name] = settings_from_flags(FinetuneSettings, **values)
    if len(combinations) > 1 and FLAGS.folds:
        raise UserError("--learning_rate, --num_epochs: give one value each with --folds")
    return combinations


@naming_lost_workers()
def finetune(job: Finetuning) -> dict:
    """Fine-tunes once per seed. Returns the content of OUTPUT_DIR/results.json."""
    job, splits, notes = _prepare(job)
    task, initial, output_dir = job.task, job.initial, job.output_dir
    identity = {**_identity(job, splits), **origin_of(output_dir, initial.weights)}
    # These must be equal on all hosts, but a resumed run may change those outside its identity.
    run = Run(job.strategy, output_dir, {**identity, **dataclasses.asdict(job.loop)})
    with run.hold(identity):
        if run.is_chief:
            _print_plan(job, splits, notes)
        job = dataclasses.replace(job, baselines=_baselines(job, splits))
        # Include seeds of earlier calls, so that the summary covers all seeds in the directory.
        predicted = seed_run.what_is_predicted(task, splits)
        metrics = {
            seed: seed_run.kept_results(stored, predicted)["metrics"]
            for seed, stored in results.stored_results(output_dir).items()
        }
        for seed in job.random_seeds:
            directory = os.path.join(output_dir, f"seed_{seed}")
            of_seed = Run(job.strategy, directory, {**run.settings, "seed": seed})
            of_seed.save_model_files(initial.config, initial.tokenizer)
            metrics[seed] = seed_run.run_seed(of_seed, job, splits, seed)["metrics"]
        summary = results.summarise(task.name, task.best_metric, dict(sorted(metrics.items())))
        if job.baselines:
            summary["dev"]["baselines"] = job.baselines
        if run.is_chief:
            results.write_summary(output_dir, summary)
            of_dev = notes.get("dev", [])
            print("".join(f"{line}\n" for line in of_dev if line.startswith("warning")), end="")
    return summary


def _baselines(job: Finetuning, splits: dict[str, TaskSplit]) -> dict[str, dict]:
    """Returns the job's baselines. If they are to be scored, the first host does so."""
    if job.baselines is not None:
        return job.baselines
    if "dev" not in splits or not is_chief(job.strategy):
        return {}
    task, train, dev = job.task, splits["train"], splits["dev"]
    of = {
        **seed_run.what_is_predicted(task, {"dev": dev}),
        "train": seed_run.fingerprint(train),
    }

    def score() -> dict[str, dict]:
        found = score_baselines(task, [(train.examples, dev.examples)])
        if not KINDS[task.description().model["kind"]].our_head:  # no new layer
            answers = seed_run.answers_untrained(job, dev)
            found["untrained"] = scored(task, "untrained", [*answers.rows()])
        return found

    return kept_baselines(f"{job.output_dir}/baselines.json", of, task.best_metric, score)


def compare_settings(job: Finetuning, combinations: Mapping[str, FinetuneSettings]) -> None:
    """Fine-tunes once per combination of settings, and writes which one is best on dev."""
    if not (job.divide or job.task.read("dev")):
        raise UserError(
            "--learning_rate, --num_epochs: several values are compared on dev: give --dev_file or "
            "--dev_fraction"
        )
    # Combinations of later calls are compared, too: only the two settings may differ.
    prepared, splits, _ = _prepare(job)
    for settings in combinations.values():
        choose(settings, job.loop, job.initial.config, len(splits["train"].sequences))[0].check(
            job.strategy
        )
    given = {**dataclasses.asdict(job.settings), **job.loop.identity()}
    identity = {**_identity(prepared, splits), **given}
    identity["dev"] = seed_run.fingerprint(splits["dev"])
    del identity["learning_rate"], identity["num_epochs"]
    with Run(job.strategy, job.output_dir, {}).hold(identity):
        job = dataclasses.replace(job, baselines=_baselines(prepared, splits))
        del splits
        runs = {n: dataclasses.replace(job, settings=of) for n, of in combinations.items()}
        summaries = finetune_each(runs)
        if is_chief(job.strategy):
            results.write_combinations(job.output_dir, summaries)


def cross_validate(job: Finetuning, folds: int) -> None:
    """Fine-tunes with each fold as dev set. Scores the first seed's predictions for all rows."""
    examples = job.task.read("train") or []
    numbers = dev_split.fold_numbers(examples, folds)
    runs = {
        f"fold_{fold}": dataclasses.replace(
            job, divide=lambda *_, fold=fold: np.equal(numbers, fold), baselines={}
        )
        for fold in range(1, folds + 1)
    }
    # Refuse wrong settings before the directory is claimed.
    _prepare(runs["fold_1"])
    with Run(job.strategy, job.output_dir, {}).hold({"folds": folds}):
        finetune_each(runs)
        if is_chief(job.strategy):
            score_out_of_fold(job, examples, numbers)


def _prepare(job: Finetuning) -> tuple[Finetuning, dict[str, TaskSplit], dict[str, list[str]]]:
    """Reads and tokenizes the examples, and checks all settings.

    Returns the job with a weighted task, sequence length and number of steps; the splits; and the
    lines of the plan that compare each split with train.
    """
    config, tokenizer, _, trained_length = job.initial
    if objection := job.task.objection(config, job.settings, job.strategy):
        raise UserError(objection)
    length = job.max_seq_length
    program.check_max_seq_length(length, config.max_position_embeddings, trained_length)
    examples_of, notes = _read_splits(job)
    task = job.task.weighted(examples_of["train"])
    # Tokenize before a model is created, because Keras' seeding invalidates the tokenizer's graph.
    splits = {
        name: TaskSplit(examples, *task.encode(examples, tokenizer, length, name == "train"))
        for name, examples in examples_of.items()
    }
    if config.type_vocab_size == 1 and any(s.sequences.has_pairs() for s in splits.values()):
        raise UserError(
            f"--task={task.name}: the examples are pairs of texts, but the model has one segment "
            "type (type_vocab_size 1): take a model with two, or make one text of each pair"
        )
    settings = dataclasses.replace(job.settings, max_seq_length=length)
    num_examples = len(splits["train"].sequences)
    settings, loop, chosen = choose(settings, job.loop, config, num_examples)
    settings.check(job.strategy)
    if loop.eval_steps and "dev" not in splits:
        raise UserError(
            f"--task={task.name}: there is no dev set to choose the best weights by: give "
            "--dev_file or --dev_fraction, or take the last weights with --eval_steps=0"
        )
    chosen = {**chosen, **job.chosen}
    job = dataclasses.replace(job, task=task, settings=settings, loop=loop, chosen=chosen)
    return job, splits, notes


def _identity(job: Finetuning, splits: dict[str, TaskSplit]) -> dict[str, Any]:
    """Returns all values, except the seed, that the final weights depend on."""
    config, weights = job.initial.config, job.initial.weights
    return {
        "task": job.task.name,
        **job.task.description().model,
        "train": seed_run.fingerprint(splits["train"]),
        # The dev set is used to select the best weights. Test sets do not affect the weights.
        "dev": seed_run.fingerprint(splits["dev"]) if job.loop.eval_steps else None,
        # Hash the weights even if this seed has checkpoints, because the next seed needs them.
        "init_weights": weights and hash_of_weights(weights),
        "vocabulary": job.initial.tokenizer.sha256,
        **{f"config.{name}": value for name, value in dataclasses.asdict(config).items()},
        **dataclasses.asdict(job.settings),
        **job.loop.identity(),
        **({"dev_division": dev_split.DIVISION} if job.divide else {}),
    }


def initial_model(
    init_checkpoint: str | None,
    albert_config: str | None,
    spm_model_file: str | None,
    hidden_dropout_prob: float | None = None,
    num_hidden_layers: int | None = None,
) -> InitialModel:
    """Returns the initial model. The arguments are the values of the flags with the same names.

    Raises a UserError if the weights do not fit `num_hidden_layers` layers.
    """
    if init_checkpoint:
        for name, value in (("albert_config", albert_config), ("spm_model_file", spm_model_file)):
            if value:
                raise UserError(f"--{name} is the checkpoint's own: remove the flag")
        initial = read_initial_model(init_checkpoint)
    elif albert_config and spm_model_file:
        tokenizer = AlbertTokenizer(spm_model_file)
        size = tokenizer.vocab_size
        config = AlbertConfig.for_vocabulary(albert_config, size, spm_model_file)
        initial = InitialModel(config, tokenizer, None, config.max_position_embeddings)
    else:
        raise UserError(
            "give --init_checkpoint, the pre-trained weights; or, to start from random weights, "
            "both --albert_config and --spm_model_file"
        )
    changes: dict[str, Any] = {}
    if hidden_dropout_prob is not None:
        changes["hidden_dropout_prob"] = hidden_dropout_prob
        changes["attention_probs_dropout_prob"] = hidden_dropout_prob
    if num_hidden_layers:
        changes["num_hidden_layers"] = num_hidden_layers
        if initial.weights and not _fits(initial.config, num_hidden_layers):
            trained = initial.config
            depths = range(1, trained.num_hidden_layers + 1)
            possible = ", ".join(str(depth) for depth in depths if _fits(trained, depth))
            raise UserError(
                f"--num_hidden_layers={num_hidden_layers}: {init_checkpoint!r} was trained with "
                f"{trained.num_hidden_layers} layers (parameter_sharing "
                f"{trained.parameter_sharing!r}, num_hidden_groups {trained.num_hidden_groups}); "
                f"with this number, other weights would be combined: give one of {possible}"
            )
    return initial._replace(config=dataclasses.replace(initial.config, **changes))


def _fits(trained: AlbertConfig, depth: int) -> bool:
    """Returns whether `depth` layers combine attention and feed-forward weights as trained."""
    if depth < trained.num_hidden_groups:
        return False
    config = dataclasses.replace(trained, num_hidden_layers=depth)
    return {*sharing_plan(config)} <= {*sharing_plan(trained)}


def _read_splits(job: Finetuning) -> tuple[dict[str, list], dict[str, list[str]]]:
    """Returns the examples of each existing split, and lines that compare the split with train."""
    task = job.task
    names = ("train", "dev", *task.other_splits())
    splits = {name: examples for name in names if (examples := task.read(name)) is not None}
    if job.divide and "dev" in splits:
        raise UserError("--dev_fraction: a dev set is given too: omit one")
    rows = splits["train"]
    shared, is_dev = dev_split.shared_texts(rows), np.zeros(len(rows), bool)
    if job.divide:
        is_dev = job.divide(rows, shared)
        for name, places in (("train", ~is_dev), ("dev", is_dev)):
            splits[name] = [*itertools.compress(rows, places)]
    train = {text for of_row in itertools.compress(shared.texts, ~is_dev) for text in of_row} - {""}
    notes = {
        name: split_report.warn_of_overlap(name, splits[name], train)
        for name in splits.keys() - {"train"}
    }
    if job.divide:
        notes["dev"] += split_report.describe_division(shared)
    if "dev" in splits:
        notes["dev"] += split_report.warn_of_rare_labels(splits["train"], splits["dev"])
    return splits, notes


def _seeds(texts: Sequence[str]) -> list[int]:
    numbers = [int(text) for text in texts if text.isdecimal() and int(text) < 2**31]
    if not texts or len(set(numbers)) < len(texts):
        raise UserError(
            f"--random_seeds={','.join(texts)}: expected different whole numbers from 0 to "
            "2147483647, such as 1,2,3"
        )
    return numbers


def _print_plan(job: Finetuning, splits: dict[str, TaskSplit], notes: dict[str, list[str]]) -> None:
    train, config, settings = splits["train"], job.initial.config, job.settings
    tokenizer, longest = job.initial.tokenizer, config.max_position_embeddings
    lines = []
    for name, (examples, sequences, _) in splits.items():
        summary = job.task.summarise(examples)
        lines += split_report.describe_split(
            name, examples, sequences, tokenizer, job.max_seq_length, summary, longest
        )
        lines += notes.get(name, [])
    data = "\n           ".join(line for line in lines if not line.startswith("warning"))
    warnings = "".join(line + "\n" for line in lines if line.startswith("warning"))
    values = {name: "" if value is True else f"={value:g}" for name, value in job.chosen.items()}
    chosen = " ".join(f"--{name}{value}" for name, value in values.items())
    chosen = f"\n  chosen   {chosen}" * bool(job.chosen)
    total = settings.num_train_steps * settings.global_batch_size
    print(
        f"""fine-tuning on {job.task.name}
  model    {config.num_hidden_layers} layers of {config.hidden_size}
  data     {data}
{settings.describe(job.strategy)}
  steps    {settings.num_train_steps:,} = {total / len(train.sequences):.1f} epochs; \
{settings.num_warmup_steps:,} of warm-up to {settings.learning_rate:.4g}{chosen}
  seeds    {", ".join(map(str, job.random_seeds))}
{warnings}""".rstrip(),
        flush=True,
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
