"""Fine-tunes a trained BERT on GLUE by a plain loop of transformers and torch.

Weights, rates, steps, batches, dropout, clipping and decay are pipelines.finetune's. Needs torch
and transformers (.ci/extras.txt). Each task, form of AdamW and seed is a line of JSON; the forms
are the published one, without bias correction, and torch's. The same command goes on.

Example:
  OMP_NUM_THREADS=1 python -m tests.benchmarks.finetune_peer --model=hf/all-MiniLM-L6-v2 \\
      --data=../shared/data/glue --output=peer.jsonl
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random

import torch
import transformers
from absl import app, flags

from pipelines.tasks import glue

FLAGS = flags.FLAGS

_BETAS, _EPSILON, _WEIGHT_DECAY = (0.9, 0.999), 1e-6, 0.01
_LENGTHS = {"CoLA": 48, "MRPC": 64, "RTE": 64}


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("model", None, "Directory of a Hugging Face BERT.", required=True)
    flags.DEFINE_string("data", None, "Directory with CoLA, MRPC and RTE.", required=True)
    flags.DEFINE_string("output", None, "Lines of JSON; what is there is kept.", required=True)


def main(_) -> None:
    """Trains what --output lacks."""
    with open(FLAGS.output, "a+", encoding="utf-8") as file:
        file.seek(0)
        done = [json.loads(line)["run"] for line in file]
        for run in itertools.product(_LENGTHS, (False, True), (1, 2, 3)):
            if list(run) not in done:
                file.write(json.dumps({"run": run, **fine_tune(*run)}) + "\n")
                file.flush()


def fine_tune(name: str, bias_correction: bool, seed: int) -> dict[str, float]:
    """Returns the figures on dev after three epochs in batches of 32."""
    torch.manual_seed(seed)
    task = glue.GlueTask(name.lower(), os.path.join(FLAGS.data, name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(FLAGS.model)
    config = transformers.AutoConfig.from_pretrained(FLAGS.model, num_labels=2)
    model = transformers.BertForSequenceClassification.from_pretrained(FLAGS.model, config=config)

    def logits_of(examples):
        columns = [[e.text for e in examples], [e.text_pair for e in examples]]
        columns = [column for column in columns if column[0] is not None]
        options = {"truncation": True, "max_length": _LENGTHS[name], "padding": True}
        with torch.autocast("cpu", torch.bfloat16):
            return model(**tokenizer(*columns, **options, return_tensors="pt")).logits.float()

    train, dev, rng, rows = task.read("train"), task.read("dev"), random.Random(seed), []
    steps = math.ceil(3 * len(train) / 32)
    moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    decays = [not name.endswith("bias") and "LayerNorm" not in name for name in names]
    model.train()
    for step in range(steps):
        if len(rows) < 32:
            rows += rng.sample(train, len(train))
        chosen, rows = rows[:32], rows[32:]
        labels = torch.tensor(task.label_array(chosen)).long()
        torch.nn.functional.cross_entropy(logits_of(chosen), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        warmup = round(0.1 * steps)
        rate = 5e-5 * (step / warmup if step < warmup else 1 - step / steps)
        _update(moments, decays, rate, step + 1 if bias_correction else None)
    model.eval()
    with torch.no_grad():
        logits = [row for i in range(0, len(dev), 64) for row in logits_of(dev[i : i + 64]).numpy()]
    return task.score(task.answers(dev, dev, [{"logits": row} for row in logits]).rows())


def _update(moments, decays, rate, step) -> None:
    """AdamW with decoupled decay; `step`: the number of this update to correct the bias by."""
    c1, c2 = (1 - beta**step for beta in _BETAS) if step else (1, 1)
    with torch.no_grad():
        for (p, m, v), is_decayed in zip(moments, decays):
            m.lerp_(p.grad, 1 - _BETAS[0])
            v.mul_(_BETAS[1]).addcmul_(p.grad, p.grad, value=1 - _BETAS[1])
            p.mul_(1 - rate * _WEIGHT_DECAY * is_decayed)
            p.addcdiv_(m, (v / c2).sqrt_().add_(_EPSILON), value=-rate / c1)
            p.grad = None


if __name__ == "__main__":
    define_flags()
    app.run(main)
