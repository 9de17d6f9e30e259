"""Runs of words: all pieces of a document, cut between words."""

from __future__ import annotations

import itertools
import random

import numpy as np

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import create_pretraining_data
from pipelines.data.pretraining_dataset import evaluation_dataset, evaluation_options
from pipelines.data.records import Manifest
from pipelines.data.shard_writer import Settings
from pipelines.data.word_runs import SHORTEST, cut_runs

WORD_STARTS = [True, False]


def test_runs_are_the_document_cut_between_words():
    rng = random.Random(1)
    sentences = [[rng.randint(0, 1) for _ in range(rng.randint(1, 40))] for _ in range(300)]
    runs = list(cut_runs(sentences, 9, WORD_STARTS, random.Random(5)))
    assert list(itertools.chain(*runs)) == list(itertools.chain(*sentences))
    assert all(WORD_STARTS[run[0]] for run in runs[1:])
    assert min(map(len, runs[:-1])) == SHORTEST
    assert not any(WORD_STARTS[piece] for run in runs for piece in run[9:])
    assert len({len(run) for run in runs}) > 6
    assert runs == list(cut_runs(sentences, 9, WORD_STARTS, random.Random(5)))
    assert list(cut_runs([[], [0]], 9, WORD_STARTS, rng)) == [[0]]


def test_records_of_runs_have_orders(tiny_corpus, tiny_vocabulary, tmp_path):
    create_pretraining_data.create_pretraining_data(
        input_file=str(tiny_corpus),
        output_dir=str(tmp_path),
        settings=Settings(
            spm_model_file=str(tiny_vocabulary),
            do_lower_case=True,
            max_seq_length=32,
            short_seq_prob=0.0,
            heldout_fraction=0.2,
            random_seed=1,
            max_sentences=2,
            run_pieces=6,
        ),
        num_workers=1,
    )
    manifest = Manifest.read(str(tmp_path))
    assert manifest.share_with_order > 0.7
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    options = evaluation_options([manifest], 32, "sop")
    [batch] = evaluation_dataset(str(tmp_path), "heldout", options, tokenizer, 5000)
    longest = np.asarray(batch["input_mask"]).sum(axis=1).max()
    assert longest <= 3 + 2 * (6 + 6)
