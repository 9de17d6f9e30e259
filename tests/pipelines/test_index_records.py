import contextlib
import dataclasses
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines import index_records as job
from pipelines.data.beam_job import Workers
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset
from pipelines.data.records import Manifest, write_records
from pipelines.evaluate import Evaluation, evaluate
from tests.builders import raises_one_line, tiny_config
from tests.jobs import run
from tests.pipelines.data.small_records import CLS, LENGTH, PREDICTIONS, static_example


@pytest.fixture
def files(tmp_path) -> Path:
    directory = tmp_path / "ref"
    directory.mkdir()
    for name, count in (("a", 7), ("b", 300), ("c", 4)):
        examples = [static_example(n % 90) for n in range(count)]
        write_records(str(directory / f"{name}.tfrecord"), examples)
    return directory


@pytest.fixture
def index(files, tiny_vocabulary, tmp_path, in_this_process):
    def run(input_file=f"{files}/*", output="indexed", **changes):
        where = str(input_file), str(tmp_path / output), str(tiny_vocabulary)
        return job.index_records(job.Settings(*where, **changes), Workers(num_workers=1))

    return run


def test_manifest_points_to_the_files(index, files, tmp_path, monkeypatch, capsys):
    """However they are spelt; empty ones are skipped."""
    (files / "0.tfrecord").touch()
    monkeypatch.chdir(files.parent)
    manifest = index(f"ref/*,./ref/a*,{files}/c*")
    assert manifest == Manifest.read(str(tmp_path / "indexed"))
    assert manifest.format == "reference" and manifest.do_lower_case
    assert (manifest.max_seq_length, manifest.max_predictions_per_seq) == (LENGTH, PREDICTIONS)
    shards = manifest.splits["train"].shards
    assert [shard.examples for shard in shards] == [7, 300, 4]
    assert shards[2].pieces == 11 + 12 + 13 + 11
    assert manifest.paths("elsewhere", "train") == [f"{files}/{n}.tfrecord" for n in "abc"]
    shown = capsys.readouterr()
    assert f"--max_seq_length={LENGTH} --max_predictions_per_seq={PREDICTIONS}" in shown.out
    assert "(100 %)" in shown.err


def test_what_is_read_is_what_was_written(index, files, tokenizer, tmp_path):
    """Features are renamed, labels of pairs count, and the last batch is filled."""
    single = static_example(2, segment_ids=[0] * LENGTH)
    write_records(str(files / "c.tfrecord"), [static_example(n) for n in range(4)] + [single])
    index(f"{files}/c*")
    options = ExampleOptions(LENGTH, PREDICTIONS)
    where = str(tmp_path / "indexed"), "train"
    dataset = evaluation_dataset(*where, options, tokenizer, 3)
    batches = list(dataset.as_numpy_iterator())
    read = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert read["input_word_ids"][:5, 1].tolist() == [20, 21, 22, 23, 22]
    assert read["input_word_ids"][0].tolist()[:11] == [2, 20, 50, 51, 3, *range(60, 65), 3]
    assert read["input_type_ids"][:5].sum(1).tolist() == [6, 7, 8, 6, 0]
    assert read["input_mask"].sum(1).tolist() == [11, 12, 13, 11, 13, 0]
    assert read["sentence_order_labels"][:5].tolist() == [0, 1, 0, 1, 0]
    assert read["sentence_order_weights"].tolist() == [1, 1, 1, 1, 0, 0]
    assert read["masked_lm_positions"][0].tolist() == [2, 6, 0, 0, 0]
    assert read["masked_lm_ids"][0].tolist() == [55, 61, 0, 0, 0]
    assert read["masked_lm_weights"].tolist() == [[1, 1, 0, 0, 0]] * 5 + [[0] * 5]


