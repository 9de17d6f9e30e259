"""Time to a held-out masked-LM loss, beside plain training of the same ALBERT with Hugging Face.

--side=huggingface trains AlbertForMaskedLM of transformers at full depth on blocks of the text
without padding, masked by its own DataCollatorForLanguageModeling; fused AdamW, linear warm-up and
decay. It computes logits at the masked positions only; --bfloat16 puts it under autocast. Each
evaluation prints a JSON line. --side=ours prints one for a checkpoint of pipelines.pretrain, at the
depth that it was trained at; its time is that of metrics.jsonl up to there. Both are asked the same
held-out blocks with the same masks, drawn by Hugging Face's collator. Evaluations are not counted
in the time.

Examples:
  python -m tests.benchmarks.time_to_loss --side=huggingface --input_file='corpus/train-*.txt' \\
      --heldout_file=corpus/heldout.txt --spm_model_file=30k-clean.model \\
      --albert_config=mini.json --batch_size=32 --num_train_steps=1000 --learning_rate=0.001
  python -m tests.benchmarks.time_to_loss --side=ours \\
      --checkpoint=runs/hour_32,runs/hour_64,runs/hour_128/checkpoints/ckpt-400 \\
      --heldout_file=corpus/heldout.txt --spm_model_file=30k-clean.model
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf.checkpoints import huggingface, model_directory
from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.vocabulary_settings import resolve_lower_case

FLAGS = flags.FLAGS

_SEQ_LENGTH = 128
_HELDOUT_BLOCKS = 1024
_EVALUATION_BATCH = 64


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_enum("side", None, ["huggingface", "ours"], "Whose run.", required=True)
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model of both.", required=True)
    flags.DEFINE_string("heldout_file", None, "Text to evaluate on.", required=True)
    flags.DEFINE_list(
        "checkpoint", None, "--side=ours: the run or its checkpoint, after those it began with."
    )
    flags.DEFINE_string("input_file", None, "--side=huggingface: text to train on.")
    flags.DEFINE_string("albert_config", None, "--side=huggingface: our albert_config.json.")
    flags.DEFINE_integer("batch_size", 32, "--side=huggingface: blocks in a step.", 1)
    flags.DEFINE_integer("num_train_steps", 1000, "--side=huggingface: steps in all.", 1)
    flags.DEFINE_integer("num_warmup_steps", 100, "--side=huggingface: of linear warm-up.", 0)
    flags.DEFINE_float("learning_rate", 1e-3, "--side=huggingface: peak.", 0.0)
    flags.DEFINE_integer("eval_steps", 200, "--side=huggingface: steps between evaluations.", 1)
    flags.DEFINE_bool("bfloat16", False, "--side=huggingface: train under autocast to bfloat16.")
    flags.DEFINE_integer(
        "stop_after_steps", None, "--side=huggingface: to try the begin of a schedule."
    )


def main(_) -> None:
    """Runs one side."""
    import transformers

    if FLAGS.side == "huggingface":
        config = AlbertConfig.read(FLAGS.albert_config)
        if config.parameter_sharing != "all":
            raise UserError("--albert_config: Hugging Face's ALBERT shares all weights of a group")
        do_lower_case = resolve_lower_case(FLAGS.spm_model_file, None)
    else:
        model_dir, _ = model_directory.find_checkpoint(FLAGS.checkpoint[-1])
        do_lower_case = AlbertTokenizer.load(model_dir).do_lower_case
    tokenizer = transformers.AlbertTokenizer(FLAGS.spm_model_file, do_lower_case=do_lower_case)
    inputs, labels = masked_heldout(tokenizer, FLAGS.heldout_file)
    if FLAGS.side == "huggingface":
        train_huggingface(config, tokenizer, inputs, labels)
    else:
        evaluate_ours(FLAGS.checkpoint, inputs, labels)


def blocks_of(tokenizer, pattern: str) -> np.ndarray:
    """Returns [blocks, L]: the pieces of all lines one after the other, cut, in [CLS] and [SEP]."""
    pieces = []
    for path in sorted(tf.io.gfile.glob(pattern)):
        with tf.io.gfile.GFile(path) as lines:
            for line in lines:
                pieces.extend(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)))
    width = _SEQ_LENGTH - 2
    body = np.array(pieces[: len(pieces) // width * width]).reshape(-1, width)
    edge = np.ones([len(body), 1], int)
    return np.hstack([edge * tokenizer.cls_token_id, body, edge * tokenizer.sep_token_id])


def masked_heldout(tokenizer, heldout_file: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and labels [blocks, L] of the first held-out blocks; -100: nothing to predict."""
    import torch
    from transformers import DataCollatorForLanguageModeling

    blocks = blocks_of(tokenizer, heldout_file)[:_HELDOUT_BLOCKS]
    torch.manual_seed(0)
    batch = DataCollatorForLanguageModeling(tokenizer)([torch.tensor(block) for block in blocks])
    return batch["input_ids"].numpy(), batch["labels"].numpy()


