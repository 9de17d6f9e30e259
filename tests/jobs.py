"""Programs as users start them: in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

PROJECT = Path(__file__).resolve().parents[1]
NUM_STEPS = 30


def start(module, *flags, env=None, before=""):
    """Starts a program; `before` is code that its process runs first."""
    program = ["-m", module]
    if before:
        program = [
            "-c",
            f"{before}\nimport runpy\nrunpy.run_module({module!r}, None, '__main__', True)",
        ]
    return subprocess.Popen(
        [sys.executable, *program, *flags],
        cwd=PROJECT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module, *flags, exit_code=0):
    process = start(module, *flags)
    out, err = process.communicate(timeout=300)
    assert process.returncode == exit_code, f"{out}\n{err}"
    return out, err


def pretrain_flags(work, model_dir):
    return [
        f"--record_dir={work}/records",
        f"--spm_model_file={work}/vocabulary.model",
        f"--albert_config={work}/config.json",
        f"--model_dir={model_dir}",
        "--global_batch_size=18",
        f"--num_train_steps={NUM_STEPS}",
        "--num_warmup_steps=4",
        "--learning_rate=0.02",
        "--steps_per_loop=2",
        "--save_checkpoint_steps=4",
    ]


def weights(model_dir):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir / "checkpoints")))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "_CHECKPOINTABLE" not in name and "save_counter" not in name
    }
