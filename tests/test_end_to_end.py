"""The main job on a tiny corpus, program by program."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from absl.flags import FLAGS

from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import pretrain
from pipelines.data.records import Manifest
from tests.builders import write_pretrained
from tests.jobs import assert_same_bits, log, pretrain_flags, run, weights


@pytest.fixture(scope="module")
def model_dir(work):
    run("pipelines.pretrain", *pretrain_flags(work, work / "model"))
    return work / "model"


@pytest.fixture
def pretraining_flags():
    others = set(FLAGS)
    pretrain.define_flags()
    yield
    for name in set(FLAGS) - others:
        delattr(FLAGS, name)


def test_training_learns_and_leaves_curves(work, model_dir):
    entry, *_, last = log(model_dir)
    assert last["masked_lm_loss"] < entry["masked_lm_loss"] - 0.1
    assert (model_dir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((model_dir / "tensorboard").glob("events*"))
    manifest = Manifest.read(str(work / "records"))
    train = manifest.splits["train"]
    # Padding counts as no tokens.
    mean = entry["tokens_per_second"] / entry["examples_per_second"]
    assert mean == pytest.approx(train.pieces / train.examples + 3)
    # The default length is that of the records.
    run_length = json.loads((model_dir / "run.json").read_text())["max_seq_length"]
    assert manifest.max_seq_length == run_length == 40


def test_evaluation(work, model_dir):
    out, _ = run("pipelines.evaluate", f"--checkpoint={model_dir}", f"--record_dir={work}/records")
    assert "masked LM" in out and "95 % interval" in out and "from the overlap of words" in out
    [kept] = (model_dir / "evaluations").glob("*-heldout-sop-*.json")
    result = json.loads(kept.read_text())
    assert result["examples"] > 20
    assert 0 < result["most_frequent_accuracy"] < 1
    masks, predictions = (result[f"masked_lm{name}_predictions"] for name in ("_at_mask", ""))
    assert f" % of {masks:,} of them\n" in out and 0.7 < masks / predictions < 0.9
    assert {"openings", "inside"} == result["sentence_order"].keys()
    for figures in result["sentence_order"].values():
        low, high = figures["interval"]
        assert low <= figures["accuracy"] <= high


@pytest.mark.slow
def test_without_a_sentence_objective_its_weights_stay(work, model_dir):
    """A later run that begins with them finds them as they were, not decayed to nothing."""
    flags = ["--sentence_objective=none", f"--init_checkpoint={model_dir}"]
    run("pipelines.pretrain", *pretrain_flags(work, work / "no_objective"), *flags)
    before, after = weights(model_dir), weights(work / "no_objective")
    changed = {
        key: not np.array_equal(before[key], after[key])
        for key in before
        if key.startswith("model/") and "OPTIMIZER_SLOT" not in key
    }
    of_the_objective = [key for key in changed if "pooler" in key or "sentence_order" in key]
    assert len(of_the_objective) == 4
    for key, is_changed in changed.items():
        assert is_changed == (key not in of_the_objective), key


def test_records_longer_than_the_position_table(work, model_dir, tmp_path):
    records = shutil.copytree(work / "records", tmp_path / "records")
    manifest = dataclasses.replace(Manifest.read(str(records)), max_seq_length=4096)
    manifest.write(str(records))
    flags = f"--checkpoint={model_dir}", f"--record_dir={records}"
    error = run("pipelines.evaluate", *flags, exit_code=2)[1]
    assert "has segments of up to 4096 pieces, but the position table of the model has" in error


@pytest.mark.slow
def test_evaluation_says_what_the_run_said(work):
    """Of a run that masks in its own way: the same masks."""
    own = work / "own_masks"
    flags = ["--ngram=1", "--masked_lm_prob=0.3", "--eval_steps=2"]
    run("pipelines.pretrain", *pretrain_flags(work, own), *flags)
    said = {entry["step"]: entry for entry in log(own) if "heldout_loss" in entry}
    for step in (28, 30):
        checkpoint = own / f"checkpoints/ckpt-{step}"
        flags = [f"--checkpoint={checkpoint}", f"--record_dir={work}/records"]
        run("pipelines.evaluate", *flags)
        [kept] = (own / "evaluations").glob(f"ckpt-{step}-*.json")
        result = json.loads(kept.read_text())
        for name in ("masked_lm_loss", "masked_lm_at_mask_accuracy", "sentence_order_loss"):
            assert result[name] == pytest.approx(said[step][f"heldout_{name}"], rel=1e-5), name


@pytest.mark.slow
def test_a_run_knows_the_weights_that_it_began_with(work, model_dir):
    """Wherever they lie, and after a kill that left half of the first checkpoint."""
    whole, killed, moved = work / "whole", work / "first_kill", work / "moved"

    def train(directory, initial, **options):
        flags = ["--num_train_steps=4", f"--init_checkpoint={initial}"]
        return run("pipelines.pretrain", *pretrain_flags(work, directory), *flags, **options)

    train(whole, model_dir)
    shutil.copytree(whole, killed)
    for path in [*(killed / "checkpoints").iterdir(), killed / "metrics.jsonl"]:
        path.unlink()
    (killed / "checkpoints/ckpt-4.data-00000-of-00001").write_bytes(b"half")
    _, err = train(killed, whole, exit_code=2)
    assert "holds another run (init_weights" in err
    shutil.copytree(model_dir, moved)
    train(killed, moved)
    assert_same_bits(killed, whole)


@pytest.mark.slow
def test_a_deeper_model_begins_with_a_shallower_one(work, model_dir):
    config = json.loads((work / "config.json").read_text())
    deeper = {**config, "num_hidden_layers": 5, "parameter_sharing": "none"}
    (work / "deeper.json").write_text(json.dumps(deeper))
    flags = [
        *pretrain_flags(work, work / "deeper"),
        f"--albert_config={work}/deeper.json",
        f"--init_checkpoint={model_dir}",
        *"--sentence_objective=nsp --num_train_steps=4".split(),
    ]
    out, _ = run("pipelines.pretrain", *flags)
    assert "weights  initially from" in out and "/ckpt-30\n" in out
    begins, ended = log(work / "deeper")[0], log(model_dir)[-1]
    assert begins["masked_lm_loss"] < ended["masked_lm_loss"] + 0.1
    flags = [f"--checkpoint={work}/deeper", f"--record_dir={work}/records"]
    out, _ = run("pipelines.evaluate", *flags, "--sentence_objective=nsp")
    assert "next sentence" in out


@pytest.mark.slow
def test_everything_at_once(work):
    directory = work / "options"
    flags = [
        *pretrain_flags(work, directory),
        *"--gradient_accumulation_steps=3 --recompute".split(),
        *"--learning_rate=0.02 --mixed_precision=bfloat16".split(),
        *"--separator_order_loss --order_loss_weight=2".split(),
        *"--eval_steps=10 --eval_examples=25".split(),
    ]
    out, _ = run("pipelines.pretrain", *flags)
    assert "18 examples per step = 1 replica x 3 micro-batches of 6, on CPU 0" in out
    entries = log(directory)
    evaluated = [entry for entry in entries if "heldout_masked_lm_loss" in entry]
    assert [entry["step"] for entry in evaluated] == [10, 20, 30]
    assert evaluated[-1]["heldout_masked_lm_loss"] < evaluated[0]["heldout_masked_lm_loss"]
    assert {"separator_loss", "separator_accuracy"} <= entries[0].keys()
    assert not any(name.startswith("heldout_separator") for name in evaluated[-1])
    # The best of other examples is another best.
    _, err = run("pipelines.pretrain", *flags, "--eval_examples=30", exit_code=2)
    assert "eval_examples 25 there, 30 here" in err
    trained = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in trained] == [*range(2, 31, 2)]
    best = min(evaluated, key=lambda entry: entry["heldout_masked_lm_at_mask_loss"])
    [index] = (directory / "best").glob("*.index")
    assert index.name == f"ckpt-{best['step']}.index"
    out, _ = run(
        "pipelines.evaluate", f"--checkpoint={directory}/best", f"--record_dir={work}/records"
    )
    assert f"ckpt-{best['step']} on" in out


@pytest.fixture(scope="module")
def wrong_directories(work):
    """Records whose segments have one sentence each; files that no run here can begin with."""
    shutil.copytree(work / "records", work / "no_order")
    manifest = Manifest.read(str(work / "records"))
    dataclasses.replace(manifest, segments_with_order=0).write(str(work / "no_order"))
    config = AlbertConfig.read(str(work / "config.json"))
    tokenizer = AlbertTokenizer(str(work / "vocabulary.model"))
    other = work / "renamed_piece.model"
    piece = max(map(tokenizer.id_to_piece, range(tokenizer.vocab_size)), key=len).encode()
    other.write_bytes(tokenizer.vocabulary.model_bytes.replace(piece, b"#" * len(piece)))
    write_pretrained(work / "unshared", work / "vocabulary.model", parameter_sharing="none")
    (work / "huggingface").mkdir()
    for name in ("config.json", "model.safetensors"):
        (work / "huggingface" / name).write_text("{}")
    dataclasses.replace(config, vocab_size=82).write(str(work / "smaller.json"))
    dataclasses.replace(config, type_vocab_size=1).write(str(work / "one_type.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_dir": "{work}/nowhere"}, "no manifest.json in"),
        ({"record_dir": "{work}/no_order"}, "has two sentences whose order can"),
        ({"spm_model_file": "{work}/corpus.txt"}, "expected a WordPiece vocabulary"),
        ({"spm_model_file": "{work}/renamed_piece.model"}, "made with another vocabulary"),
        ({"max_seq_length": 49}, "beyond the position table"),
        ({"max_seq_length": 32}, "do not fit into 32"),
        ({"albert_config": "albert_tiny"}, "neither a file nor one of albert_base"),
        ({"albert_config": "{work}/smaller.json"}, "vocab_size 82"),
        ({"albert_config": "{work}/one_type.json"}, "sop has pairs: expected an --albert_config"),
        ({"model_dir": "{work}/records"}, "holds another kind of run"),
        ({"model_dir": "{work}/model", "learning_rate": 0.03}, "learning_rate 0.02 there, 0.03 he"),
        ({"init_checkpoint": "{work}/huggingface"}, "a model of Hugging Face's form: convert"),
        ({"init_checkpoint": "{work}/unshared"}, "(parameter_sharing 'none' there, 'all' here)"),
        ({"init_checkpoint": "{pretrained}"}, "(vocabulary '"),
        ({"early_stopping_evaluations": 2}, "give --eval_steps"),
        ({"gradient_accumulation_steps": 4}, "18 does not divide among 1 replicas"),
        ({"unpad": "true", "jit_compile": "true"}, "not for TPUs, and not with --jit_compile"),
        ({"num_epochs": 2}, "--num_train_steps and --num_epochs exclude each other"),
        ({"strategy": "tpu", "tpu": "nowhere"}, "no TPU answers at --tpu='nowhere'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("model_dir", "wrong_directories", "pretraining_flags")
def test_bad_input_to_pretrain(work, pretrained, changes, message):
    places = {"work": work, "pretrained": pretrained}
    given = [f"--{name}={value}".format(**places) for name, value in changes.items()]
    FLAGS(["", *pretrain_flags(work, work / "bad"), *given])
    before = sorted(work.rglob("*"))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        pretrain.main([])
    assert program.is_user_error(error.value)
    assert sorted(work.rglob("*")) == before
