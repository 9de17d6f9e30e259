"""Loads a checkpoint for export and builds its serving module."""

from collections.abc import Container

from albert_tf.checkpoints import model_directory
from albert_tf.checkpoints.opening import ALBERT_TF, open_model
from albert_tf.checkpoints.pretrained import create_model
from albert_tf.encoder import AlbertEncoder
from albert_tf.jobs import program
from albert_tf.layers.primitives import build_parts
from albert_tf.storage.errors import UserError
from .kinds import ENCODER, MODULES
from .modules.serving_module import ServedCheckpoint, ServingModule

# Outputs of the pooler and of the sentence-order head.
_SENTENCE_OUTPUTS = ("pooled_output", "in_order_probability", "sop_log_probs")

# Outputs computed from a part of the model, by the prefix of its variables' names.
_OUTPUTS_OF_PARTS = {
    "masked_lm/": ("pieces", "probabilities", "mlm_logits"),
    "sentence_order/": _SENTENCE_OUTPUTS[1:],
    "encoder/pooler/": _SENTENCE_OUTPUTS,
}


def open_checkpoint(
    path: str, kind: str | None = None, max_seq_length: int | None = None
) -> ServedCheckpoint:
    """Opens a model directory or one of its checkpoints for export.

    `kind` defaults to the kind in task.json, or to pretraining if there is no task.json.
    `max_seq_length` defaults to the maximum length in training.
    """
    opened = open_model(path, [ALBERT_TF], parts=True)
    model_dir, config, found = opened.directory, opened.config, opened.kind
    if kind not in (None, found, ENCODER):
        fine_tune = "pipelines.finetune makes such a model"
        made_by = f"see its {model_directory.TASK_FILE}" if opened.is_fine_tuned else fine_tune
        raise UserError(
            f"--kind={kind}, but {model_dir!r} holds a model for {found} ({made_by}): take "
            f"--kind={found} or --kind={ENCODER}, or another --checkpoint"
        )
    kind = kind or found
    if kind != ENCODER:
        opened.check_pairs(config)
    tokenizer = model_directory.load_tokenizer(model_dir, config)
    trained_length = model_directory.trained_length(model_dir, config)
    max_seq_length = max_seq_length or trained_length
    program.check_max_seq_length(max_seq_length, config.max_position_embeddings, trained_length)
    task = {} if kind == ENCODER else opened.task
    paths = opened.checkpoint, model_dir
    return ServedCheckpoint(kind, task, *paths, config, tokenizer, max_seq_length)


def load_module(served: ServedCheckpoint) -> ServingModule:
    """Builds the model of a checkpoint, restores its weights, and returns the serving module.

    If served.precision is "bfloat16", the matmuls, their weights and the activations between them
    have this dtype. Embedding tables, layer norms, softmax and the matmuls that compute logits
    remain in float32.
    """
    width = served.config.hidden_size
    is_encoder = served.kind == ENCODER
    model = AlbertEncoder(served.config) if is_encoder else create_model(served.config, served.task)
    build_parts(width, model)
    restore = model_directory.restore_encoder if is_encoder else model_directory.restore_weights
    restore(model, served.checkpoint)
    if served.precision == "bfloat16":
        full, model = model, type(model).from_config({**model.get_config(), "dtype": "bfloat16"})
        build_parts(width, model)
        model.set_weights(full.get_weights())
    return MODULES[served.kind](model, served)


def print_notes_on_outputs(served: ServedCheckpoint, outputs: Container[str]) -> None:
    """Prints lines about those `outputs` that training did not aim at."""
    settings = model_directory.recorded_settings(served.model_dir)
    untrained = ", ".join(name for name in _SENTENCE_OUTPUTS if name in outputs)
    if untrained and settings.get("sentence_objective") == "none":
        print(f"  not trained by the last run (--sentence_objective=none): {untrained}")
    origin = model_directory.read_if_exists(served.model_dir, model_directory.ORIGIN_FILE)
    fresh = origin.get("freshly_initialised", "")
    of_parts = {n for part, names in _OUTPUTS_OF_PARTS.items() if part in fresh for n in names}
    if drawn := [name for name in sorted(of_parts) if name in outputs]:
        print(f"  random (the converted model has no weights for them): {', '.join(drawn)}")
    if "mean_pooled_output" in outputs:
        print("  not trained to compare texts: mean_pooled_output (see --task=embedding)")
