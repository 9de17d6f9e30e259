"""What the tests of several files need: tables, models and runs, made once per run of the tests.

The fixtures of tests/conftest.py give these to tests. `once` lets the worker processes of pytest
share what one of them made: no test may change it.
"""

import contextlib
import csv
import fcntl
import json
import os
import random

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.jobs import pictures, program
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import finetune as finetune_lib
from pipelines.data import beam_job
from pipelines.tasks.classification import ClassificationTask
from pipelines.tasks.running.batches import Prediction
from pipelines.tasks.running.seed_run import FinetuneSettings, Finetuning
from pipelines.tasks.task import create_model
from pipelines.training.settings import LoopSettings
from tests.conftest import WORDS, make_text
from tests.jobs import record_flags, run

TRAIN, DEV, TEST = 90, 33, 7


def once(tmp_path_factory, name, make):
    """Returns a directory that `make(directory)` fills, in whichever process asks first.

    Raises: what `make` raises. The next process that asks then tries again.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    directory, done = root / "shared" / name, root / "shared" / f"{name}.done"
    directory.mkdir(parents=True, exist_ok=True)
    with open(f"{directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(directory)
            done.touch()
    return directory


@contextlib.contextmanager
def raises_one_line(message):
    """Like pytest.raises, for an error of the user."""
    with pytest.raises(ValueError, match=message) as error:
        yield error
    assert program.is_user_error(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 700


@contextlib.contextmanager
def units_in_this_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_job, "run", lambda work, units, *_: [*map(work, units)])
        yield


def tiny_config(**changes):
    values = {"vocab_size": 61, "embedding_size": 12, "hidden_size": 20, "intermediate_size": 28}
    values.update(num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=67)
    return AlbertConfig(**{**values, **changes})


def with_random_weights(model, seed=3, scale=0.3):
    """Adds noise to a model's new weights, biases and normalizations too; returns the model."""
    model.create_variables()
    rng = np.random.RandomState(seed)
    for variable in model.variables:
        variable.assign_add(rng.normal(0, scale, variable.shape))
    return model


def make_rows(number, seed):
    """Two texts and whether they are about the river."""
    rng = random.Random(seed)
    rows = []
    for i in range(number):
        label = rng.choice(["river", "other"])
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 14))) for _ in range(2)]
        texts = [text.replace("river", "sea").replace("some", "sea") for text in texts]
        if label == "river":
            side = rng.randrange(2)
            texts[side] = f"{texts[side]} river river some river"
        rows.append((f"id{i}", *texts, label))
    return rows


def write_table(directory):
    for seed, (split, number) in enumerate({"train": TRAIN, "dev": DEV, "test": TEST}.items()):
        rows = [("name", "first", "second", "label"), *make_rows(number, seed)]
        (directory / f"{split}.tsv").write_text("\n".join(map("\t".join, rows)) + "\n")


def write_pretrained(directory, vocabulary, do_lower_case=None, **changes):
    tokenizer = AlbertTokenizer(vocabulary, do_lower_case)
    sizes = {"embedding_size": 20, "hidden_size": 32, "num_attention_heads": 4}
    sizes.update(intermediate_size=56, max_position_embeddings=64)
    sizes.update(initializer_range=0.15, vocab_size=tokenizer.vocab_size, **changes)
    config = tiny_config(**sizes)
    tf.keras.utils.set_random_seed(5)
    model = AlbertForPreTraining(config)
    model.create_variables()
    model_directory.save(model, str(directory))
    tokenizer.save(str(directory))


