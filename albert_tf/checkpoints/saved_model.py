"""Reads the encoder, config and vocabulary of an exported SavedModel.

A SavedModel may contain arbitrary code. No function of it is loaded or executed here.
"""

import os

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from albert_tf.checkpoints.model_directory import CONFIG_FILE
from albert_tf.config import AlbertConfig
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.unreadable import refuse_unreadable
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer, find_vocabulary


def variables_prefix(path: str) -> str:
    """Returns the checkpoint prefix of a SavedModel's variables."""
    return os.path.join(path, "variables", "variables")


def read_config_and_tokenizer(path: str) -> tuple[AlbertConfig, AlbertTokenizer]:
    """Reads the config and tokenizer of a model that export.export_saved_model wrote."""
    assets, provenance = os.path.join(path, "assets"), os.path.join(path, files.PROVENANCE_FILE)
    config_file, vocabulary = os.path.join(assets, CONFIG_FILE), find_vocabulary(assets)
    for file in (config_file, vocabulary, provenance):
        if not tf.io.gfile.exists(file):
            raise UserError(
                f"{path!r} is a SavedModel without {os.path.relpath(file, path)}: expected one "
                "written by export.export_saved_model; pipelines.convert_checkpoint converts others"
            )
    files.check_directory_name(path)
    config = AlbertConfig.read(config_file)
    recorded = {"keep_accents": False, "latex_quotes": False, **files.read_json(provenance)}
    settings = {name: recorded.get(name) for name in TextSettings._fields}
    return config, AlbertTokenizer(vocabulary, **settings)


def restore_encoder(encoder: tf.keras.layers.Layer, path: str) -> None:
    """Restores an AlbertEncoder from a SavedModel. Variables are matched by name."""
    with refuse_unreadable(f"{path!r} does not hold its config's weights"):
        reader = tf.train.load_checkpoint(variables_prefix(path))
        graph = TrackableObjectGraph.FromString(reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
        attributes = (attribute for node in graph.nodes for attribute in node.attributes)
        keys = {_name_in_encoder(a.full_name): a.checkpoint_key for a in attributes}
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for variable in encoder.weights:
            name = _name_in_encoder(variable.name.removesuffix(":0"))
            key = keys.get(name)
            # Compare shapes before reading, because the index cannot be trusted.
            if shapes.get(key) != variable.shape.as_list() or not dtypes[key].is_floating:
                raise UserError(f"it has no {name} of shape {variable.shape}")
            variable.assign(reader.get_tensor(key).astype(np.float32))


def _name_in_encoder(name: str) -> str:
    # In encoder-only exports, names do not start with the name of a model.
    return "".join(name.partition("encoder/")[1:])
