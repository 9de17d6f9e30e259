r"""Measures an export of albert_base beside other ways to serve it, on the CPU, random weights.

From piece ids: pooled output of batches of --seq_length pieces without padding. From texts
(--texts, one a line): batches of 32 texts in the file's order, to the export, which pads as little
as it can; and the same, tokenized beforehand, padded to --seq_length. The sides run in turn, each
in a fresh process, which measures the ceiling too: the best rate of products of two 2048 x 2048
matrices by the side's own library. Prints one JSON line per process, then medians over the rounds.
A side whose packages are missing is left out.

ours: the signature `pooled`; the others compute the last block everywhere. ours_texts,
ours_padded (`tokens`, which computes as much as texts do): see above. Others: see export_peers.
ours_onnx, ours_onnx_int8: export.onnx in onnxruntime, without and with --quantize. ours_tflite,
ours_tflite_int8: export.tflite, likewise; a batch is answered sequence by sequence.
..._bfloat16: an export with --precision=bfloat16; torch's weights in bfloat16. The ceiling is that
of the side's dtype, of onnxruntime_int8 that of float32.

Processor time (all cores together) says more than the clock where something else runs too.
Memory: what the process holds after loading and one answer, and at its peak.

Examples:
  python -m tests.benchmarks.export --spm_model_file=30k-clean.model --rounds=3
  python -m tests.benchmarks.export --spm_model_file=30k-clean.model --texts=questions.txt \
      --sides=ours_texts,ours_padded
  python -m tests.benchmarks.export --spm_model_file=30k-clean.model --albert_config=albert_xlarge \
      --sides=ours --batch_sizes=1
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags
from sentencepiece import SentencePieceProcessor

from albert_tf.jobs import program
from albert_tf.storage.errors import UserError
from tests.benchmarks import export_peers as peers
from tests.benchmarks.measuring import (
    ceiling,
    in_fresh_process,
    median,
    print_table,
    tensorflow_product,
)
from tests.benchmarks.memory import peak_megabytes

FLAGS = flags.FLAGS

_TEXT_SIDES = ("ours_texts", "ours_padded")
_SIDES = (
    "ours",
    "ours_bfloat16",
    "ours_onnx",
    "ours_onnx_int8",
    "ours_tflite",
    "ours_tflite_int8",
    "huggingface_torch",
    "huggingface_torch_compiled",
    "huggingface_torch_bfloat16",
    "huggingface_torch_compiled_bfloat16",
    "huggingface_tf",
    "onnxruntime",
    "onnxruntime_int8",
)
# Ours in other files than SavedModels.
_CONVERTED = ("onnx", "onnx_int8", "tflite", "tflite_int8")
_TEXTS_A_BATCH = 32


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("spm_model_file", None, "A vocabulary, for the export.", required=True)
    flags.DEFINE_string("albert_config", "albert_base", "A published size; ours only.")
    flags.DEFINE_string("texts", None, "A file of texts, one a line, for the sides of texts.")
    flags.DEFINE_list("sides", None, f"Default: {', '.join(_SIDES)}; of texts, those of texts.")
    flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Of piece ids.")
    flags.DEFINE_integer("seq_length", 128, "Pieces of a sequence.", lower_bound=8)
    flags.DEFINE_integer("rounds", 3, "Processes of each side.", lower_bound=1)
    flags.DEFINE_integer("answers", 10, "Answers that count; batches of texts.", lower_bound=1)
    flags.DEFINE_string("saved_model", None, "An export that is there: what the processes get.")
    flags.register_validator(
        "sides",
        lambda sides: sides is None or set(_SIDES + _TEXT_SIDES).issuperset(sides),
        f"expected some of {', '.join(_SIDES + _TEXT_SIDES)}",
    )


def main(_) -> None:
    """Reads the flags."""
    sides = FLAGS.sides or (_TEXT_SIDES if FLAGS.texts else _SIDES)
    if not FLAGS.texts and set(sides) & set(_TEXT_SIDES):
        raise UserError("the sides of texts need --texts=FILE")
    if FLAGS.saved_model:
        (side,) = sides
        print(json.dumps(measure(side)), flush=True)
        return
    with tempfile.TemporaryDirectory() as directory:
        forms = sorted({_form(side) for side in sides})
        exports = make_exports(
            FLAGS.spm_model_file, FLAGS.albert_config, directory, forms, FLAGS.seq_length
        )
        lines = collections.defaultdict(list)
        for _ in range(FLAGS.rounds):
            for side in sides:
                saved_model = f"--saved_model={exports[_form(side)]}"
                line = in_fresh_process("tests.benchmarks.export", side, saved_model)
                print(json.dumps(line), flush=True)
                if "skipped" not in line:
                    lines[side].append(line)
    _print_table(lines)


def _dtype(side: str) -> str:
    return "bfloat16" if side.endswith("_bfloat16") else "float32"


def _form(side: str) -> str:
    """Returns which export of ours a side takes; peers take none, whose vocabulary is read."""
    form = side.removeprefix("ours_")
    return form if form in _CONVERTED else _dtype(side)


def make_exports(
    spm_model_file: str,
    albert_config: str,
    directory: str,
    forms: list[str],
    seq_length: int = 128,
) -> dict[str, str]:
    """Exports an encoder with random weights; returns the path of each form.

    Without the package onnx its files are not made, and the sides that read them are left out.

    Args:
      forms: precisions of SavedModels, and names of _CONVERTED.
    """
    script = (
        "import sys; from tests.benchmarks import export; "
        "export.export_random_encoder(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5:])"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            spm_model_file,
            albert_config,
            directory,
            str(seq_length),
            *forms,
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the export fails:\n{done.stderr}")
    return {
        form: os.path.join(directory, form if form in _CONVERTED else f"{form}/1") for form in forms
    }


def export_random_encoder(
    spm_model_file: str, albert_config: str, directory: str, seq_length: int, forms: list[str]
) -> None:
    """Does the work of make_exports, whose process stays free of TensorFlow's memory."""
    from albert_tf.checkpoints import model_directory
    from albert_tf.config import AlbertConfig
    from albert_tf.models import AlbertForPreTraining
    from albert_tf.text.tokenization import AlbertTokenizer
    from export import onnx, tflite
    from export.export_saved_model import export

    tokenizer = AlbertTokenizer(spm_model_file)
    config = AlbertConfig.named(albert_config)
    model = AlbertForPreTraining(dataclasses.replace(config, vocab_size=tokenizer.vocab_size))
    model.create_variables()
    model_dir = os.path.join(directory, "model")
    tokenizer.save(model_dir)
    model_directory.save_for_pretraining(model, model_dir)
    for form in forms:
        if form.startswith("onnx") and not importlib.util.find_spec("onnx"):
            continue
        arguments = {"checkpoint": model_dir, "output": os.path.join(directory, form)}
        if form.startswith("onnx"):
            onnx.convert(**arguments, kind="encoder", quantize=form.endswith("int8"))
        elif form.startswith("tflite"):
            tflite.convert(
                **arguments,
                kind="encoder",
                max_seq_length=seq_length,
                quantize=form.endswith("int8"),
            )
        else:
            export(**arguments, kind="encoder", precision=form)