def train_huggingface(
    config: AlbertConfig, tokenizer, heldout_inputs: np.ndarray, heldout_labels: np.ndarray
) -> None:
    """Trains and prints a line at each evaluation."""
    import torch
    import transformers

    torch.manual_seed(12345)
    model = transformers.AlbertForMaskedLM(
        transformers.AlbertConfig(**huggingface.config_values(config))
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=FLAGS.learning_rate, weight_decay=0.01, fused=True
    )
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, FLAGS.num_warmup_steps, FLAGS.num_train_steps
    )
    collator = transformers.DataCollatorForLanguageModeling(tokenizer)
    blocks = torch.tensor(blocks_of(tokenizer, FLAGS.input_file))
    loader = torch.utils.data.DataLoader(
        blocks, batch_size=FLAGS.batch_size, shuffle=True, drop_last=True, collate_fn=collator
    )
    print(json.dumps({"train_blocks": len(blocks), "parameters": model.num_parameters()}))

    def evaluate() -> dict[str, float]:
        model.eval()
        sums = np.zeros(3)
        with torch.no_grad():
            for begin in range(0, len(heldout_inputs), _EVALUATION_BATCH):
                rows = slice(begin, begin + _EVALUATION_BATCH)
                logits = model(input_ids=torch.tensor(heldout_inputs[rows])).logits.numpy()
                sums += _sums(logits[heldout_labels[rows] >= 0], heldout_labels[rows])
        model.train()
        return _means(sums)

    seconds, step = 0.0, 0
    last_step = FLAGS.stop_after_steps or FLAGS.num_train_steps
    while step < last_step:
        batches = iter(loader)
        while step < last_step:
            began = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                break
            optimizer.zero_grad()
            with torch.autocast("cpu", enabled=FLAGS.bfloat16):
                hidden = model.albert(batch["input_ids"]).last_hidden_state
                asked = batch["labels"] >= 0
                logits = model.predictions(hidden[asked])
            loss = torch.nn.functional.cross_entropy(logits.float(), batch["labels"][asked])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            loss = loss.item()
            seconds += time.monotonic() - began
            if step % FLAGS.eval_steps == 0 or step == last_step:
                line = {"step": step, "seconds": round(seconds, 1), "train_loss": loss}
                print(json.dumps({**line, **evaluate()}), flush=True)


def evaluate_ours(parts: list[str], inputs: np.ndarray, labels: np.ndarray) -> None:
    """Prints the line of the last of `parts`: a run's checkpoint after those it began with."""
    model, _ = model_directory.load_for_pretraining(parts[-1])
    most = int((labels >= 0).sum(axis=1).max())
    sums = np.zeros(3)
    for begin in range(0, len(inputs), _EVALUATION_BATCH):
        rows = slice(begin, begin + _EVALUATION_BATCH)
        asked = labels[rows] >= 0
        # Masked positions first, in order; what fills up the row is dropped below.
        positions = np.argsort(~asked, axis=1, kind="stable")[:, :most]
        logits = model(
            {
                "input_word_ids": tf.constant(inputs[rows], tf.int32),
                "input_mask": tf.ones(inputs[rows].shape, tf.int32),
                "input_type_ids": tf.zeros(inputs[rows].shape, tf.int32),
                "masked_lm_positions": tf.constant(positions, tf.int32),
            }
        )["masked_lm_logits"].numpy()
        sums += _sums(logits[np.take_along_axis(asked, positions, axis=1)], labels[rows])
    line = {"checkpoint": parts[-1], "num_hidden_layers": model.config.num_hidden_layers}
    seconds = sum(map(_seconds, parts))
    print(json.dumps({**line, "seconds": round(seconds, 1), **_means(sums)}))


def _seconds(checkpoint: str) -> float:
    """Returns how long a run took to a checkpoint."""
    model_dir, prefix = model_directory.find_checkpoint(checkpoint)
    run = files.read_json(os.path.join(model_dir, model_directory.RUN_FILE))
    seconds, last_step = 0.0, 0
    with tf.io.gfile.GFile(os.path.join(model_dir, "metrics.jsonl")) as entries:
        for entry in map(json.loads, entries):
            if "examples_per_second" in entry and entry["step"] <= int(prefix.rpartition("-")[2]):
                examples = (entry["step"] - last_step) * run["global_batch_size"]
                seconds += examples / entry["examples_per_second"]
                last_step = entry["step"]
    return seconds


def _sums(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the sums of loss and hits, and the number, over the rows of logits [n, V]."""
    labels = labels[labels >= 0]
    most = logits.max(axis=1, keepdims=True)
    log_z = most[:, 0] + np.log(np.exp(logits - most).sum(axis=1))
    losses = log_z - logits[np.arange(len(labels)), labels]
    return np.array([losses.sum(), (logits.argmax(axis=1) == labels).sum(), len(labels)])


def _means(sums: np.ndarray) -> dict[str, float]:
    return {
        "heldout_loss": round(sums[0] / sums[2], 4),
        "heldout_accuracy": round(sums[1] / sums[2], 4),
        "heldout_predictions": int(sums[2]),
    }


if __name__ == "__main__":
    define_flags()
    program.run(main)
