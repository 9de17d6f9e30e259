"""Pre-trains an ALBERT on segment records: masked LM and sentence order, LAMB.

Records come from pipelines.create_pretraining_data. Everything the run makes lies in --model_dir:
config, vocabulary, checkpoints, metrics.jsonl, TensorBoard curves and curves.png. A killed run,
started again with the same command, goes on from its last checkpoint and ends in the same weights
(on a CPU: GPUs add up some gradients in an order of their own).

Examples:
  python -m pipelines.pretrain --record_dir=records --spm_model_file=vocab.model \\
      --albert_config=albert_base --max_seq_length=128 --global_batch_size=32 \\
      --num_train_steps=10000 --num_warmup_steps=500 --learning_rate=0.001 --model_dir=runs/base
  python -m pipelines.pretrain --flagfile=pipelines/recipes/albert_base.flags \\
      --record_dir=gs://bucket/records --spm_model_file=gs://bucket/vocab.model \\
      --model_dir=gs://bucket/runs/base --strategy=tpu --tpu=local      # on a TPU VM; untried
"""

from __future__ import annotations

import dataclasses
import math
import os

import tensorflow as tf
from absl import flags

from albert_tf import config as config_lib
from albert_tf import losses, optimization, program
from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.pretraining_dataset import ExampleOptions, pretraining_dataset
from pipelines.data.records import Manifest
from pipelines.data.sentence_pairs import SENTENCE_OBJECTIVES
from pipelines.training import checkpointing, metrics_log, train_loop
from pipelines.training.strategy import STRATEGIES, create_strategy

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What changes the weights that a run ends in."""

    global_batch_size: int
    num_train_steps: int
    num_warmup_steps: int
    learning_rate: float
    weight_decay: float
    lamb_bias_correction: bool
    random_seed: int
    steps_per_loop: int


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string("record_dir", None, "Records of create_pretraining_data.", required=True)
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
        "Weights to begin with: a model directory or checkpoint of the same shape, of any depth "
        "where layers are shared.",
    )
    flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the pieces to predict.", 0.0, 1.0)
    flags.DEFINE_integer(
        "max_predictions_per_seq",
        None,
        "Most predictions in an example; default ceil(masked_lm_prob * max_seq_length).",
        lower_bound=1,
    )
    flags.DEFINE_integer("ngram", 3, "Longest masked n-gram, in words.", lower_bound=1)
    flags.DEFINE_enum(
        "sentence_objective",
        "sop",
        SENTENCE_OBJECTIVES,
        "sop: are two segments in order; nsp: is the second from another document; or none.",
    )
    flags.DEFINE_integer("global_batch_size", 4096, "Examples in a step.", lower_bound=1)
    flags.DEFINE_integer("num_train_steps", 125000, "Steps in all.", lower_bound=1)
    flags.DEFINE_integer("num_warmup_steps", 3125, "Steps of linear warm-up.", lower_bound=0)
    flags.DEFINE_float(
        "learning_rate", 0.00176, "Peak learning rate, at the end of the warm-up.", 0.0
    )
    flags.DEFINE_float("weight_decay", 0.01, "Decoupled weight decay.", lower_bound=0.0)
    flags.DEFINE_bool(
        "lamb_bias_correction", True, "tensorflow-addons' LAMB; False: the ALBERT authors'."
    )
    flags.DEFINE_integer(
        "random_seed", 12345, "Of weights, data order, masks and dropout.", 0, 2**31 - 1
    )
    flags.DEFINE_integer("steps_per_loop", 20, "Steps between two log entries.", lower_bound=1)
    flags.DEFINE_integer(
        "save_checkpoint_steps", 1000, "Steps between checkpoints: a multiple of steps_per_loop.", 1
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
        options=ExampleOptions(
            max_seq_length=FLAGS.max_seq_length,
            max_predictions_per_seq=FLAGS.max_predictions_per_seq,
            masked_lm_prob=FLAGS.masked_lm_prob,
            ngram=FLAGS.ngram,
            sentence_objective=FLAGS.sentence_objective,
            seed=FLAGS.random_seed,
        ),
        settings=RunSettings(
            **{field.name: FLAGS[field.name].value for field in dataclasses.fields(RunSettings)}
        ),
        save_checkpoint_steps=FLAGS.save_checkpoint_steps,
        strategy=create_strategy(FLAGS.strategy, FLAGS.tpu),
    )


def pretrain(
    *,
    record_dir: str,
    spm_model_file: str,
    model_dir: str,
    albert_config: str,
    options: ExampleOptions,
    settings: RunSettings,
    save_checkpoint_steps: int,
    strategy: tf.distribute.Strategy,
    init_checkpoint: str | None = None,
) -> None:
    """Pre-trains to settings.num_train_steps, going on where `model_dir` stands.

    Raises:
      ValueError: if records, vocabulary, config and settings do not fit together, or `model_dir`
        holds another run.
    """
    manifest = Manifest.read(record_dir)
    # Lower-casing was decided when the records were written.
    tokenizer = AlbertTokenizer(spm_model_file, do_lower_case=manifest.do_lower_case)
    manifest.check(tokenizer, options.max_seq_length)
    if not manifest.splits["train"].examples:
        raise ValueError(f"{record_dir!r} holds no records to train on: its corpus is too small")
    config = _read_config(albert_config, tokenizer, spm_model_file)
    if options.max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={options.max_seq_length} is beyond the position table of "
            f"{albert_config} ({config.max_position_embeddings} rows): shorten it, or raise "
            "max_position_embeddings in the config"
        )
    if save_checkpoint_steps % settings.steps_per_loop:
        raise ValueError(
            f"--save_checkpoint_steps={save_checkpoint_steps} is not a multiple of "
            f"--steps_per_loop={settings.steps_per_loop}"
        )
    replicas = strategy.num_replicas_in_sync
    if settings.global_batch_size % replicas:
        raise ValueError(
            f"--global_batch_size={settings.global_batch_size} does not divide among {replicas} "
            "replicas"
        )
    learning_rate = optimization.WarmUpPolynomialDecay(
        settings.learning_rate, settings.num_train_steps, settings.num_warmup_steps
    )

    # The initializers draw from Keras' global seed, in the order in which variables are made.
    tf.keras.utils.set_random_seed(settings.random_seed)
    with strategy.scope():
        model = AlbertForPreTraining(config)
        model.create_variables()
        optimizer = optimization.lamb(
            learning_rate, settings.weight_decay, settings.lamb_bias_correction
        )
    checkpoints = model_directory.checkpoints_directory(model_dir)
    if init_checkpoint and tf.train.latest_checkpoint(checkpoints) is None:
        # Once the run has weights of its own, the first ones may be gone.
        model_directory.restore_weights(model, model_directory.find_checkpoint(init_checkpoint)[1])

    checkpointing.claim(
        model_dir,
        {
            "config": dataclasses.asdict(config),
            "records": manifest.fingerprint(),
            "init_checkpoint": init_checkpoint,
            **dataclasses.asdict(options),
            **dataclasses.asdict(settings),
        },
    )
    config.write(os.path.join(model_dir, model_directory.CONFIG_FILE))
    tokenizer.save(model_dir)
    _print_plan(model, manifest, options, settings, strategy, record_dir, model_dir)

    def dataset_fn(first_step, context):
        return pretraining_dataset(
            record_dir,
            options,
            tokenizer,
            settings.global_batch_size,
            start_step=first_step,
            input_pipeline_id=context.input_pipeline_id,
            num_input_pipelines=context.num_input_pipelines,
            replica_batch_size=settings.global_batch_size // replicas,
        )

    train_loop.train(
        strategy=strategy,
        model=model,
        optimizer=optimizer,
        dataset_fn=dataset_fn,
        objectives=losses.PRETRAINING_OBJECTIVES,
        sums_fn=losses.pretraining_sums,
        loss_fn=losses.pretraining_loss,
        model_dir=model_dir,
        num_train_steps=settings.num_train_steps,
        steps_per_loop=settings.steps_per_loop,
        save_checkpoint_steps=save_checkpoint_steps,
        global_batch_size=settings.global_batch_size,
        max_seq_length=options.max_seq_length,
        seed=settings.random_seed,
    )
    curves = metrics_log.draw_curves(model_dir)
    print(f"weights      {model_directory.find_checkpoint(model_dir)[1]}")
    print(f"curves       {curves}")
    print(f"TensorBoard  tensorboard --logdir {os.path.join(model_dir, 'tensorboard')}")


def _read_config(albert_config: str, tokenizer: AlbertTokenizer, spm_model_file: str):
    if albert_config in config_lib.NAMES:
        named = AlbertConfig.named(albert_config)
        return dataclasses.replace(named, vocab_size=tokenizer.vocab_size)
    if not tf.io.gfile.exists(albert_config):
        raise ValueError(
            f"--albert_config={albert_config!r} is neither a file nor one of "
            f"{', '.join(config_lib.NAMES)}"
        )
    config = AlbertConfig.read(albert_config)
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"{albert_config!r} has vocab_size {config.vocab_size}, but the vocabulary "
            f"{spm_model_file!r} has {tokenizer.vocab_size} pieces: they must be equal"
        )
    return config


def _print_plan(model, manifest, options, settings, strategy, record_dir, model_dir) -> None:
    """Says in words what is about to be done."""
    replicas = strategy.num_replicas_in_sync
    specs = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    devices = ", ".join(f"{spec.device_type} {spec.device_index}" for spec in specs)
    config = model.config
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    train = manifest.splits["train"]
    examples = settings.num_train_steps * settings.global_batch_size
    print(
        f"""pre-training {model_dir}
  model    {config.num_hidden_layers} layers of {config.hidden_size}, embeddings of \
{config.embedding_size}, {config.vocab_size:,} pieces: {parameters:,} parameters
  data     {record_dir}: {train.examples:,} segments of up to {options.max_seq_length} pieces
  batch    {settings.global_batch_size:,} examples a step = {replicas} \
{"replica" if replicas == 1 else "replicas"} x {settings.global_batch_size // replicas:,}, on \
{devices}
  steps    {settings.num_train_steps:,} = {examples:,} examples = \
{examples / train.examples:,.1f} epochs; {settings.num_warmup_steps:,} of warm-up to \
{settings.learning_rate:g}""",
        flush=True,
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