def measure(side: str) -> dict:
    """Returns the figures of one side in this process, or why it cannot be measured."""
    try:
        vocab_size = SentencePieceProcessor(model_file=FLAGS.spm_model_file).vocab_size()
        answer, product = _make_side(side, vocab_size)
    except ImportError as error:
        return {"side": side, "skipped": str(error).strip().splitlines()[0]}
    line = {"side": side, "albert_config": FLAGS.albert_config, "seq_length": FLAGS.seq_length}
    if side in _TEXT_SIDES:
        batches = _text_batches(side)
        answer(batches[0])
        line["loaded_gigabytes"] = _resident_gigabytes()
        for batch in batches:  # every shape once
            answer(batch)
        clock, processor = _seconds(lambda: [answer(batch) for batch in batches])
        texts = sum(len(batch) for batch in batches)
        line.update(texts=texts, **_rates(texts, clock, processor))
    else:
        rng = np.random.default_rng(0)
        line["batches"] = {}
        for size in map(int, FLAGS.batch_sizes):
            ids = rng.integers(5, vocab_size, [size, FLAGS.seq_length], np.int32)
            answer(ids)
            line.setdefault("loaded_gigabytes", _resident_gigabytes())
            answer(ids)
            times = [_seconds(lambda ids=ids: answer(ids)) for _ in range(FLAGS.answers)]
            clock, processor = (statistics.median(column) for column in zip(*times))
            line["batches"][str(size)] = _rates(size, clock, processor)
    line["peak_gigabytes"] = peak_megabytes() / 1e3
    if side.startswith("ours"):
        path = Path(FLAGS.saved_model)
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        line["directory_megabytes"] = round(sum(f.stat().st_size for f in files) / 1e6, 1)
    line["ceiling_gflop_per_second"] = round(ceiling(product), 1)
    line["cpus"] = len(os.sched_getaffinity(0))
    return line


