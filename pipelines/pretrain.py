"""Pre-trains an ALBERT with masked-LM and sentence-order losses, using LAMB or AdamW.

--record_dir=a,b --record_weights=0.7,0.3 mixes two directories of records. All outputs are written
to --model_dir. Run the same command again to resume a killed run from its last checkpoint. On a
CPU, the final weights are the same as without the interruption. On GPUs they can differ, because
GPUs sum some gradients in varying order.

Examples:
  python -m pipelines.pretrain --record_dir=records --spm_model_file=vocab.model \\
      --albert_config=albert_base --max_seq_length=128 --global_batch_size=32 \\
      --num_train_steps=10000 --num_warmup_steps=500 --learning_rate=0.001 --model_dir=runs/base
  # The published batch size on one small device: 4,096 examples per step, 16 in memory.
  python -m pipelines.pretrain --flagfile=pipelines/recipes/albert_base.flags \\
      --record_dir=records --spm_model_file=vocab.model --model_dir=runs/base \\
      --gradient_accumulation_steps=256 --recompute --eval_steps=1000
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import flags, logging

from albert_tf import config as config_lib
from albert_tf import optimization
from albert_tf.checkpoints import model_directory
from albert_tf.checkpoints.model_directory import recorded_settings
from albert_tf.checkpoints.opening import ALBERT_TF, OpenModel, open_model
from albert_tf.config import AlbertConfig
from albert_tf.encoder import sharing_plan
from albert_tf.jobs import job_directory, program
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer, find_vocabulary
from .data.examples import DRAWS, ExampleOptions
from .data.heldout_examples import heldout_examples
from .data.pretraining_dataset import Source, check_sources, pretraining_dataset, read_sources
from .data.records import naming_damaged_shards
from .data.training_order import BLOCK_ROWS
from .training import metrics_log
from .training.heldout import check_heldout_split, make_evaluation, make_scoring
from .training.run import (
    InitialModel,
    Run,
    has_checkpoint,
    hash_of_weights,
    initial_path,
    origin_of,
)
from .training.settings import (
    PUBLISHED,
    LoopSettings,
    PretrainingSettings,
    check_steps_flags,
    precision,
)
from .training.strategy import create_strategy, define_strategy_flags, naming_lost_workers
from .training.train_loop import TrainLoop
from .training.train_step import TrainStep, pretraining_objective

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The records, vocabulary, model and output directory of a run."""

    record_dir: str = setting(
        flags.DEFINE_string,
        "Output directories of create_pretraining_data or index_records, comma-separated.",
    )
    spm_model_file: str = setting(
        flags.DEFINE_string, "Vocabulary of the records (.model or .txt)."
    )
    model_dir: str = setting(flags.DEFINE_string, "Output directory. An existing run is resumed.")
    record_weights: Sequence[float] | None = setting(
        flags.DEFINE_float,
        "Fraction of rows from each directory, such as 0.7,0.3. Default: by number of examples.",
        None,
    )
    albert_config: str = setting(
        flags.DEFINE_string,
        f"A named size ({', '.join(config_lib.NAMES)}) with the vocab_size of --spm_model_file, or "
        "the path of an albert_config.json.",
        "albert_base",
    )
    max_seq_length: int | None = setting(
        program.define_max_seq_length,
        "Shorter examples are padded. Default: as in the records.",
        None,
    )
    init_checkpoint: str | None = setting(
        flags.DEFINE_string,
        "Initial weights: a model directory or checkpoint with the same vocabulary and shape, or a "
        "published model (hf://OWNER/NAME@COMMIT or a URL). If its layers share all weights, the "
        "depth may differ, and so may parameter_sharing: each layer starts with these weights.",
        None,
    )


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    job_directory.define_flags()
    define_settings_flags(Inputs, several=["record_weights"])
    define_settings_flags(ExampleOptions)
    define_settings_flags(PretrainingSettings, **PUBLISHED)
    define_settings_flags(LoopSettings, steps_per_loop=20, save_checkpoint_steps=1000)
    define_strategy_flags()


