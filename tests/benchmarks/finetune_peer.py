"""Fine-tunes a trained BERT on GLUE by a plain loop of transformers and torch.

Weights, rates, steps, batches, dropout, clipping and decay are pipelines.finetune's. Needs torch
and transformers (.ci/extras.txt). Each task, form of AdamW and seed is a line of JSON; the forms
are the published one, without bias correction, and torch's.

Example:
  python -m tests.benchmarks.finetune_peer --model=hf/all-MiniLM-L6-v2 --data=../shared/data/glue \\
      --output=peer.jsonl
"""

from __future__ import annotations

import json
import math
import os
import random

import torch
import transformers
from absl import app, flags, logging
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipelines.tasks import glue

FLAGS = flags.FLAGS

_BETAS, _EPSILON, _WEIGHT_DECAY = (0.9, 0.999), 1e-6, 0.01
_DIRECTORIES = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE"}


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("model", None, "Directory of a Hugging Face BERT.", required=True)
    flags.DEFINE_string("data", None, "Directory with CoLA, MRPC and RTE.", required=True)
    flags.DEFINE_string("output", None, "Lines of JSON; what is there is kept.", required=True)
    flags.DEFINE_multi_string("task", list(_DIRECTORIES), "Tasks.")
    flags.DEFINE_multi_integer("seed", [1, 2, 3], "Seeds.")
    flags.DEFINE_integer("max_seq_length", 64, "Of MRPC and RTE; CoLA has at most 48.")
    flags.DEFINE_float("learning_rate", 5e-5, "Its highest value.")
    flags.DEFINE_bool("bfloat16", True, "Whether to compute under autocast to bfloat16.")


def main(_) -> None:
    """Trains what --output lacks."""
    done = []
    if os.path.exists(FLAGS.output):
        with open(FLAGS.output, encoding="utf-8") as file:
            done = [json.loads(line) for line in file]
    kept = {(row["task"], row["bias_correction"], row["seed"]) for row in done}
    for task in FLAGS.task:
        for bias_correction in (False, True):
            for seed in FLAGS.seed:
                if (task, bias_correction, seed) in kept:
                    continue
                row = {"task": task, "bias_correction": bias_correction, "seed": seed}
                row.update(fine_tune(task, bias_correction, seed))
                logging.info("%s", row)
                with open(FLAGS.output, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


def fine_tune(name: str, bias_correction: bool, seed: int) -> dict[str, float]:
    """Returns the figures on dev after three epochs in batches of 32."""
    torch.manual_seed(seed)
    transformers.logging.set_verbosity_error()
    task = glue.GlueTask(name, os.path.join(FLAGS.data, _DIRECTORIES[name]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(FLAGS.model)
    config = transformers.AutoConfig.from_pretrained(FLAGS.model, num_labels=2)
    model = transformers.BertForSequenceClassification.from_pretrained(FLAGS.model, config=config)

    def batch(examples):
        texts = [[e.text for e in examples], [e.text_pair for e in examples]]
        texts = [column for column in texts if column[0] is not None]
        length = min(FLAGS.max_seq_length, 48) if name == "cola" else FLAGS.max_seq_length
        return tokenizer(
            *texts, truncation=True, max_length=length, padding="max_length", return_tensors="pt"
        )

    def forward(examples):
        with torch.autocast("cpu", torch.bfloat16, enabled=FLAGS.bfloat16):
            return model(**batch(examples)).logits.float()

    train, dev, names = task.read("train"), task.read("dev"), glue.TASKS[name].labels
    steps = math.ceil(3 * len(train) / 32)
    moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    decayed = {
        id(parameter)
        for path, parameter in model.named_parameters()
        if not path.endswith("bias") and "LayerNorm" not in path
    }
    rng, rows = random.Random(seed), []
    model.train()
    for step in range(steps):
        if len(rows) < 32:
            rows += rng.sample(train, len(train))
        chosen, rows = rows[:32], rows[32:]
        labels = torch.tensor([names.index(e.label) for e in chosen])
        torch.nn.functional.cross_entropy(forward(chosen), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        _update(moments, decayed, _rate(step, steps), step + 1 if bias_correction else None)
    model.eval()
    with torch.no_grad():
        parts = [dev[i : i + 64] for i in range(0, len(dev), 64)]
        answers = torch.cat([forward(part).argmax(dim=1) for part in parts]).numpy()
    truth = [names.index(e.label) for e in dev]
    return {
        "matthews": matthews_corrcoef(truth, answers),
        "accuracy": accuracy_score(truth, answers),
        "f1": f1_score(truth, answers),
    }


def _rate(step: int, steps: int) -> float:
    """Linear decay to 0 over all steps; the first tenth warms up from 0."""
    warmup = round(0.1 * steps)
    share = step / warmup if step < warmup else 1 - step / steps
    return FLAGS.learning_rate * share


def _update(moments, decayed, rate, step) -> None:
    """AdamW with decoupled decay; `step`: the number of this update to correct the bias by."""
    c1, c2 = (1 - beta**step for beta in _BETAS) if step else (1, 1)
    with torch.no_grad():
        for p, m, v in moments:
            m.lerp_(p.grad, 1 - _BETAS[0])
            v.lerp_(p.grad.square(), 1 - _BETAS[1])
            update = (m / c1) / ((v / c2).sqrt() + _EPSILON)
            if id(p) in decayed:
                update += _WEIGHT_DECAY * p
            p -= rate * update
            p.grad = None


if __name__ == "__main__":
    define_flags()
    app.run(main)
