"""Pre-trains an ALBERT on segment records: masked LM and sentence order, LAMB.

Records come from pipelines.create_pretraining_data, or are the reference's own, made ready by
pipelines.index_records; --record_dir=a,b --record_weights=0.7,0.3 mixes directories. Everything the
run makes lies in --model_dir: config, vocabulary, checkpoints, metrics.jsonl, TensorBoard curves
and curves.png. A killed run, started again with the same command, goes on from its last checkpoint
and ends in the same weights (on a CPU: GPUs add up some gradients in an order of their own).

Examples:
  python -m pipelines.pretrain --record_dir=records --spm_model_file=vocab.model \\
      --albert_config=albert_base --max_seq_length=128 --global_batch_size=32 \\
      --num_train_steps=10000 --num_warmup_steps=500 --learning_rate=0.001 --model_dir=runs/base
  python -m pipelines.pretrain --flagfile=pipelines/recipes/albert_base.flags \\
      --record_dir=gs://bucket/records --spm_model_file=gs://bucket/vocab.model \\
      --model_dir=gs://bucket/runs/base --strategy=tpu --tpu=local      # on a TPU VM; untried
  # The published batch on one small device: 4,096 examples a step, 16 in memory at a time.
  python -m pipelines.pretrain --flagfile=pipelines/recipes/albert_base.flags \\
      --record_dir=records --spm_model_file=vocab.model --model_dir=runs/base \\
      --gradient_accumulation_steps=256 --recompute --eval_steps=1000
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import flags

from albert_tf import config as config_lib
from albert_tf import files, losses, metrics, program
from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.flops import training_flops_per_example
from albert_tf.models import AlbertForPreTraining
from albert_tf.tokenization import VOCABULARY_FILE, AlbertTokenizer
from pipelines.data.examples import ExampleOptions, define_example_flags, options_from
from pipelines.data.heldout_examples import heldout_examples
from pipelines.data.pretraining_dataset import (
    Source,
    pretraining_dataset,
    read_sources,
)
from pipelines.data.training_order import BLOCK_ROWS
from pipelines.training import checkpointing, metrics_log, train_loop
from pipelines.training.heldout import check_heldout_split, make_evaluation
from pipelines.training.run_settings import RunSettings, define_run_flags, precision
from pipelines.training.strategy import (
    STRATEGIES,
    create_strategy,
    is_chief,
    naming_lost_workers,
)
from pipelines.training.train_loop import Schedule

FLAGS = flags.FLAGS

_RECORD_NAMES = {"segments": "segments", "reference": "static examples"}


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string(
        "record_dir",
        None,
        "Records of create_pretraining_data or index_records; directories, comma between.",
        required=True,
    )
    flags.DEFINE_list(
        "record_weights",
        None,
        "Shares of the directories in the run, such as 0.7,0.3; default their numbers of examples.",
    )
    flags.DEFINE_string("spm_model_file", None, "The records' SentencePiece model.", required=True)
    flags.DEFINE_string("model_dir", None, "Where the run lies or shall lie.", required=True)
    flags.DEFINE_string(
        "albert_config",
        "albert_base",
        f"A size ({', '.join(config_lib.NAMES)}), which takes the vocabulary's size, or the path "
        "of an albert_config.json.",
    )
    flags.DEFINE_integer(
        "max_seq_length", 512, "Pieces in an example, padded or not.", lower_bound=8
    )
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Weights to begin with: a model directory or checkpoint of the same vocabulary and shape, "
        "of any depth where layers are shared.",
    )
    define_example_flags()
    define_run_flags()
    flags.DEFINE_integer("steps_per_loop", 20, "Steps between two log entries.", lower_bound=1)
    flags.DEFINE_integer(
        "save_checkpoint_steps", 1000, "Steps between checkpoints: a multiple of steps_per_loop.", 1
    )
    flags.DEFINE_integer(
        "max_bad_batches",
        0,
        "Batches without a finite loss and gradient to pass over, each time the program runs.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "eval_steps",
        0,
        "Steps between evaluations on held-out records: a multiple of steps_per_loop; 0: none. "
        "MODEL_DIR/best keeps the weights of the highest masked-LM accuracy.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "eval_examples", 10_000, "Examples in an evaluation, drawn from all held-out ones.", 1
    )
    flags.DEFINE_integer(
        "early_stopping_evaluations",
        0,
        "End after so many evaluations without a higher masked-LM accuracy; 0: never.",
        lower_bound=0,
    )
    flags.DEFINE_float(
        "peak_flops_per_second", None, "Of all devices: the log gives the share of it.", 1.0
    )
    flags.DEFINE_enum("strategy", "one_device", STRATEGIES, "Where to run.")
    flags.DEFINE_string("tpu", "", "'local' on a TPU VM, for --strategy=tpu.")


def main(_) -> None:
    """Reads the flags."""
    pretrain(
        record_dir=FLAGS.record_dir,
        spm_model_file=FLAGS.spm_model_file,
        model_dir=FLAGS.model_dir,
        albert_config=FLAGS.albert_config,
        init_checkpoint=FLAGS.init_checkpoint,
        record_weights=_numbers(FLAGS.record_weights),
        options=options_from(FLAGS),
        settings=RunSettings(
            **{field.name: FLAGS[field.name].value for field in dataclasses.fields(RunSettings)}
        ),
        schedule=Schedule(
            **{field.name: FLAGS[field.name].value for field in dataclasses.fields(Schedule)}
        ),
        eval_examples=FLAGS.eval_examples,
        peak_flops_per_second=FLAGS.peak_flops_per_second,
        strategy=create_strategy(FLAGS.strategy, FLAGS.tpu),
    )


@naming_lost_workers()
def pretrain(
    *,
    record_dir: str,
    spm_model_file: str,
    model_dir: str,
    albert_config: str,
    options: ExampleOptions,
    settings: RunSettings,
    schedule: Schedule,
    strategy: tf.distribute.Strategy,
    init_checkpoint: str | None = None,
    record_weights: Sequence[float] | None = None,
    eval_examples: int = 10_000,
    peak_flops_per_second: float | None = None,
) -> None:
    """Pre-trains to settings.num_train_steps, going on where `model_dir` stands.

    Raises:
      ValueError: if records, vocabulary, config and settings do not fit together, or `model_dir`
        holds another run.
    """
    sources = read_sources(record_dir, record_weights)
    # Lower-casing was decided when the records were written.
    tokenizer = AlbertTokenizer(spm_model_file, sources[0].manifest.do_lower_case)
    for source in sources:
        source.manifest.check(source.record_dir, tokenizer, options)
    shares = {source.manifest.share_with_order for source in sources}
    if options.sentence_objective == "sop" and shares == {0.0}:
        raise ValueError(
            f"--sentence_objective=sop: no segment of {record_dir!r} has two parts whose order can "
            "be asked (a document's first segment has none): write records of a shorter "
            "--max_seq_length, or give --sentence_objective=none"
        )
    config = AlbertConfig.for_vocabulary(albert_config, tokenizer.vocab_size, spm_model_file)
    if options.max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={options.max_seq_length} is beyond the position table of "
            f"{albert_config} ({config.max_position_embeddings} rows): shorten it, or raise "
            "max_position_embeddings in the config"
        )
    schedule.check()
    settings.check(strategy)
    depths = settings.depths(config)

    # The initializers draw from Keras' global seed, in the order in which variables are made.
    tf.keras.utils.set_random_seed(settings.random_seed)
    with strategy.scope(), precision(settings.mixed_precision):
        model = AlbertForPreTraining(config, settings.recompute)
        model.create_variables()
        if options.sentence_objective == "none":
            # With no gradient, LAMB would still shrink a weight by the learning rate at every step.
            model.encoder.pooler.trainable = False
            model.sentence_order.trainable = False
        optimizer = settings.optimizer()
    init_weights = init_checkpoint and _read_first_weights(
        model, tokenizer, init_checkpoint, model_dir, sources[0].manifest.heldout_split
    )

    # What changes the weights that the run ends in. The number of replicas, which changes the draws
    # of dropout alone, is left out: a run may go on on another machine.
    identity = {
        **{f"config.{name}": value for name, value in dataclasses.asdict(config).items()},
        "records": ",".join(source.manifest.fingerprint() for source in sources),
        "rows_of_each": [source.quota for source in sources] if len(sources) > 1 else None,
        "init_weights": init_weights,
        **dataclasses.asdict(options),
        **dataclasses.asdict(settings),
        "steps_per_loop": schedule.steps_per_loop,
        # Not the last weights but the best ones depend on these; and what may be called held out.
        "eval_examples": eval_examples,
        "heldout_split": sources[0].manifest.heldout_split,
    }
    # Hosts must agree on this too; but a run that ended at a bad batch may go on with more allowed.
    agreed = {**identity, "max_bad_batches": schedule.max_bad_batches}

    def dataset_fn(first_step, context):
        return pretraining_dataset(
            record_dir,
            options,
            tokenizer,
            settings.global_batch_size,
            start_step=first_step,
            input_pipeline_id=context.input_pipeline_id,
            num_input_pipelines=context.num_input_pipelines,
            replica_batch_size=settings.global_batch_size // strategy.num_replicas_in_sync,
            record_weights=record_weights,
        )

    heldout, lengths = None, {}
    if schedule.eval_steps:
        batch_size = settings.global_batch_size // settings.gradient_accumulation_steps
        heldout, lengths = heldout_examples(sources, options, tokenizer, batch_size, eval_examples)

    def stage(first_step, num_hidden_layers):
        forward = functools.partial(model, num_hidden_layers=num_hidden_layers)
        train_step = settings.train_step(model, optimizer, num_hidden_layers)
        flops = training_flops_per_example(
            model, options.max_seq_length, options.max_predictions_per_seq, num_hidden_layers
        )
        rates = {
            "examples_per_second": 1,
            "tokens_per_second": options.max_seq_length,
            "flops_per_second": flops,
        }
        if peak_flops_per_second:
            rates["share_of_peak"] = flops / peak_flops_per_second
        evaluate = None
        if heldout:
            scored = functools.partial(forward, hidden_states=True)
            evaluate = make_evaluation(strategy, scored, heldout, lengths)
        return train_loop.Stage(first_step, train_step, rates, evaluate)

    hold = files.hold_directory(model_dir) if is_chief(strategy) else contextlib.nullcontext()
    with hold:
        if is_chief(strategy):
            checkpointing.claim(model_dir, identity)
            config.write(os.path.join(model_dir, model_directory.CONFIG_FILE))
            tokenizer.save(model_dir)
            _print_plan(model, sources, options, settings, strategy, model_dir)
        train_loop.train(
            strategy=strategy,
            model=model,
            optimizer=optimizer,
            dataset_fn=dataset_fn,
            stages=[stage(*depth) for depth in depths],
            zero_sums=losses.zero_sums(losses.PRETRAINING_OBJECTIVES),
            metrics_fn=metrics.pretraining_metrics,
            num_train_steps=settings.num_train_steps,
            schedule=schedule,
            model_dir=model_dir,
            global_batch_size=settings.global_batch_size,
            best_metric="heldout_masked_lm_accuracy",
            settings_hash=zlib.crc32(json.dumps(agreed).encode()) >> 1,
        )
    if is_chief(strategy):
        curves = metrics_log.draw_curves(model_dir)
        print(f"weights      {model_directory.find_checkpoint(model_dir)[1]}")
        best = model_directory.list_checkpoints(os.path.join(model_dir, model_directory.BEST_DIR))
        if best:
            print(f"best         {best[-1]}")
        print(f"curves       {curves}")
        print(f"TensorBoard  tensorboard --logdir {os.path.join(model_dir, 'tensorboard')}")


def _read_first_weights(
    model, tokenizer, init_checkpoint: str, model_dir: str, heldout_split: dict[str, Any] | None
) -> str:
    """Reads what --init_checkpoint names; returns a hash of it, by which a run knows it again.

    Once the run has weights of its own nothing is read: the first ones may be gone, or grown older.

    Raises:
      ValueError: if they are of another vocabulary or shape, or of a run that may have been trained
        on what this one holds out.
    """
    run_file = os.path.join(model_dir, model_directory.RUN_FILE)
    checkpoints = model_directory.checkpoints_directory(model_dir)
    if tf.io.gfile.exists(run_file) and model_directory.list_checkpoints(checkpoints):
        init_weights = files.read_json(run_file).get("init_weights")
        if init_weights:  # else the run began without, which is refused by its settings
            return init_weights
    directory, checkpoint = model_directory.find_checkpoint(init_checkpoint)
    check_heldout_split(directory, heldout_split)
    theirs, ours = model_directory.read_config(directory, checkpoint), model.config
    # What no variable's name or shape tells.
    names = ["num_attention_heads", "hidden_act"]
    names += ["parameter_sharing", "num_hidden_groups", "inner_group_num"]
    if (ours.parameter_sharing, ours.num_hidden_groups) != ("all", 1):
        names.append("num_hidden_layers")
    settings = {name: (getattr(theirs, name), getattr(ours, name)) for name in names}
    if tf.io.gfile.exists(os.path.join(directory, VOCABULARY_FILE)):
        known = AlbertTokenizer.load(directory)
        settings["vocabulary"] = (known.sha256[:16], tokenizer.sha256[:16])
        settings["do_lower_case"] = (known.do_lower_case, tokenizer.do_lower_case)
    if differing := [f"{n} {a!r} there, {b!r} here" for n, (a, b) in settings.items() if a != b]:
        raise ValueError(
            f"--init_checkpoint={init_checkpoint!r} is of another model ({'; '.join(differing)}): "
            "give one of the same vocabulary and shape, or leave the flag out"
        )
    model_directory.restore_weights(model, checkpoint)
    return model_directory.hash_of_weights(checkpoint)


def _numbers(texts: Sequence[str] | None) -> list[float] | None:
    try:
        return [float(text) for text in texts] if texts else None
    except ValueError:
        raise ValueError(
            f"--record_weights={','.join(texts)}: expected numbers, comma between, such as 0.7,0.3"
        ) from None


def _print_plan(model, sources: Sequence[Source], options, settings, strategy, model_dir) -> None:
    """Says in words what is about to be done."""
    replicas, parts = strategy.num_replicas_in_sync, settings.gradient_accumulation_steps
    rows = settings.global_batch_size // (replicas * parts)
    specs = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    devices = ", ".join(f"{spec.device_type} {spec.device_index}" for spec in specs)
    config = model.config
    layers = " -> ".join(str(depth) for _, depth in settings.depths(config))
    parameters = sum(math.prod(variable.shape) for variable in model.variables)
    examples = settings.num_train_steps * settings.global_batch_size
    data = []
    for source in sources:
        available = source.manifest.splits["train"].examples
        share, order = source.quota / BLOCK_ROWS, ""
        if options.sentence_objective == "sop" and source.manifest.share_with_order is not None:
            order = f", {100 * source.manifest.share_with_order:.0f} % with an order to learn"
        data.append(
            f"{source.record_dir}: {available:,} {_RECORD_NAMES[source.manifest.format]} of up to "
            f"{options.max_seq_length} pieces, {100 * share:.4g} % of the run, "
            f"{examples * share / available:,.1f} epochs{order}"
        )
    data = "\n           ".join(data)
    print(
        f"""pre-training {model_dir}
  model    {layers} layers of {config.hidden_size}, embeddings of {config.embedding_size}, \
{config.vocab_size:,} pieces: {parameters:,} parameters
  data     {data}
  batch    {settings.global_batch_size:,} examples a step = {replicas} \
{"replica" if replicas == 1 else "replicas"} x {f"{parts} micro-batches of " if parts > 1 else ""}\
{rows:,}, on {devices}
  steps    {settings.num_train_steps:,} = {examples:,} examples; \
{settings.num_warmup_steps:,} of warm-up to {settings.peak_learning_rate:.4g}""",
        flush=True,
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
