"""KerasHub reads the directory of save_pretrained on Keras 3.

ALBERT_TF_KERAS_PYTHON names the Python of an environment with the packages of .ci/extras_keras.txt.
"""

import json
import os
import subprocess

import numpy as np
import pytest

import albert_tf
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.corpus import TextFormat
from pipelines.train_vocab import VocabularySettings, train_vocab
from tests import sentences
from tests.builders import tiny_config, with_random_weights

PYTHON = os.environ.get("ALBERT_TF_KERAS_PYTHON", "")
CONFIGS = {
    "base": {},
    "groups": {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "equal sizes": {"embedding_size": 20},
    "nothing shared": {"parameter_sharing": "none"},
    "relu": {"hidden_act": "relu"},
}
READ = """
import json, sys
import keras_hub, numpy
models = keras_hub.models
with open("texts.json") as file:
    texts = json.load(file)
ids = models.AlbertTokenizer.from_preset("base")(texts)
with open("ids.json", "w") as file:
    json.dump(ids.to_list() if hasattr(ids, "to_list") else ids, file)  # ragged on TensorFlow
inputs = dict(numpy.load("inputs.npz"))
for name in sys.argv[1:]:
    found = models.AlbertBackbone.from_preset(name).predict(inputs)
    numpy.savez(f"{name}.npz", **found)
preprocessor = models.AlbertTextClassifierPreprocessor.from_preset("base", sequence_length=60)
classifier = models.AlbertTextClassifier.from_preset(
    "base", num_classes=3, preprocessor=preprocessor
)
assert classifier.predict(texts[:2]).shape == (2, 3)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="ALBERT_TF_KERAS_PYTHON is not set"),
]


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_keras_hub_reads_our_directory(backend, tmp_path):
    corpus, texts = tmp_path / "corpus.txt", sentences.ugly()[::3]
    corpus.write_text(sentences.TEXT * 3, encoding="utf-8")
    settings = VocabularySettings(390, character_coverage=1.0, normalize_in_model=True)
    train_vocab([str(corpus)], str(tmp_path / "own"), settings, TextFormat())
    tokenizer = AlbertTokenizer(tmp_path / "own.model")
    batch = tokenizer(texts[:9], texts[-9:], max_length=60)
    names = {"word_ids": "token_ids", "type_ids": "segment_ids", "mask": "padding_mask"}
    inputs = {theirs: batch[f"input_{ours}"] for ours, theirs in names.items()}
    np.savez(tmp_path / "inputs.npz", **inputs)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    expected = {}
    for name, changes in CONFIGS.items():
        config = tiny_config(vocab_size=tokenizer.vocab_size, **changes)
        model = with_random_weights(AlbertForPreTraining(config), scale=0.1)
        albert_tf.save_pretrained(model, tokenizer, tmp_path / name)
        expected[name] = model.encoder(batch)

    environment = {**os.environ, "KERAS_BACKEND": backend}
    environment.pop("TF_USE_LEGACY_KERAS", None)
    command = [PYTHON, "-c", READ, *CONFIGS]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert json.loads((tmp_path / "ids.json").read_text()) == tokenizer.encode_batch(texts)
    is_real = batch["input_mask"].numpy() == 1
    for name, ours in expected.items():
        with np.load(tmp_path / f"{name}.npz") as theirs:
            difference = np.abs(theirs["sequence_output"] - ours["sequence_output"])[is_real].max()
            pooled = np.abs(theirs["pooled_output"] - ours["pooled_output"]).max()
        if name == "relu":  # KerasHub does not read hidden_act
            assert difference > 0.01
        else:
            assert max(difference, pooled) < 1e-5, name
