r"""Measures what the threads of a server do for several clients and for one, on the CPU.

An encoder export of albert_base with random weights, loaded into a TensorFlow 1 session as
TensorFlow Serving does, without batching. Each client sends one text of --seq_length pieces, waits
for the answer and sends the next. A side is INTRAxINTER, the two flags of the server
(--tensorflow_intra_op_parallelism, --tensorflow_inter_op_parallelism), in a process of its own; the
sides run in turn. Prints one JSON line per process, then medians over the rounds: requests a second
of all clients, and the median time of a request.

Example:
  python -m tests.benchmarks.serving_threads --spm_model_file=30k-clean.model --rounds=3
"""

from __future__ import annotations

import collections
import json
import os
import statistics
import tempfile
import threading
import time

from absl import flags

from albert_tf.jobs import program
from tests.benchmarks.export import make_exports
from tests.benchmarks.measuring import in_fresh_process, median, print_table

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("spm_model_file", None, "A vocabulary, for the export.", required=True)
    flags.DEFINE_list("sides", ["2x1", "1x1", "1x2", "2x2"], "Intra-op x inter-op threads.")
    flags.DEFINE_list("clients", ["1", "4"], "Clients at once.")
    flags.DEFINE_integer("seq_length", 32, "Pieces of a text.", lower_bound=3)
    flags.DEFINE_integer("rounds", 3, "Processes of each side.", lower_bound=1)
    flags.DEFINE_float("seconds", 4.0, "Of each measurement.", lower_bound=0.1)
    flags.DEFINE_string("saved_model", None, "An export that is there: what the processes get.")


def main(_) -> None:
    """Reads the flags."""
    if FLAGS.saved_model:
        (side,) = FLAGS.sides
        print(json.dumps(measure(side)), flush=True)
        return
    lines = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        saved_model = make_exports(FLAGS.spm_model_file, "albert_base", directory, ["float32"])
        for _ in range(FLAGS.rounds):
            for side in FLAGS.sides:
                line = in_fresh_process(
                    "tests.benchmarks.serving_threads",
                    side,
                    f"--saved_model={saved_model['float32']}",
                )
                print(json.dumps(line), flush=True)
                if "skipped" not in line:
                    lines[side].append(line)
    rows = []
    for side, found in lines.items():
        figures = [
            median((line["clients"][clients] for line in found), name)
            for clients in FLAGS.clients
            for name in ("requests_per_second", "milliseconds")
        ]
        rows.append([*side.split("x"), *figures])
    columns = {"intra-op": "", "inter-op": ""}
    for clients in FLAGS.clients:
        columns |= {f"{clients} clients: requests/s": ".1f", f"{clients} clients: ms": ".0f"}
    print_table(columns, rows)


def measure(side: str) -> dict:
    """Returns the figures of one side in this process."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    intra, inter = map(int, side.split("x"))
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=intra, inter_op_parallelism_threads=inter
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], FLAGS.saved_model)
        signature = loaded.signature_def["serving_default"]
        answer = session.make_callable(
            signature.outputs["pooled_output"].name, [signature.inputs["text"].name]
        )
        text = "the " * (FLAGS.seq_length - 2)  # a piece each
        for _ in range(3):
            answer([text])
        figures = {
            clients: _measure_clients(lambda: answer([text]), int(clients))
            for clients in FLAGS.clients
        }
    return {"side": side, "clients": figures, "cpus": len(os.sched_getaffinity(0))}


def _measure_clients(ask, clients: int) -> dict[str, float]:
    times: list[float] = []

    def client(until: float) -> None:
        while (began := time.perf_counter()) < until:
            ask()
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    threads = [
        threading.Thread(target=client, args=(began + FLAGS.seconds,)) for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "requests_per_second": round(len(times) / (time.perf_counter() - began), 2),
        "milliseconds": round(1000 * statistics.median(times), 1),
    }


if __name__ == "__main__":
    define_flags()
    program.run(main)
