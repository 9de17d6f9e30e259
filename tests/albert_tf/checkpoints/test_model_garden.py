import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import google
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from tests.albert_tf.checkpoints.test_name_map import build
from tests.builders import with_random_weights

CONFIG = {"vocab_size": 97, "embedding_size": 12, "hidden_size": 20, "num_hidden_layers": 3}
CONFIG.update(num_attention_heads=2, intermediate_size=28, max_position_embeddings=61)
CONFIG.update(type_vocab_size=2, hidden_act="gelu")
# Our tables and layers, and their names as release 2.15.0 exports them.
THEIRS = {
    "attention_0/query": "transformer/self_attention/query",
    "attention_0/key": "transformer/self_attention/key",
    "attention_0/value": "transformer/self_attention/value",
    "attention_0/output": "transformer/self_attention/attention_output",
    "attention_0/layer_norm": "transformer/self_attention_layer_norm",
    "feed_forward_0/intermediate": "transformer/intermediate",
    "feed_forward_0/output": "transformer/output",
    "feed_forward_0/layer_norm": "transformer/output_layer_norm",
    "embeddings/projection": "embedding_projection",
    "embeddings/layer_norm": "embeddings/layer_norm",
    "pooler": "pooler_transform",
    "embeddings/word_embeddings": "word_embeddings/embeddings",
    "embeddings/position_embeddings": "position_embedding/embeddings",
    "embeddings/token_type_embeddings": "type_embeddings/embeddings",
}


@pytest.fixture(scope="module")
def model():
    return with_random_weights(AlbertForPreTraining(AlbertConfig(**CONFIG)))


@pytest.fixture
def exported(model, tmp_path):
    """A SavedModel of their names and shapes with the weights of `model`."""
    module = tf.Module()
    module.variables_ = []
    for variable in model.encoder.weights:
        name = variable.name.removesuffix(":0").partition("encoder/")[2].removeprefix("block_0_0/")
        array = variable.numpy()
        layer, _, leaf = name.rpartition("/")
        theirs = THEIRS.get(name) or f"{THEIRS[layer]}/{leaf}"
        # Attention's are divided by heads.
        if "self_attention/attention_output/kernel" in theirs:
            array = array.reshape(2, 10, 20)
        elif "self_attention/" in theirs and "attention_output" not in theirs:
            array = array.reshape(*array.shape[:-1], 2, 10)
        module.variables_.append(tf.Variable(array, name=theirs))
    directory = tmp_path / "export"
    tf.saved_model.save(module, str(directory))
    (directory / "albert_config.json").write_text(json.dumps(CONFIG))
    return directory


def test_the_encoder_is_theirs(model, exported):
    imported = google.read(str(exported), allow_missing="cls/")
    found, fresh = build(imported)
    assert imported.directory == str(exported / "assets")
    assert "masked_lm/output_bias" in fresh and not any("encoder" in name for name in fresh)
    np.testing.assert_equal(found.encoder.get_weights(), model.encoder.get_weights())