def _make_side(side: str, vocab_size: int) -> tuple[Callable, Callable[[], object]]:
    """Returns (answer, product): a batch to numbers, and the ceiling's product."""
    if side.startswith("huggingface_torch"):
        return peers.huggingface_torch(vocab_size, "_compiled" in side, _dtype(side))
    if side == "huggingface_tf":
        return peers.huggingface_tf(vocab_size)
    if side.startswith("onnxruntime"):
        return peers.onnxruntime(vocab_size, int8=side.endswith("int8"))
    if side.startswith("ours_onnx"):
        return peers.our_onnx(FLAGS.saved_model)
    import tensorflow as tf

    if side.startswith("ours_tflite"):
        return peers.our_tflite(FLAGS.saved_model)
    import tensorflow_text  # noqa: F401

    loaded = tf.saved_model.load(FLAGS.saved_model)
    if side == "ours_texts":
        signature = loaded.signatures["serving_default"]

        def answer(texts):
            return signature(text=tf.constant(texts))["pooled_output"].numpy()

    else:
        signature = loaded.signatures["tokens" if side == "ours_padded" else "pooled"]

        def answer(input_ids):
            ids = tf.constant(input_ids)
            mask = tf.cast(ids > 0, tf.int32)
            feeds = {"input_ids": ids, "input_mask": mask, "segment_ids": tf.zeros_like(ids)}
            return signature(**feeds)["pooled_output"].numpy()

    return answer, tensorflow_product(_dtype(side))


def _text_batches(side: str) -> list:
    """Returns lists of texts, or arrays int32 [texts, seq_length] of their pieces, padded."""
    with open(FLAGS.texts, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]
    texts = texts[: _TEXTS_A_BATCH * FLAGS.answers]
    batches = [texts[i : i + _TEXTS_A_BATCH] for i in range(0, len(texts), _TEXTS_A_BATCH)]
    if side == "ours_texts":
        return batches
    from albert_tf.text.tokenization import AlbertTokenizer

    tokenizer = AlbertTokenizer(FLAGS.spm_model_file)
    padded = []
    for batch in batches:
        ids = np.zeros([len(batch), FLAGS.seq_length], np.int32)
        for row, pieces in zip(ids, tokenizer.encode_batch(batch)):
            pieces = [tokenizer.cls_id, *pieces[: FLAGS.seq_length - 2], tokenizer.sep_id]
            row[: len(pieces)] = pieces
        padded.append(ids)
    return padded


def _seconds(function: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of a call, by the clock and of all processors."""
    began, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - processor


def _rates(sequences: int, clock: float, processor: float) -> dict:
    return {
        "sequences_per_second": round(sequences / clock, 3),
        "milliseconds": round(1000 * clock, 1),
        "processor_milliseconds": round(1000 * processor, 1),
    }


def _resident_gigabytes() -> float:
    with open("/proc/self/statm") as file:
        return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9, 3)


def _print_table(lines: dict[str, list[dict]]) -> None:
    rows = []
    for side, found in lines.items():
        for batch in found[0].get("batches", {"texts": None}):
            figures = [line["batches"][batch] if "batches" in line else line for line in found]
            rates = [median(figures, name) for name in _rates(1, 1, 1)]
            names = ("loaded_gigabytes", "peak_gigabytes", "ceiling_gflop_per_second")
            rows.append([batch, side, *rates, *(median(found, name) for name in names)])
    columns = {"batch": "", "side": "", "seq/s": ".2f", "ms": ".1f", "CPU ms": ".1f"}
    columns |= {"loaded, GB": ".2f", "peak, GB": ".2f", "GFLOP/s ceiling": ".0f"}
    print_table(columns, sorted(rows, key=lambda row: (len(row[0]), row[0])))


if __name__ == "__main__":
    define_flags()
    program.run(main)
