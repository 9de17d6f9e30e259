r"""Exports a pre-trained or fine-tuned ALBERT as a SavedModel with raw text as input.

Writes the versions OUTPUT/1, OUTPUT/2 and so on, which TF Serving can serve. A version is published
only after it was loaded in a new process, without this project's code, and its outputs were equal
to the model's outputs. A checkpoint is not exported twice.

For a fine-tuned model (OUTPUT_DIR/seed_N of pipelines.finetune), the best weights are exported, and
task.json determines the signatures. Texts are truncated to --max_seq_length pieces, by default the
length that the checkpoint was trained with. Longer lengths give a warning, because these positions
were not trained. To load a SavedModel, see README.md, "Ask it".

Examples:
  python -m export.export_saved_model --checkpoint=runs/base --output=exports/base
  python -m export.export_saved_model --checkpoint=runs/base/checkpoints/ckpt-5000 \
    --output=exports/base --version=7 --max_seq_length=128
  python -m export.export_saved_model --checkpoint=runs/rte/seed_1 --output=exports/rte
"""

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import flags, logging

import albert_tf
from albert_tf.jobs import job_directory, processor, program
from albert_tf.jobs.decision import AS_TRAINED, Decision, decided
from albert_tf.jobs.settings import define_settings_flags, settings_from_flags
from albert_tf.storage import files, versions
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import import_tensorflow_text
from . import signatures
from .ask import TEXTS
from .kinds import MODULES
from .loading import load_module, open_checkpoint, print_notes_on_outputs
from .modules.serving_module import ServedCheckpoint, ServingModule
from .preprocessor import PREPROCESSOR_DIR, Preprocessor
from .verify import BFLOAT16_TOLERANCE, verify
from .warmup import write_warmup_requests

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    job_directory.define_flags()
    flags.DEFINE_string(
        "checkpoint", None, "A model directory or one of its checkpoints.", required=True
    )
    flags.DEFINE_string("output", None, "Directory for the versions.", required=True)
    flags.DEFINE_enum("kind", None, MODULES, "Default: the kind in task.json, else pretraining.")
    define_settings_flags(Decision)
    flags.DEFINE_integer("version", None, "Default: the next unused number.", lower_bound=1)
    program.define_max_seq_length(help="Default: the length used in training.")
    flags.DEFINE_enum(
        "precision",
        "float32",
        ["float32", "bfloat16"],
        "Precision of matmuls and their weights. bfloat16 is for CPUs with bfloat16 instructions "
        "(AVX512_BF16, AMX). A bfloat16 export cannot be fine-tuned.",
    )


def main(_) -> None:
    """Runs the program with the values of its flags."""
    # Export and verification use the same device, because outputs must be equal up to rounding.
    tf.config.set_visible_devices([], "GPU")
    # Hides TensorFlow's messages about saving, which are of no use to users.
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    names = ("checkpoint", "output", "kind", "version", "max_seq_length", "precision")
    arguments: dict[str, Any] = {name: FLAGS[name].value for name in names}
    print(how_to_use(export(**arguments, decision=settings_from_flags(Decision))))


def export(
    *,
    checkpoint: str,
    output: str,
    kind: str | None = None,
    version: int | None = None,
    max_seq_length: int | None = None,
    precision: str = "float32",
    decision: Decision = AS_TRAINED,
) -> str:
    """Exports a checkpoint, unless it was exported before; returns the version's directory."""
    import_tensorflow_text()
    is_file = tf.io.gfile.exists(output) and not tf.io.gfile.isdir(output)
    if is_file or tf.io.gfile.exists(os.path.join(output, job_directory.RUN_FILE)):
        found = "a file" if is_file else "holds a run"
        raise UserError(f"--output={output}: {found}; expected a directory for the versions")
    with job_directory.lock(output) if files.is_remote(output) else contextlib.nullcontext():
        served = open_checkpoint(checkpoint, kind, max_seq_length)
        task = decision.apply(served.task)
        served = dataclasses.replace(served, task=task, precision=precision)
        return _export(served, output, version)


