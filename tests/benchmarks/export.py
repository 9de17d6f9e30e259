r"""Compares the speed of an albert_base export with other servers (CPU, random weights).

Each side computes the pooled output, or probabilities, of batches of --seq_length piece ids without
padding. The sides run in turn, each in a fresh process. The process also measures the ceiling: the
best rate of its library's product of two 2048 x 2048 matrices. Prints one JSON line per process,
then medians over the rounds. Sides whose packages are missing are skipped.

ours: the signature `pooled`. Other sides named ours_... read files of a classifier of two labels.
These compute [CLS] alone in the last block; the peers compute all positions (export_peers).
ours_onnx, ours_onnx_int8: our ONNX file in onnxruntime, without and with --quantize. ours_tflite,
ours_tflite_int8: our TFLite file, without and with --quantize, one sequence per call.
ours_openvino, ..._bfloat16, ..._int8: the file of ours_onnx in OpenVINO, by its hint of precision;
int8 is quantized by NNCF, with static ranges of activations (here of random pieces).
..._bfloat16: an export with --precision=bfloat16, or torch with weights in bfloat16. The ceiling is
measured in the side's dtype; for int8 in float32.

If other programs run too, processor time (all cores together) is more reliable than wall time.
Memory is reported after loading and one answer, and at the peak.

Examples:
  python -m tests.benchmarks.export --spm_model_file=30k-clean.model --rounds=3
  python -m tests.benchmarks.export --spm_model_file=30k-clean.model --albert_config=albert_xlarge \
      --sides=ours --batch_sizes=1
"""

import dataclasses
import importlib.util
import json
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags
from sentencepiece import SentencePieceProcessor

from albert_tf.jobs import program
from tests.benchmarks import export_peers as peers
from tests.benchmarks.measuring import (
    both_seconds,
    define_sides,
    measure_in_turn,
    median,
    peak_megabytes,
    print_table,
    product_rates,
    tensorflow_product,
)

FLAGS = flags.FLAGS

_SIDES = (
    "ours",
    "ours_bfloat16",
    "ours_onnx",
    "ours_onnx_int8",
    "ours_openvino",
    "ours_openvino_bfloat16",
    "ours_openvino_int8",
    "ours_tflite",
    "ours_tflite_int8",
    "huggingface_torch",
    "huggingface_torch_compiled",
    "huggingface_torch_bfloat16",
    "huggingface_torch_compiled_bfloat16",
    "onnxruntime",
    "onnxruntime_int8",
)
# Our exports in other formats than SavedModel: side without "ours_" -> file.
_CONVERTED = {
    "onnx": "onnx",
    "onnx_int8": "onnx_int8",
    "openvino": "onnx",
    "openvino_bfloat16": "onnx",
    "openvino_int8": "openvino_int8.xml",
    "tflite": "tflite",
    "tflite_int8": "tflite_int8",
}
# Random sequences from which NNCF takes the ranges of activations.
_CALIBRATION_ROWS = 32


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("spm_model_file", None, "A vocabulary, for the export.", required=True)
    flags.DEFINE_string("albert_config", "albert_base", "A published size; ours only.")
    define_sides(_SIDES)
    flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Sequences in a batch.")
    flags.DEFINE_integer("seq_length", 128, "Pieces of a sequence.", lower_bound=8)
    flags.DEFINE_integer("rounds", 3, "Processes of each side.", lower_bound=1)
    flags.DEFINE_integer("answers", 10, "Answers that count.", lower_bound=1)
    flags.DEFINE_string("saved_model", None, "An export that is there: what the processes get.")


def main(_) -> None:
    """Reads the flags."""
    if FLAGS.saved_model:
        (side,) = FLAGS.sides
        print(json.dumps(measure(side)), flush=True)
        return
    with tempfile.TemporaryDirectory() as directory:
        forms = sorted({_form(side) for side in FLAGS.sides})
        arguments = (FLAGS.flag_values_dict(), directory, forms)
        process = multiprocessing.get_context("spawn").Process(target=make_exports, args=arguments)
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError("the export fails: see above")
        cases = []
        for side in FLAGS.sides:
            form = _form(side)
            path = os.path.join(directory, form if form in _CONVERTED.values() else f"{form}/1")
            cases.append((side, f"--saved_model={path}"))
        _print_table(measure_in_turn("tests.benchmarks.export", FLAGS.rounds, cases))


def _dtype(side: str) -> str:
    return "bfloat16" if side.endswith("_bfloat16") else "float32"


def _form(side: str) -> str:
    """Returns which of our exports is made for a side; peers do not read theirs."""
    return _CONVERTED.get(side.removeprefix("ours_"), _dtype(side))


