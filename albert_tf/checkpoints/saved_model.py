"""An exported SavedModel as something to begin with: its encoder, config and vocabulary."""

from __future__ import annotations

import os
import warnings

import tensorflow as tf

from albert_tf.checkpoints.model_directory import CONFIG_FILE
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.tokenization import VOCABULARY_FILE, AlbertTokenizer


def is_saved_model(path: str) -> bool:
    """Tells whether `path` is the directory of a SavedModel."""
    return tf.io.gfile.exists(os.path.join(path, "saved_model.pb"))


def is_export(path: str) -> bool:
    """Tells whether `path` is a version of what export.export_saved_model writes."""
    assets = (os.path.join(path, "assets", name) for name in (CONFIG_FILE, VOCABULARY_FILE))
    return is_saved_model(path) and all(map(tf.io.gfile.exists, assets))


def variables_prefix(path: str) -> str:
    """Returns the prefix of the files that hold a SavedModel's variables."""
    return os.path.join(path, "variables", "variables")


def read_config_and_tokenizer(path: str) -> tuple[AlbertConfig, AlbertTokenizer]:
    """Reads what export.export_saved_model puts among the assets.

    Raises:
      ValueError: if the SavedModel is not one of ours.
    """
    assets = os.path.join(path, "assets")
    for name in (CONFIG_FILE, VOCABULARY_FILE):
        if not tf.io.gfile.exists(os.path.join(assets, name)):
            raise UserError(
                f"{path!r} is a SavedModel without assets/{name}: expected one of "
                "export.export_saved_model"
            )
    config = AlbertConfig.read(os.path.join(assets, CONFIG_FILE))
    info = _load(path).resolved_object.signatures["tokenization_info"]()
    vocabulary = os.path.join(assets, VOCABULARY_FILE)
    return config, AlbertTokenizer(vocabulary, bool(info["do_lower_case"]))


def restore_encoder(encoder: tf.keras.layers.Layer, path: str) -> None:
    """Gives an AlbertEncoder the weights of the SavedModel's, by their names in the encoder.

    Raises:
      ValueError: if they are not this encoder's.
    """
    theirs = {_name_in_encoder(variable): variable for variable in _load(path).weights}
    for variable in encoder.weights:
        name = _name_in_encoder(variable)
        if name not in theirs or theirs[name].shape != variable.shape:
            raise UserError(f"{path!r} has no {name} of shape {variable.shape}")
        variable.assign(theirs[name])


def _name_in_encoder(variable: tf.Variable) -> str:
    # An encoder that was exported alone has no name of a model before its own.
    return "".join(variable.name.partition("encoder/")[1:])


def _load(path: str):
    # Its import announces the end of pkg_resources; tensorflow-text brings operations that it has.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pkg_resources", category=UserWarning)
        import tensorflow_hub
        import tensorflow_text  # noqa: F401

    return tensorflow_hub.KerasLayer(path, trainable=True)
