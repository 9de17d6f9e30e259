"""Code shared by TFLite, ONNX and OpenVINO exports: a graph from piece ids to the kind's outputs.

The graph computes logits or probabilities for one sequence. The application must tokenize, split
long texts into windows and decode spans, entities and choices. For models with beam search over
spans, only the encoder is exported. For base.onnx, the vocabulary is written to
base.onnx.spiece.model (for WordPiece, base.onnx.vocab.txt) and, as Hugging Face's tokenizers read
it, to base.onnx.tokenizer.json. Settings for the application are written to base.onnx.json.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf

from albert_tf.encoder import cls_only_positions
from albert_tf.kinds import KINDS
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text import tokenizer_json
from albert_tf.text.packing import FEATURES, model_inputs
from .kinds import ENCODER, PRETRAINING
from .loading import load_module, open_checkpoint, print_notes_on_outputs
from .modules.serving_module import ServedCheckpoint, ServingModule


def load(
    checkpoint: str, kind: str | None = None, max_seq_length: int | None = None
) -> ServingModule:
    """Loads a checkpoint as a module. If `kind` is None, a pre-trained model becomes an encoder."""
    served = open_checkpoint(checkpoint, kind, max_seq_length)
    has_beams = served.task.get("has_answerability_head")
    if kind and has_beams:
        graph = "searches for spans by beams, which a single graph cannot"
        raise UserError(f"--kind={kind}: {checkpoint!r} {graph}: take --kind={ENCODER}")
    if has_beams or (kind is None and served.kind == PRETRAINING):
        served = dataclasses.replace(served, kind=ENCODER, task={})
    return load_module(served)


def answer(module: ServingModule, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Computes a module's outputs; `ids` maps each of FEATURES to integers [b, L]."""
    inputs = model_inputs({name: tf.cast(ids[name], tf.int32) for name in FEATURES})
    if module.served.kind == ENCODER:
        encoded = module.encoder(inputs)
        return {name: encoded[name] for name in ("sequence_output", "pooled_output")}
    if module.served.kind == PRETRAINING:
        logits = module.model(inputs)
        order = tf.nn.log_softmax(logits["sentence_order_logits"])
        return {"mlm_logits": logits["masked_lm_logits"], "sop_log_probs": order}
    kind = KINDS[module.served.kind]
    if not kind.our_head:
        return module.model(inputs)
    positions = cls_only_positions(inputs["input_word_ids"]) if kind.has_pooler else None
    encoded = module.encoder(inputs, positions=positions)
    head = getattr(module.model, kind.our_head.partition("/")[0]).output_dense
    output = encoded["pooled_output" if kind.has_pooler else "sequence_output"]
    answers, labels = kind.answers(head(output)), module.served.task.get("labels", ())
    found = answers["probabilities"].shape[-1] if "probabilities" in answers else None
    if found and found != len(labels):
        raise UserError(
            f"{found} probabilities of {len(labels)} labels: the `answers` of {kind.name!r} in "
            "albert_tf/kinds.py must return one for each label"
        )
    return answers


def traced(module: ServingModule, shape: list[int | None]):
    """Returns `answer` as a concrete function of int32 inputs with the names in FEATURES."""
    specs = {name: tf.TensorSpec(shape, tf.int32, name) for name in FEATURES}
    function = tf.function(lambda **ids: answer(module, ids), autograph=False)
    return function.get_concrete_function(**specs)


def differences(
    module: ServingModule,
    run: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]],
    masks: Iterable[np.ndarray],
) -> dict[str, float]:
    """Returns the largest difference between `run` and `module` for each output.

    `run` executes the exported graph on a dict of int32 arrays, one for each of FEATURES, with
    random ids. `masks` contains the mask of each batch, int32 [b, L], 1 = real.
    """
    rng = np.random.RandomState(20200426)
    found: dict[str, float] = {}
    for mask in masks:
        ids = mask * rng.randint(0, module.encoder.config.vocab_size, mask.shape).astype(np.int32)
        halves = mask.sum(axis=1, keepdims=True) // 2
        segments = mask * (np.arange(mask.shape[1]) >= halves).astype(np.int32)
        inputs = dict(zip(FEATURES, (ids, mask, segments)))
        expected = answer(module, inputs)
        for name, output in run(inputs).items():
            difference = float(np.abs(output - expected[name].numpy()).max())
            found[name] = float(np.maximum(found.get(name, 0.0), difference))  # keeps NaN
    return found


def write(
    module: ServingModule, output: str, data: bytes, found: dict[str, float], form: str
) -> None:
    """Writes all files of an export; prints what was written and the differences `found`."""
    if not all(map(math.isfinite, found.values())):
        raise UserError(
            f"{module.served.checkpoint!r}{form} gives answers that are not finite: export another "
            "checkpoint, or without --quantize"
        )
    described, vocabulary = description(module.served, output), module.served.tokenizer.vocabulary
    files.write_atomically(f"{output}.{vocabulary.file_name}", vocabulary.model_bytes)
    tokenizer_json.write(f"{output}.{tokenizer_json.FILE_NAME}", vocabulary)
    files.write_json(f"{output}.json", described)
    files.write_atomically(output, data)
    parameters = sum(v.shape.num_elements() for v in module.model.variables)
    size = f"{parameters / 1e6:.1f}M parameters, {len(data) / 1e6:.1f} MB"
    print(f"{output}: {module.served.kind}{form}, {size}")
    for name, difference in found.items():
        print(f"  {name}: at most {difference:.1e} from the model's own")
    print_notes_on_outputs(module.served, found)


def description(served: ServedCheckpoint, output: str) -> dict:
    """Returns the content of the .json file, which has the settings for the application."""
    tokenizer, task, name = served.tokenizer, served.task, os.path.basename(output)
    ids = [getattr(tokenizer, f"{piece}_id") for piece in ("pad", "unk", "cls", "sep", "mask")]
    return {
        "kind": served.kind,
        "max_seq_length": served.max_seq_length,
        "vocab_file": f"{name}.{tokenizer.vocabulary.file_name}",
        "vocab_sha256": tokenizer.sha256,
        "tokenizer_file": f"{name}.{tokenizer_json.FILE_NAME}",
        **tokenizer.settings._asdict(),
        "special_pieces": {tokenizer.id_to_piece(i): i for i in ids},
        "has_pairs": task.get("has_pairs"),
        "labels": task.get("labels"),
        "task": task,
    }