def make_exports(flag_values: dict, directory: str, forms: list[str]) -> None:
    """Exports a classifier with random weights; runs in its own process, as it needs much memory.

    `forms` are precisions of SavedModels and files of _CONVERTED. Without the package
    that makes a file it is not written, and the sides that read it are skipped.
    """
    from albert_tf.config import AlbertConfig
    from albert_tf.models import AlbertForSequenceClassification
    from albert_tf.text.tokenization import AlbertTokenizer
    from export import fixed_graph, onnx, tflite
    from export.export_saved_model import export
    from pipelines.tasks.classification import ClassificationTask
    from tests.builders import write_task_model

    tokenizer = AlbertTokenizer(flag_values["spm_model_file"])
    config = AlbertConfig.named(flag_values["albert_config"])
    config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
    task = ClassificationTask("classification", {}, {"text": "text"}, ("no", "yes"), False)
    model = AlbertForSequenceClassification(config, len(task.labels))
    model.create_variables()
    model_dir = os.path.join(directory, "model")
    write_task_model(Path(model_dir), task, model, tokenizer, flag_values["seq_length"])
    for form in forms:
        output = os.path.join(directory, form)
        int8 = form.endswith("int8")
        if form.startswith("tflite"):
            tflite.convert(fixed_graph.load(model_dir), output, int8)
        elif form not in _CONVERTED.values():
            export(checkpoint=model_dir, output=output, kind="encoder", precision=form)
        elif form.startswith("openvino"):
            if importlib.util.find_spec("nncf"):
                onnx.convert(fixed_graph.load(model_dir), f"{output}.onnx")
                shape = [_CALIBRATION_ROWS, 1, flag_values["seq_length"]]
                rows = np.random.default_rng(1).integers(5, tokenizer.vocab_size, shape)
                peers.quantize_by_nncf(f"{output}.onnx", map(peers.onnx_inputs, rows), output)
        elif importlib.util.find_spec("onnx"):
            onnx.convert(fixed_graph.load(model_dir), output, int8)


def measure(side: str) -> dict:
    """Measures one side in this process; returns figures, or why the side cannot be measured."""
    try:
        vocab_size = SentencePieceProcessor(model_file=FLAGS.spm_model_file).vocab_size()
        answer, product = _make_side(side, vocab_size)
    except ImportError as error:
        return {"side": side, "skipped": str(error).strip().splitlines()[0]}
    line = {"side": side, "albert_config": FLAGS.albert_config, "seq_length": FLAGS.seq_length}
    rng = np.random.default_rng(0)
    line["batches"] = {}
    for size in map(int, FLAGS.batch_sizes):
        ids = rng.integers(5, vocab_size, [size, FLAGS.seq_length], np.int32)
        answer(ids)
        line.setdefault("loaded_gigabytes", _resident_gigabytes())
        answer(ids)
        times = [both_seconds(lambda ids=ids: answer(ids)) for _ in range(FLAGS.answers)]
        clock, processor = (statistics.median(column) for column in zip(*times))
        line["batches"][str(size)] = {
            "sequences_per_second": round(size / clock, 3),
            "milliseconds": round(1000 * clock, 1),
            "processor_milliseconds": round(1000 * processor, 1),
        }
    line["peak_gigabytes"] = peak_megabytes() / 1e3
    if side.startswith("ours"):
        path = Path(FLAGS.saved_model)
        files = [p for p in path.rglob("*") if p.is_file()]
        if path.is_file():
            files = [path, *path.parent.glob(f"{path.stem}.bin")]  # OpenVINO's weights
        line["directory_megabytes"] = round(sum(f.stat().st_size for f in files) / 1e6, 1)
    line["ceiling_gflop_per_second"] = round(max(product_rates(product)), 1)
    line["cpus"] = len(os.sched_getaffinity(0))
    return line


def _make_side(side: str, vocab_size: int) -> tuple[Callable, Callable[[], object]]:
    """Returns a function (batch) -> pooled output, and the matrix product for the ceiling."""
    if side.startswith("huggingface_torch"):
        return peers.huggingface_torch(vocab_size, "_compiled" in side, _dtype(side))
    if side.startswith("onnxruntime"):
        return peers.onnxruntime(vocab_size, int8=side.endswith("int8"))
    if side.startswith("ours_openvino"):
        return peers.our_openvino(FLAGS.saved_model, _dtype(side))
    if side.startswith("ours_onnx"):
        return peers.our_onnx(FLAGS.saved_model)
    import tensorflow as tf

    if side.startswith("ours_tflite"):
        return peers.our_tflite(FLAGS.saved_model)
    import tensorflow_text  # noqa: F401

    signature = tf.saved_model.load(FLAGS.saved_model).signatures["pooled"]

    def answer(input_ids):
        ids = tf.constant(input_ids)
        feeds = {"input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
        return signature(input_ids=ids, **feeds)["pooled_output"].numpy()

    return answer, tensorflow_product(_dtype(side))


def _resident_gigabytes() -> float:
    with open("/proc/self/statm") as file:
        return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9, 3)


def _print_table(lines: dict[tuple, list[dict]]) -> None:
    rows = []
    for (side, _), found in lines.items():
        for batch in found[0]["batches"]:
            figures = [line["batches"][batch] for line in found]
            rates = [median(figures, name) for name in figures[0]]
            names = ("loaded_gigabytes", "peak_gigabytes", "ceiling_gflop_per_second")
            rows.append([batch, side, *rates, *(median(found, name) for name in names)])
    columns = {"batch": "", "side": "", "seq/s": ".2f", "ms": ".1f", "CPU ms": ".1f"}
    columns |= {"loaded, GB": ".2f", "peak, GB": ".2f", "GFLOP/s ceiling": ".0f"}
    print_table(columns, sorted(rows, key=lambda row: (len(row[0]), row[0])))


if __name__ == "__main__":
    define_flags()
    program.run(main)