def main(_) -> None:
    """Runs the program with the values of its flags."""
    check_steps_flags()
    inputs = settings_from_flags(Inputs)
    sources = read_sources(inputs.record_dir, inputs.record_weights)
    # Use the same lower-casing as in the records.
    tokenizer = AlbertTokenizer(inputs.spm_model_file, *sources[0].manifest.text_settings)
    longest = max(source.manifest.max_seq_length for source in sources)
    options = settings_from_flags(
        ExampleOptions, max_seq_length=inputs.max_seq_length or longest, seed=FLAGS.random_seed
    )
    check_sources(sources, tokenizer, options)
    config = AlbertConfig.for_vocabulary(
        inputs.albert_config, tokenizer.vocab_size, inputs.spm_model_file
    )
    if config.type_vocab_size == 1 and options.objective.has_label:
        objective = f"--sentence_objective={options.sentence_objective}"
        raise UserError(f"{objective} has pairs: expected an --albert_config of type_vocab_size 2")
    weights = _open_initial_weights(inputs.init_checkpoint, inputs.model_dir)
    job = Pretraining(
        sources=sources,
        initial=InitialModel(config, tokenizer, weights),
        init_checkpoint=inputs.init_checkpoint,
        model_dir=inputs.model_dir,
        options=options,
        settings=settings_from_flags(PretrainingSettings),
        loop=settings_from_flags(LoopSettings),
        strategy=create_strategy(FLAGS.strategy, FLAGS.tpu),
    )
    with naming_damaged_shards(*(source.record_dir for source in sources)):
        pretrain(job)


def _open_initial_weights(init_checkpoint: str | None, model_dir: str) -> OpenModel | None:
    """Opens --init_checkpoint, if given, and if the run does not have checkpoints of its own.

    A resumed run does not read the initial weights, which may have been deleted or trained further.
    """
    if not init_checkpoint:
        return None
    # Without a recorded hash, the run started from random weights, and Run.hold will fail.
    if has_checkpoint(model_dir) and recorded_settings(model_dir).get("init_weights"):
        return None
    path = initial_path(init_checkpoint, model_dir, FLAGS.strategy)
    return open_model(path, [ALBERT_TF], pretrained=True)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """The data, model and settings of a pre-training run. Call check_sources on the sources first.

    `options.seed` is the seed of data order, splits and masks.
    """

    sources: Sequence[Source]
    initial: InitialModel
    init_checkpoint: str | None
    model_dir: str
    options: ExampleOptions
    settings: PretrainingSettings
    loop: LoopSettings
    strategy: tf.distribute.Strategy


@naming_lost_workers()
def pretrain(job: Pretraining) -> None:
    """Pre-trains to the last step or stop_step. Resumes from a checkpoint in model_dir, if any.

    Raises:
      UserError: if config and settings are incompatible, or model_dir contains another run.
    """
    config, tokenizer = job.initial.config, job.initial.tokenizer
    program.check_max_seq_length(job.options.max_seq_length, config.max_position_embeddings)
    num_examples = sum(source.manifest.splits["train"].examples for source in job.sources)
    job = dataclasses.replace(job, settings=job.settings.with_steps(num_examples))
    settings, strategy = job.settings, job.strategy
    settings.check(strategy)
    model, train_step = _create_model(job)
    identity = _identity(job, _restore_initial_weights(model, job))
    identity.update(origin_of(job.model_dir, job.initial.weights))
    # These must be equal on all hosts, but a resumed run may change them.
    on_all_hosts = {**dataclasses.asdict(job.loop), "stop_step": settings.stop_step}
    run = Run(strategy, job.model_dir, {**identity, **on_all_hosts})
    dataset_fn = functools.partial(
        pretraining_dataset, job.sources, job.options, tokenizer, settings.global_batch_size
    )
    evaluate = _make_evaluation(job, model) if job.loop.eval_steps else None
    mean_length = sum(s.quota / BLOCK_ROWS * s.manifest.mean_length for s in job.sources)
    with run.hold(identity):
        run.save_model_files(config, tokenizer)
        if run.is_chief:
            _print_plan(job, model)
        loop = TrainLoop(
            run, train_step, dataset_fn, job.loop, mean_length, evaluate, settings.stop_step
        )
        loop.train()
    if run.is_chief:
        _print_results(job.model_dir)


