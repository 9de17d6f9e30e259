"""Programs as users start them: in processes of their own.

`run` and `run_code` fork a process that has imported tests.forked and done nothing else, because
these imports cost three seconds. `start` starts a new interpreter.
"""

import atexit
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

PROJECT = Path(__file__).resolve().parents[1]
NUM_STEPS = 30
TIMINGS = ("time", "examples_per_second", "tokens_per_second")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.forked"])


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(module, *flags, env=None, before="", python=sys.executable):
    """Starts a program; `before` is code that its process runs first."""
    program = ["-m", module]
    if before:
        code = f"{before}\nimport runpy\nrunpy.run_module({module!r}, None, '__main__', True)"
        program = ["-c", code]
    return subprocess.Popen(
        [python, *program, *flags],
        cwd=PROJECT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, exit_code=0, timeout=300):
    """Waits for the end of a program that `start` made; returns what it printed."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == exit_code, f"{process.returncode}\n{out}\n{err}"
    return out, err


# Runs what is traced otherwise and draws nothing: both take longer than a few steps.
QUICKLY = """
import tensorflow as tf
from albert_tf.jobs import pictures
tf.config.run_functions_eagerly(True)
pictures.write = lambda *_: ""
"""


def run(module, *flags, exit_code=0, env=None, before=""):
    """Runs `python -m module flags`; returns what it printed to stdout and stderr."""
    code = f"{before}\nimport runpy, sys\nsys.modules.pop({module!r}, None)\n"
    code += f"runpy.run_module({module!r}, None, '__main__', alter_sys=True)"
    return run_code(code, *flags, exit_code=exit_code, env=env)


def run_code(code, *arguments, exit_code=0, env=None):
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / name for name in ("out", "err")]
        environment = {**os.environ, **(env or {})}
        process = _FORKS.Process(target=_child, args=(code, arguments, paths, environment))
        process.start()
        process.join(300)
        if process.exitcode is None:
            process.kill()
            process.join()
        out, err = (path.read_text() for path in paths)
    assert process.exitcode == exit_code, f"{process.exitcode}\n{out}\n{err}"
    return out, err


def _child(code, arguments, paths, environment):
    for path, descriptor in zip(paths, (1, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(PROJECT)
    sys.argv = ["-c", *arguments]
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # A forked process ends without them.


def record_flags(work, output, *more):
    return [
        f"--input_file={work}/corpus.txt",
        f"--spm_model_file={work}/vocabulary.model",
        f"--output_dir={output}",
        *"--max_seq_length=40 --heldout_fraction=0.2 --shard_bytes=20000 --num_workers=1".split(),
        *more,
    ]


def pretrain_flags(work, model_dir):
    return [
        f"--record_dir={work}/records",
        f"--spm_model_file={work}/vocabulary.model",
        f"--albert_config={work}/config.json",
        f"--model_dir={model_dir}",
        f"--num_train_steps={NUM_STEPS}",
        *"--global_batch_size=18 --num_warmup_steps=4 --learning_rate=0.02".split(),
        *"--steps_per_loop=2 --save_checkpoint_steps=4".split(),
    ]


def wait_for(condition, processes=(), timeout=300):
    """Waits until the condition holds or a process has ended."""
    deadline = time.monotonic() + timeout
    while not condition() and all(process.poll() is None for process in processes):
        assert time.monotonic() < deadline, "the run does not go on"
        time.sleep(0.002)


def num_entries(model_dir):
    metrics = model_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def log(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


def curves(model_dir):
    """Returns what two runs of one command log alike: all but the timings."""
    return [{k: v for k, v in entry.items() if k not in TIMINGS} for entry in log(model_dir)]


def assert_same_bits(model_dir, other_dir):
    ours, theirs = weights(model_dir), weights(other_dir)
    assert ours.keys() == theirs.keys() and len(ours) > 60
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def weights(model_dir, within="checkpoints"):
    """Returns the variables of the newest checkpoint."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir / within)))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "_CHECKPOINTABLE" not in name and "save_counter" not in name
    }


def bytes_of_weights(model_dir, within="checkpoints"):
    return {name: value.tobytes() for name, value in weights(model_dir, within).items()}
