"""Chooses the settings of fine-tuning whose flags are not given, from the model and the data."""

import dataclasses
import math
from typing import Any

from albert_tf.config import AlbertConfig
from ...training.settings import LoopSettings
from .seed_run import FinetuneSettings

DEV_FRACTION = 0.1
EVALUATIONS = 10  # per run


def choose(
    settings: FinetuneSettings, loop: LoopSettings, config: AlbertConfig, num_examples: int
) -> tuple[FinetuneSettings, LoopSettings, dict[str, Any]]:
    """Replaces each None in `settings` and `loop`; see FinetuneSettings.

    `num_examples` is the number of training examples (for SQuAD, of windows). The third value maps
    the names of the chosen settings to their values. The same arguments give the same settings, so
    a killed run resumes.

    Source: Mosbach et al. 2021, "On the stability of fine-tuning BERT", for bias correction, a
    warm-up of a tenth and 20 epochs on few rows.
    """
    # Trials: 5e-4 and 1e-3 suit width 256, 1.5e-4 suits 384, where 5e-5 learns too slowly and 5e-4
    # fails; see "What was tried" in tests/benchmarks/README.md. Widths from 768 on were not tried.
    # ALBERT's rates for them, 1e-5 to 5e-5, were found without bias correction; transformers'
    # run_glue uses 2e-5 with it. 6 instead of 20 epochs on 300 rows lost 3 points.
    rate = min(max(22 / config.hidden_size**2, 1e-5), 1e-3)
    if settings.freeze_encoder:
        rate = 1e-3
    values: dict[str, Any] = {
        "learning_rate": float(f"{rate:.2g}"),
        "adamw_bias_correction": True,
    }
    if settings.num_train_steps is None:
        values["num_epochs"] = float(f"{min(max(20_000 / num_examples, 3), 20):.2g}")
    chosen = {name: value for name, value in values.items() if getattr(settings, name) is None}
    result = dataclasses.replace(settings, **chosen).with_steps(num_examples)
    if settings.num_warmup_steps is None:
        chosen["num_warmup_steps"] = result.num_warmup_steps
    if loop.eval_steps is None:
        chosen["eval_steps"] = math.ceil(result.num_train_steps / EVALUATIONS)
        loop = dataclasses.replace(loop, eval_steps=chosen["eval_steps"])
    return result, loop, chosen
