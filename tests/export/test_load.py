"""Many threads on one loaded model: no error, no growth, and the answers of one alone."""

from __future__ import annotations

import gc
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import WORDS

REQUESTS, THREADS, BEFORE = 10_000, 8, 1_000


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_requests(count=97):
    """Batches of 1 to 4 texts of 0 to 40 words, for two signatures."""
    rng = np.random.RandomState(7)

    def text():
        return " ".join(rng.choice(WORDS, rng.randint(41)))

    requests = []
    for index in range(count):
        size = rng.randint(1, 5)
        texts = [text() for _ in range(size)]
        if index % 2:
            requests.append(("fill_mask", {"text": [t + " [MASK]" for t in texts]}))
        else:
            pairs = {"text": texts, "text_pair": [text() for _ in range(size)]}
            requests.append(("serving_default", pairs))
    return requests


@pytest.mark.slow
def test_ten_thousand_requests_from_eight_threads(loaded):
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc/self/statm to read the memory from")

    def answer(request):
        signature, inputs = request
        tensors = {name: tf.constant(texts) for name, texts in inputs.items()}
        return {n: t.numpy() for n, t in loaded.signatures[signature](**tensors).items()}

    requests = make_requests()
    serial = [answer(request) for request in requests]
    wrong = []

    def check(index):
        expected = serial[index]
        for name, values in answer(requests[index]).items():
            if values.dtype.kind == "f":
                equal = np.allclose(values, expected[name], rtol=1e-5, atol=1e-5)
            else:
                equal = np.array_equal(values, expected[name])
            if not equal:
                wrong.append((index, name))

    indices = list(itertools.islice(itertools.cycle(range(len(requests))), REQUESTS))
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(check, indices[:BEFORE]))
        gc.collect()
        before = resident_bytes()
        list(threads.map(check, indices[BEFORE:]))
    gc.collect()
    after = resident_bytes()
    assert not wrong
    assert after < 1.05 * before, f"{before / 1e6:.0f} MB, then {after / 1e6:.0f} MB"