def write_work(directory):
    """Writes a corpus, its vocabulary and its records, and the config of a model."""
    (directory / "corpus.txt").write_text(make_text(150, seed=11), encoding="utf-8")
    corpus, prefix = f"--input_file={directory}/corpus.txt", directory / "vocabulary"
    run("pipelines.train_vocab", corpus, f"--output_prefix={prefix}", "--vocab_size=83")
    run("pipelines.create_pretraining_data", *record_flags(directory, directory / "records"))
    sizes = {"embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 2}
    sizes.update(num_attention_heads=4, intermediate_size=56, max_position_embeddings=48)
    for name, dropout in (("config", 0.1), ("without_dropout", 0.0)):
        sizes.update(hidden_dropout_prob=dropout, classifier_dropout_prob=dropout)
        config = tiny_config(vocab_size=83, **sizes)
        config.write(str(directory / f"{name}.json"))


def write_task_model(directory, task, model, tokenizer, max_seq_length):
    """Writes a model as a finished seed of fine-tuning leaves it, without figures."""
    tf.train.Checkpoint(model=model).write(str(directory / "best/ckpt-7"))
    model.config.write(str(directory / "albert_config.json"))
    tokenizer.save(str(directory))
    description = {"task": task.name, "max_seq_length": max_seq_length}
    for part in task.description():
        description.update(part)
    (directory / "task.json").write_text(json.dumps(description))


def write_tuned(output_dir, table, pretrained):
    """Writes two finished seeds as fine-tuning does, with random weights."""
    task = classification(table)
    tokenizer = AlbertTokenizer.load(str(pretrained))
    config = AlbertConfig.read(str(pretrained / "albert_config.json"))
    examples = task.read("dev")
    sequences, features = task.encode(examples, tokenizer, 48, False)
    results = {"best_metric": "accuracy", "dev": {"seeds": {}}}
    for seed in (1, 2):
        directory = output_dir / f"seed_{seed}"
        tf.keras.utils.set_random_seed(seed)
        model = with_random_weights(create_model(task, config), seed, scale=0.1)
        write_task_model(directory, task, model, tokenizer, 48)
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        outputs = Prediction(strategy, model, 11, 48, False)(sequences)
        answers = task.answers(examples, features, outputs)
        task.write(str(directory / "predictions"), "dev", examples, answers)
        results["dev"]["seeds"][str(seed)] = task.score(answers.rows())
    (output_dir / "results.json").write_text(json.dumps(results))


def run_task(task, init_checkpoint, output_dir, seeds=(1,), **changes):
    settings = {"max_seq_length": 48, "global_batch_size": 12, "learning_rate": 5e-3}
    settings.update(num_train_steps=60, num_warmup_steps=6)
    arguments = {
        "divide": None,
        "baselines": {},
        "strategy": tf.distribute.OneDeviceStrategy("/cpu:0"),
        "loop": LoopSettings(steps_per_loop=10, save_checkpoint_steps=20, eval_steps=20),
    }
    start = {"albert_config": None, "spm_model_file": None, "hidden_dropout_prob": 0.1}
    start["num_hidden_layers"] = None
    for values in (arguments, start):
        values.update({name: changes.pop(name) for name in list(changes) if name in values})
    settings.update(changes)
    job = Finetuning(
        task=task,
        initial=finetune_lib.initial_model(init_checkpoint and str(init_checkpoint), **start),
        output_dir=str(output_dir),
        random_seeds=seeds,
        settings=FinetuneSettings(**settings),
        **arguments,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "write", lambda *_: "")  # a second for each seed
        return finetune_lib.finetune(job)


def classification(table, splits=("train", "dev")):
    files = {split: str(table / f"{split}.tsv") for split in splits}
    columns = {"text": "first", "text_pair": "second", "id": "name"}
    return ClassificationTask("classification", files, columns)


def finetune(table, pretrained, output_dir, seeds=(1,), splits=("train", "dev"), **changes):
    return run_task(classification(table, splits), pretrained, output_dir, seeds, **changes)


def write_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def near(value, tolerance):
    """A value of JSON, equal to others whose numbers with a point differ by the tolerance."""
    if isinstance(value, dict):
        return {name: near(one, tolerance) for name, one in value.items()}
    if isinstance(value, list):
        return [near(one, tolerance) for one in value]
    return pytest.approx(value, abs=tolerance) if isinstance(value, float) else value


def read_tsv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def finetune_flags(place, init_checkpoint, splits=("train", "dev")):
    return [
        "--task=classification",
        *(f"--{split}_file={place}/{split}.tsv" for split in splits),
        f"--init_checkpoint={init_checkpoint}",
        *"--global_batch_size=12 --num_train_steps=6 --num_warmup_steps=2".split(),
        *"--learning_rate=2e-3 --steps_per_loop=3".split(),
        *"--save_checkpoint_steps=3 --eval_steps=3".split(),
    ]


def table_flags(table, pretrained, output_dir, *others, splits=("train", "dev")):
    """Returns `finetune_flags` for the tables of `write_table`."""
    columns = "--text_column=first --text_pair_column=second --id_column=name --max_seq_length=48"
    flags = [*finetune_flags(table, pretrained, splits), *columns.split()]
    return [*flags, f"--output_dir={output_dir}", *others]