def _create_model(job: Pretraining) -> tuple[AlbertForPreTraining, TrainStep]:
    """Creates the model, its variables and the training step with its optimizer."""
    settings = job.settings
    # Initializers use Keras' global seed, in the order in which variables are created.
    tf.keras.utils.set_random_seed(settings.random_seed)
    with job.strategy.scope(), precision(settings.mixed_precision):
        model = AlbertForPreTraining(job.initial.config, settings.recompute)
        model.create_variables()
        if not job.options.objective.has_label:
            # Without labels, these layers would be updated by weight decay only, which LAMB scales
            # to the norm of the weights. In one run, the norm shrank from 10 to 0.006 in 3,000
            # steps, and later training with labels failed.
            model.encoder.pooler.trainable = False
            model.sentence_order.trainable = False

        def forward(batch, dropout_seed):
            return model(
                batch,
                dropout_seed,
                at_separator=settings.separator_order_loss,
                unpad=settings.unpad,
            )

        objective = pretraining_objective(settings.order_loss_weight)
        optimizer = make_optimizer(settings)
        return model, TrainStep(
            forward, model, objective, optimizer, settings, settings.random_seed
        )


def _make_evaluation(job: Pretraining, model: AlbertForPreTraining) -> Callable:
    """Draws the held-out examples for all evaluations. See heldout.make_evaluation."""
    settings, tokenizer = job.settings, job.initial.tokenizer
    rows = settings.global_batch_size // settings.gradient_accumulation_steps
    heldout, baselines = heldout_examples(
        job.sources, job.options, tokenizer, rows, settings.eval_examples
    )
    score = make_scoring(job.strategy, model, heldout, model.config.vocab_size, tokenizer.mask_id)
    return make_evaluation(score, baselines, job.loop.eval_steps, tokenizer.id_to_piece)


def _identity(job: Pretraining, init_weights: str | None) -> dict[str, Any]:
    """Returns all values that the final weights depend on.

    The number of replicas affects only the dropout masks. It is omitted, so that a run can be
    resumed on another machine.
    """
    config, sources = dataclasses.asdict(job.initial.config), job.sources
    settings = dataclasses.asdict(job.settings)
    del settings["stop_step"]
    return {
        **{f"config.{name}": value for name, value in config.items()},
        "records": ",".join(source.manifest.fingerprint() for source in sources),
        "rows_of_each": [source.quota for source in sources] if len(sources) > 1 else None,
        "init_weights": init_weights,
        **dataclasses.asdict(job.options),
        **settings,
        "heldout_split": sources[0].manifest.heldout_split,
        "draws": DRAWS,
    }


def _print_results(model_dir: str) -> None:
    print(f"weights      {model_directory.find_checkpoint(model_dir)[1]}")
    best = model_directory.list_checkpoints(os.path.join(model_dir, model_directory.BEST_DIR))
    if best:
        print(f"best         {best[-1]}")
    print(f"TensorBoard  tensorboard --logdir {os.path.join(model_dir, 'tensorboard')}")
    try:
        print(f"curves       {metrics_log.draw_curves(model_dir)}")
    except (OSError, tf.errors.OpError) as error:
        logging.warning("the curves are not stored, the run is whole: %s", error)