def test_options_that_static_examples_refuse(index, tokenizer):
    manifest, options = index(), ExampleOptions(LENGTH, PREDICTIONS)
    for changes, remedy in (
        ({}, None),
        ({"sentence_objective": "none"}, None),
        ({"max_seq_length": 64}, "max_seq_length 19, not 64: give --max_seq_length=19"),
        ({"max_predictions_per_seq": 8}, "give --max_predictions_per_seq=5"),
        ({"sentence_objective": "nsp"}, "give --sentence_objective=sop"),
        ({"ngram": 1}, "whose masks are fixed, so --ngram=1 has no effect: omit it$"),
        ({"masked_lm_prob": 0.2}, "--masked_lm_prob=0.2 has no effect"),
        ({"mask_token_rate": 0.9}, "--mask_token_rate=0.9 has no effect"),
    ):
        refused = pytest.raises(ValueError, match=remedy) if remedy else contextlib.nullcontext()
        with refused:
            manifest.check("indexed", tokenizer, dataclasses.replace(options, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [CLS, -1] + [9] * 17}, "a piece beyond the vocabulary of"),
        ({"masked_lm_ids": [55, 211, 0, 0, 0]}, "a piece beyond the vocabulary of"),
        ({"input_ids": [9] * 19}, r"no \[CLS\], piece 2, at its start"),
        ({"input_ids": [CLS] * 20}, "other features than expected .*input_ids"),
        ({"masked_lm_weights": [1] * 5}, "other features than expected .*masked_lm_weights"),
    ],
)
def test_a_broken_record_is_one_line(index, tmp_path, changes, message):
    path, good = tmp_path / "bad.tfrecord", [static_example()]
    write_records(str(path), [*good * 263, static_example(**changes), *good * 9])
    with raises_one_line(f"^{path}: record 264: .*{message}"):
        index(path)
    assert not (tmp_path / "indexed" / "manifest.json").exists()


def test_a_damaged_file_is_one_line(index, files, tmp_path):
    faults = (
        (lambda data: data[:-3], "record 7: cut or damaged"),
        (lambda data: data[:100] + b"!" + data[101:], "record 1: cut or damaged"),
        (gzip.compress, "record 1: cut or damaged, or no uncompressed TFRecord"),
        (lambda data: b"", "no record in the files"),
    )
    for number, (damage, message) in enumerate(faults):
        path = tmp_path / f"bad{number}.tfrecord"
        path.write_bytes(damage((files / "a.tfrecord").read_bytes()))
        with raises_one_line(message) as error:
            index(path, output=f"out{number}")
        assert path.name in str(error.value)


@pytest.mark.slow
@pytest.mark.shared
def test_the_authors_records_train_here(shared, tmp_path):
    records = shared / "data/google_pretraining_tfrecords/demo_128.tfrecord"
    model = shared / "data/albert_spiece_30k/30k-clean.model"
    stats = json.loads(records.with_name("stats.json").read_text())
    config = tiny_config(vocab_size=30000, max_position_embeddings=130)
    config.write(str(tmp_path / "config.json"))
    # Here a tenth of them is held out, as another file.
    raw = list(tf.data.TFRecordDataset(str(records)).as_numpy_iterator())
    write_records(str(tmp_path / "train"), [record for n, record in enumerate(raw) if n % 10])
    write_records(str(tmp_path / "heldout"), raw[::10])
    record_dir = str(tmp_path / "indexed")
    examples = {}
    for split, output in (("train", record_dir), ("heldout", f"{record_dir}_heldout")):
        settings = job.Settings(str(tmp_path / split), output, str(model))
        manifest = job.index_records(settings, Workers(num_workers=1))
        assert (manifest.max_seq_length, manifest.max_predictions_per_seq) == (128, 20)
        examples[split] = manifest.splits["train"].examples
    assert sum(examples.values()) == stats["examples"]
    paths = f"--record_dir={record_dir} --spm_model_file={model} --model_dir={tmp_path}/model"
    shape = f"--albert_config={tmp_path}/config.json --max_seq_length=128 --global_batch_size=6"
    steps = "--num_train_steps=4 --num_warmup_steps=1 --steps_per_loop=2 --save_checkpoint_steps=2"
    out, _ = run("pipelines.pretrain", *f"{paths} {shape} {steps}".split())
    assert re.search(r"rows of up to 128 pieces, \d+ % padding at length 128", out), out
    result = evaluate(Evaluation(str(tmp_path / "model"), f"{record_dir}_heldout", "train"))
    assert result["examples"] == result["sentence_order_predictions"] == examples["heldout"]
    assert abs(result["masked_lm_loss"] - np.log(30000)) < 0.5
