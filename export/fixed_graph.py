"""What exports of a single graph share: TFLite and ONNX take piece ids and give a kind's answers.

A fine-tuned classifier or multilabel model outputs `probabilities`, a regressor `value`. Any other
model, or any model with --kind=encoder, outputs `pooled_output` and `sequence_output`: the other
kinds answer from texts of any length, in parts, which no single graph can compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf.encoder import cls_only_positions
from albert_tf.kinds import KINDS
from .loading import load_module, open_checkpoint
from .modules.serving_module import ServedCheckpoint, ServingModule

INPUTS = ("input_ids", "input_mask", "segment_ids")
_KINDS = ("encoder", *(kind.name for kind in KINDS.values() if kind.answers))


def define_flags(ending: str) -> None:
    """Defines the flags of both; `ending` is the ending of the files' names."""
    flags.disclaim_key_flags()  # they are the caller's
    flags.DEFINE_string(
        "checkpoint", None, "A model directory or one of its checkpoints.", required=True
    )
    flags.DEFINE_string("output", None, f"The {ending} file.", required=True)
    flags.DEFINE_enum("kind", None, _KINDS, "Default: what fine-tuning made of it, or encoder.")


def load(checkpoint: str, kind: str | None, max_seq_length: int | None = None) -> ServingModule:
    """Returns the module of a checkpoint, or of its encoder if no graph can give its answers.

    Raises:
      UserError: if the checkpoint cannot be opened or built; see open_checkpoint and load_module.
    """
    served = open_checkpoint(checkpoint, kind, max_seq_length)
    if served.kind not in _KINDS:
        served = dataclasses.replace(served, kind="encoder", task={})
    return load_module(served)


def answer(module: ServingModule, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the model's own answers, under the names of the outputs.

    Args:
      module: of `load`.
      ids: integers [b, L], by INPUTS.
    """
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = dict(zip(names, (tf.cast(ids[name], tf.int32) for name in INPUTS)))
    if module.kind == "encoder":
        encoded = module.encoder(inputs)
        return {name: encoded[name] for name in ("sequence_output", "pooled_output")}
    encoded = module.encoder(inputs, positions=cls_only_positions(inputs["input_word_ids"]))
    answers = KINDS[module.kind].answers
    assert answers is not None, module.kind
    return answers(module.model.classifier(encoded["pooled_output"]))


def differences(
    run: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]],
    expected: Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]],
    vocab_size: int,
    masks: Iterable[np.ndarray],
) -> dict[str, float]:
    """Returns for each output the largest difference of two models on random sequences.

    Args:
      run: of int32 arrays by INPUTS; the exported model.
      expected: the same of tensors; the model itself.
      vocab_size: V.
      masks: int32 [b, L] of each batch to compare, 1 = real.
    """
    rng = np.random.RandomState(20200426)
    found: dict[str, float] = {}
    for mask in masks:
        ids = mask * rng.randint(0, vocab_size, mask.shape).astype(np.int32)
        halves = mask.sum(axis=1, keepdims=True) // 2
        segments = mask * (np.arange(mask.shape[1]) >= halves).astype(np.int32)
        inputs = dict(zip(INPUTS, (ids, mask, segments)))
        wanted = expected({name: tf.constant(value) for name, value in inputs.items()})
        for name, output in run(inputs).items():
            difference = float(np.abs(output - wanted[name].numpy()).max())
            found[name] = max(found.get(name, 0.0), difference)
    return found


def report(served: ServedCheckpoint, output: str, size: str, found: dict[str, float]) -> None:
    """Prints what was written: `size` describes it, `found` is of `differences`."""
    print(f"{output}: {served.kind}, {size}")
    for name, difference in found.items():
        print(f"  {name}: at most {difference:.1e} from the model's own")
