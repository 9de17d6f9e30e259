"""Measures pipelines.predict: rows a second beside fine-tuning's evaluation, and peak memory.

The model has random weights and the shape of --albert_config, or, without it, 2 layers of 64. Rows
are short texts with labels. Each side runs in a fresh process; one JSON line each.

predict: pipelines.predict from the file to the file, reading, tokenizing and writing included.
predict_head: the same of a tenth of the rows, whose peak memory tells what grows with the file.
evaluation: the outputs that fine-tuning scores dev with, of rows that are pieces already.

Examples:
  python -m tests.benchmarks.predict --rows=100000
  python -m tests.benchmarks.predict --rows=2000 --albert_config=albert_base
"""

from __future__ import annotations

import csv
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from absl import flags

from albert_tf.jobs import program
from tests.benchmarks.measuring import in_fresh_process

FLAGS = flags.FLAGS
_SIDES = ("predict", "predict_head", "evaluation")
_MAX_SEQ_LENGTH = 64


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_integer("rows", 100_000, "Rows of the file.", 1)
    flags.DEFINE_integer("batch_size", 32, "Rows that the model reads at a time.", 1)
    flags.DEFINE_string("albert_config", None, "A named size; default: 2 layers of 64.")
    flags.DEFINE_string("spm_model_file", None, "The vocabulary; default: one made of the rows.")
    flags.DEFINE_list("sides", list(_SIDES), "What to measure.")
    flags.DEFINE_string("directory", None, "Of the processes it starts: where file and model are.")


def main(_) -> None:
    """Measures one side, or makes file and model and measures each in a process of its own."""
    if FLAGS.directory:
        if FLAGS.sides == ["make"]:
            _make(FLAGS.directory, FLAGS.rows, FLAGS.albert_config, FLAGS.spm_model_file)
        print(json.dumps(_measure(FLAGS.sides[0], FLAGS.directory, FLAGS.batch_size)))
        return
    with tempfile.TemporaryDirectory() as directory:
        for side in ("make", *FLAGS.sides):
            module = "tests.benchmarks.predict"
            result = in_fresh_process(module, side, f"--directory={directory}")
            if side != "make":
                print(json.dumps(result), flush=True)


def _make(directory: str, rows: int, albert_config: str | None, vocabulary: str | None) -> None:
    from albert_tf.config import AlbertConfig
    from albert_tf.text.tokenization import AlbertTokenizer
    from pipelines.tasks.classification import ClassificationTask, Columns
    from tests import builders, vocabularies

    rng = random.Random(1)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(5000)]
    for name, number in (("rows", rows), ("head", rows // 10)):
        with open(os.path.join(directory, f"{name}.csv"), "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for _ in range(number):
                text = " ".join(rng.choices(words, k=rng.randint(3, 20)))
                writer.writerow([text, rng.choice(["neg", "pos"])])
    if vocabulary is None:
        text = (" ".join(rng.choices(words, k=12)) for _ in range(20_000))
        vocabulary = str(vocabularies.train(Path(directory) / "own", text, 2000))
    tokenizer = AlbertTokenizer(vocabulary)
    if albert_config:
        config = AlbertConfig.for_vocabulary(albert_config, tokenizer.vocab_size, vocabulary)
    else:
        config = AlbertConfig(
            vocab_size=tokenizer.vocab_size,
            embedding_size=32,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=_MAX_SEQ_LENGTH,
        )
    task = ClassificationTask("classification", {}, Columns("text", "label"), ["neg", "pos"])
    model = task.create_model(config, False)
    model.create_variables()
    builders.write_task_model(
        Path(directory) / "run/seed_1", task, model, tokenizer, _MAX_SEQ_LENGTH
    )


def _measure(side: str, directory: str, batch_size: int) -> dict:
    if side == "make":
        return {"side": side}
    name = "head" if side == "predict_head" else "rows"
    source = os.path.join(directory, f"{name}.csv")
    measure = _evaluation if side == "evaluation" else _predict
    rows, seconds = measure(directory, source, batch_size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "side": side,
        "rows": rows,
        "rows_per_second": round(rows / seconds, 1),
        "peak_mb": round(peak),
    }


def _predict(directory: str, source: str, batch_size: int) -> tuple[int, float]:
    from pipelines.predict import predict

    begin = time.monotonic()
    summary = predict(
        model=os.path.join(directory, "run", "seed_1"),
        input_files=[source],
        output_file=f"{source}.out.csv",
        batch_size=batch_size,
    )
    return summary["rows"], time.monotonic() - begin


def _evaluation(directory: str, source: str, batch_size: int) -> tuple[int, float]:
    import tensorflow as tf

    from albert_tf.checkpoints import model_directory
    from albert_tf.text.tokenization import AlbertTokenizer
    from pipelines.tasks.running import fine_tuned
    from pipelines.tasks.running.batches import make_prediction

    path = os.path.join(directory, "run", "seed_1")
    task = fine_tuned.task_of(fine_tuned.read_description(path), {})
    _, checkpoint = model_directory.find_checkpoint(os.path.join(path, "best"))
    tokenizer = AlbertTokenizer.load(path)
    examples = list(task.read_file(source))
    sequences, _ = task.encode(examples, tokenizer, _MAX_SEQ_LENGTH, False)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = task.create_model(model_directory.read_config(path, checkpoint), False)
        model.create_variables()
    begin = time.monotonic()
    make_prediction(strategy, model, sequences, batch_size, _MAX_SEQ_LENGTH, False)()
    return len(examples), time.monotonic() - begin


if __name__ == "__main__":
    define_flags()
    program.run(main)