def make_optimizer(settings: PretrainingSettings) -> tf.keras.optimizers.Optimizer:
    """Returns the optimizer with its learning-rate schedule."""
    rate = optimization.WarmUpPolynomialDecay(
        settings.learning_rate, settings.num_train_steps, settings.num_warmup_steps or 0
    )
    if settings.optimizer == "adamw":
        return optimization.adamw(rate, settings.weight_decay, bias_correction=True)
    return optimization.lamb(rate, settings.weight_decay)


def _restore_initial_weights(model: AlbertForPreTraining, job: Pretraining) -> str | None:
    """Restores the initial weights, if any. Returns their hash for the identity of the run.

    Raises a UserError if the weights have another vocabulary or shape, or may have been trained on
    held-out documents of this run.
    """
    opened = job.initial.weights
    if not opened:
        return recorded_settings(job.model_dir)["init_weights"] if job.init_checkpoint else None
    check_heldout_split(opened.directory, job.sources[0].manifest.heldout_split)
    # Restoring would not detect differences in these: names and shapes of variables are equal.
    names = ["num_attention_heads", "hidden_act", "inner_group_num"]
    if not _shares_all_weights(opened.config):
        names += ["parameter_sharing", "num_hidden_groups", "num_hidden_layers"]
    theirs, ours = (
        {name: getattr(config, name) for name in names} for config in (opened.config, model.config)
    )
    if tf.io.gfile.exists(find_vocabulary(opened.directory)):
        known = model_directory.load_tokenizer(opened.directory, opened.config)
        for found, tokenizer in ((theirs, known), (ours, job.initial.tokenizer)):
            found["vocabulary"] = tokenizer.sha256[:16]
            found.update(tokenizer.settings._asdict())
    if difference := job_directory.describe_difference(theirs, ours):
        raise UserError(
            f"--init_checkpoint={job.init_checkpoint!r} is of another model ({difference}): give "
            "one of the same vocabulary and shape, or remove the flag"
        )
    if _shares_all_weights(opened.config):
        model_directory.restore_to_each_layer(model, opened.checkpoint)
    else:
        model_directory.restore_weights(model, opened.checkpoint)
    return hash_of_weights(opened)


def _shares_all_weights(config: AlbertConfig) -> bool:
    """Returns whether all layers have the same weights. These fit any number of layers."""
    return len(set(sharing_plan(config))) == config.inner_group_num


def _print_plan(job: Pretraining, model: AlbertForPreTraining) -> None:
    settings, options = job.settings, job.options
    config = model.config
    parameters = sum(math.prod(variable.shape) for variable in model.variables)
    examples = settings.num_train_steps * settings.global_batch_size
    last = settings.stop_step or settings.num_train_steps
    stop = f"; stops at step {last:,}" if last < settings.num_train_steps else ""
    lines = []
    for source in job.sources:
        available = source.manifest.splits["train"].examples
        share = source.quota / BLOCK_ROWS
        padding = 1 - source.manifest.mean_length / options.max_seq_length
        lines.append(
            f"{source.record_dir}: {available:,} rows of up to "
            f"{source.manifest.max_seq_length} pieces, {100 * padding:.0f} % padding at length "
            f"{options.max_seq_length}, {100 * share:.4g} % of the run, "
            f"{examples * share / available:,.1f} epochs"
        )
    data = "\n           ".join(lines)
    weights = "random"
    if job.init_checkpoint:
        opened = job.initial.weights
        weights = f"from {opened.checkpoint if opened else job.init_checkpoint}"
    print(
        f"""pre-training {job.model_dir}
  model    {config.num_hidden_layers} layers of {config.hidden_size}, embeddings of \
{config.embedding_size}, {config.vocab_size:,} pieces: {parameters:,} parameters
  weights  initially {weights}
  data     {data}
{settings.describe(job.strategy)}
  steps    {settings.num_train_steps:,} = {examples:,} examples; \
{settings.num_warmup_steps:,} of warm-up to {settings.learning_rate:.4g}{stop}""",
        flush=True,
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