def _export(served: ServedCheckpoint, output: str, version: int | None) -> str:
    tokenizer, precision = served.tokenizer, served.precision
    provenance = {
        "kind": served.kind,
        "task": served.task or None,
        "checkpoint": os.path.basename(served.checkpoint),
        "config": dataclasses.asdict(served.config),
        "checkpoint_index_sha256": files.sha256(served.checkpoint + ".index"),
        "vocabulary_sha256": tokenizer.sha256,
        **tokenizer.settings._asdict(),
        "max_seq_length": served.max_seq_length,
        "precision": precision,
        "code_version": albert_tf.__version__,
    }
    existing = versions.existing(output)
    for number in reversed(existing) if version is None else [version]:
        final = os.path.join(output, str(number))
        theirs = files.read_json_if_exists(os.path.join(final, files.PROVENANCE_FILE))
        difference = job_directory.describe_difference(theirs, provenance)
        if not difference:
            print(f"exported before: {final}")
            return final
        if version in existing:
            remedy = "choose another --version (a version is never overwritten)"
            raise UserError(f"{final!r} is another export ({difference}): {remedy}")
    final = os.path.join(output, str(version or max(existing, default=0) + 1))
    settings = "".join(f", {name} {value}" for name, value in decided(served.task).items())
    print(
        f"exporting {served.checkpoint}, {served.kind.replace('_', ' ')}\n"
        f"  to {final}: {tokenizer.vocab_size:,} pieces, {tokenizer.settings.describe()}, "
        f"texts up to {served.max_seq_length} pieces{settings}\n"
        f"  products in {processor.describe(precision, '--precision=bfloat16')}",
        flush=True,
    )
    table = signatures.of_task(served.kind, served.task, served.config.type_vocab_size)
    outputs = {name for signature in table.values() for name in signature.outputs}
    print_notes_on_outputs(served, outputs)
    module, exact = load_module(served), None
    if precision == "bfloat16":
        exact = load_module(dataclasses.replace(served, precision="float32"))
    _publish(module, exact, provenance, final)
    return final


def _publish(
    module: ServingModule, exact: ServingModule | None, provenance: dict, final: str
) -> None:
    """Saves and verifies a version in a temporary directory, and then renames it to `final`."""
    begin = time.monotonic()
    with _new_version(final) as partial:
        functions = module.functions()
        tf.saved_model.save(module, partial, signatures=functions)
        files.write_json(os.path.join(partial, files.PROVENANCE_FILE), provenance)
        longest = module.served.config.max_position_embeddings
        preprocessor = Preprocessor(module.served.tokenizer, module.max_seq_length, longest)
        preprocessor.save(os.path.join(partial, PREPROCESSOR_DIR))
        write_warmup_requests(partial, module.signatures, module.sizes)
        size = sum(path.stat().st_size for path in Path(partial).rglob("*") if path.is_file())
        saved = f"saved {len(functions)} signatures, {size / 1e6:.1f} MB"
        verifying = time.monotonic()
        print(f"{saved}, in {verifying - begin:.0f} s; verifying in a fresh process", flush=True)
        difference = verify(partial, module, functions, exact)
        equals = "equals the model's"
        if exact:
            equals = f"is within {BFLOAT16_TOLERANCE} of the float32 model's"
        print(
            f"verified in {time.monotonic() - verifying:.0f} s: every answer {equals} "
            f"(largest difference {difference:.1e})"
        )


@contextlib.contextmanager
def _new_version(final: str) -> Iterator[str]:
    """Yields a local directory, which is published as `final` at the end of the block."""
    if files.is_remote(final):
        with tempfile.TemporaryDirectory() as space:
            partial = os.path.join(space, "saved_model")
            yield partial
            files.remove_directory(final)  # left by a killed export
            last = ["saved_model.pb", files.PROVENANCE_FILE]
            files.upload_directory(partial, final, last)
        return
    try:
        with files.new_directory(final) as partial:
            yield partial
    except tf.errors.AlreadyExistsError as error:
        raise UserError(f"{final!r} appeared meanwhile: run the same command again") from error


def how_to_use(saved_model: str) -> str:
    """Returns the signatures of an export, a command that queries it, and the page on serving."""
    provenance = files.read_json(os.path.join(saved_model, files.PROVENANCE_FILE))
    task, num_types = provenance["task"] or {}, provenance["config"]["type_vocab_size"]
    table = signatures.of_task(provenance["kind"], task, num_types)
    lines = "\n".join(
        f"  {name}({', '.join(signature.inputs)}) -> {', '.join(signature.outputs)}"
        for name, signature in table.items()
    )
    names = list(table["serving_default"].inputs)
    examples = {name: example for name, (_, example) in TEXTS.items()}
    examples["options"] += " ||| Cats." * (task.get("num_choices", 1) - 1)
    if "fill_mask" in table:
        names, examples["text"] = ["text"], "The [MASK] function returns an array."
    elif "text_pair" in names:
        names = ["pair"]
    texts = " ".join(f'--{name}="{examples[name]}"' for name in names)
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "serving", "README.md")
    return f"""{saved_model} answers
{lines}
ask it:
  {program.installed_commands("python -m export.ask")} --saved_model={saved_model} {texts}
serve it: see {page}"""


if __name__ == "__main__":
    define_flags()
    program.run(main)
