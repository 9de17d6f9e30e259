"""Converts variable names between this project, Google's checkpoints and Hugging Face's models.

BERT_TABLE is for BERT models, which are read as ALBERTs without shared weights (E == H). See
reference_config.py for weight sharing in foreign configs. A conversion and its inverse preserve all
weights bit for bit. Copies of shared weights in foreign files become one variable.

Source: the reference's modeling.py; Hugging Face's modeling_albert.
Deviation: the group of layer i is i * groups // layers, computed in integers. The reference uses
int(i / layers * groups), which skips a group for 22 layers in 22 groups or 23 in 23.
"""

import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import reference_config
from albert_tf.config import AlbertConfig
from albert_tf.encoder import sharing_plan
from albert_tf.kinds import Kind
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage.errors import UserError

# Variables of each layer type: our name, Google's, Hugging Face's, and which of the two formats
# store the matrix transposed, as [out, in]. Our matrices are [in, out].
_LEAVES = {
    "dense": (
        ("/kernel", "/kernel", ".weight", ("torch",)),
        ("/bias", "/bias", ".bias", ()),
    ),
    "classes": (
        ("/kernel", "/output_weights", ".weight", ("google", "torch")),
        ("/bias", "/output_bias", ".bias", ()),
    ),
    "norm": (
        ("/gamma", "/gamma", ".weight", ()),
        ("/beta", "/beta", ".bias", ()),
    ),
    "table": (("", "", ".weight", ()),),
    "vector": (("", "", "", ()),),
}

# One row per layer or variable: our name, Google's, Hugging Face's, and the key in _LEAVES. {a} and
# {f} are our indices of attention and feed-forward, {g} and {j} the foreign group and inner group.
# None means _TABLE.
Table = tuple[tuple, ...] | None


def _rows(scopes: str, text: str) -> tuple[tuple, ...]:
    """Parses one row per line of `text`; `scopes` contains the prefixes of the three names."""
    rows = []
    for line in text.strip().splitlines():
        *names, kind = line.split()
        rows.append((*map(operator.add, scopes.split(), names), kind))
    return tuple(rows)


_TABLE = (
    *_rows(
        "encoder/embeddings/  bert/embeddings/  albert.embeddings.",
        """
    word_embeddings        word_embeddings        word_embeddings        table
    token_type_embeddings  token_type_embeddings  token_type_embeddings  table
    position_embeddings    position_embeddings    position_embeddings    table
    layer_norm             LayerNorm              LayerNorm              norm
    """,
    ),
    *_rows(
        "encoder/  bert/encoder/  albert.encoder.",
        "embeddings/projection  embedding_hidden_mapping_in  embedding_hidden_mapping_in  dense",
    ),
    *_rows(
        "encoder/  bert/encoder/transformer/group_{g}/inner_group_{j}/  "
        "albert.encoder.albert_layer_groups.{g}.albert_layers.{j}.",
        """
    attention_{a}/query            attention_1/self/query           attention.query        dense
    attention_{a}/key              attention_1/self/key             attention.key          dense
    attention_{a}/value            attention_1/self/value           attention.value        dense
    attention_{a}/output           attention_1/output/dense         attention.dense        dense
    attention_{a}/layer_norm       LayerNorm                        attention.LayerNorm    norm
    feed_forward_{f}/intermediate  ffn_1/intermediate/dense         ffn                    dense
    feed_forward_{f}/output        ffn_1/intermediate/output/dense  ffn_output             dense
    feed_forward_{f}/layer_norm    LayerNorm_1                      full_layer_layer_norm  norm
    """,
    ),
    *_rows("encoder/  bert/  albert.", "pooler  pooler/dense  pooler  dense"),
    *_rows(
        "masked_lm/  cls/predictions/  predictions.",
        """
    transform    transform/dense      dense      dense
    layer_norm   transform/LayerNorm  LayerNorm  norm
    output_bias  output_bias          bias       vector
    """,
    ),
    *_rows(
        "sentence_order/  cls/  sop_classifier.",
        "classifier  seq_relationship  classifier  classes",
    ),
)

# Maps our names within a layer to Google's BERT names in the scope layer_{g}.
_BERT_LAYER = {
    "attention_{a}/query": "attention/self/query",
    "attention_{a}/key": "attention/self/key",
    "attention_{a}/value": "attention/self/value",
    "attention_{a}/output": "attention/output/dense",
    "attention_{a}/layer_norm": "attention/output/LayerNorm",
    "feed_forward_{f}/intermediate": "intermediate/dense",
    "feed_forward_{f}/output": "output/dense",
    "feed_forward_{f}/layer_norm": "output/LayerNorm",
}


def _bert_row(ours: str, google: str, _: str, kind: str) -> tuple:
    """Converts a row to BERT_TABLE. Google's names for BERT and ALBERT differ only in layers."""
    if name := _BERT_LAYER.get(ours.removeprefix("encoder/")):
        google = f"bert/encoder/layer_{{g}}/{name}"
    # Hugging Face uses Google's names with dots, except for layer numbers and output biases.
    torch = google.replace("layer_{g}", "layer/{g}").replace("output_bias", "bias")
    return ours, google, torch.replace("/", "."), kind


BERT_TABLE = tuple(itertools.starmap(_bert_row, _TABLE))

# Our names of the variables that have one row per vocabulary piece.
_ROWS_OF_PIECES = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")


class Variable(NamedTuple):
    """The names of a variable in all three formats. See `model_variables` for our names."""

    ours: str
    google: str
    torch: str
    transposed: tuple[str, ...]  # formats ("google", "torch") that store the matrix transposed


class Imported(NamedTuple):
    """A model that was read from foreign files."""

    config: AlbertConfig
    weights: dict[str, np.ndarray]  # maps our names to float32 arrays; omits missing variables
    notes: list[str]  # for the user


def fine_tuned_table(kind: Kind, table: Table = None) -> Table:
    """Returns the table of a fine-tuned model, given the table of its pre-trained model."""
    encoder = [row for row in table or _TABLE if row[0].startswith("encoder/")]
    if not kind.has_pooler:  # Hugging Face's model has no pooler either
        encoder = [row for row in encoder if row[0] != "encoder/pooler"]
    if not kind.our_head:
        return (*encoder,)
    return (*encoder, (kind.our_head, "", kind.torch_head, "dense"))


def variables(config: AlbertConfig, table: Table = None) -> Iterator[Variable]:
    """Yields all variables of a model, once for each copy that foreign files contain."""
    for *names, kind in table or _TABLE:
        if names[0].endswith("/projection") and config.embedding_size == config.hidden_size:
            continue
        for indices in _blocks(config) if "{" in names[0] else [{}]:
            ours, google, torch = (name.format(**indices) for name in names)
            for our_leaf, google_leaf, torch_leaf, transposed in _LEAVES[kind]:
                yield Variable(
                    ours + our_leaf, google + google_leaf, torch + torch_leaf, transposed
                )


def _blocks(config: AlbertConfig) -> Iterator[dict[str, int]]:
    """Yields the indices to insert in the rows of _TABLE, for each block of a foreign model."""
    plan = sharing_plan(config)
    groups = reference_config.on_their_side(config).num_hidden_groups
    for group in range(groups):
        # The first layer i for which i * groups // num_hidden_layers == group.
        first_layer = -(-group * config.num_hidden_layers // groups)
        for inner in range(config.inner_group_num):
            attention, feed_forward = plan[first_layer * config.inner_group_num + inner]
            yield {"a": attention, "f": feed_forward, "g": group, "j": inner}


def to_ours(
    tensors: Mapping[str, np.ndarray],
    config: AlbertConfig,
    dialect: str,
    source: str,
    allow_missing: str | None = None,
    table: Table = None,
) -> dict[str, np.ndarray]:
    """Converts a checkpoint to a dict that maps our names to float32 arrays.

    Args:
      tensors: all arrays of the checkpoint, by name.
      config: the model's config.
      dialect: format of the names in `tensors`, "google" or "torch".
      source: name of the file in error messages.
      allow_missing: regular expression for names that may be missing in the checkpoint. In the
        encoder only the pooler may be missing.
      table: None for AlbertForPreTraining.

    Raises a UserError for other missing or unused variables.
    """
    rows = {getattr(variable, dialect): variable for variable in variables(config, table)}
    missing = [name for name in rows if name not in tensors]
    _refuse(
        [name for name in missing if re.match("encoder/(?!pooler/)", rows[name].ours)],
        f"{source} lacks weights of the encoder:",
        "expected all of them (only the pooler and the heads can start from fresh values)",
    )
    missing = _not_matching(missing, allow_missing)
    _refuse(
        missing,
        f"{source} lacks",
        f"--allow_missing={_pattern_of(missing)} starts those from fresh values",
    )
    _refuse(
        [name for name in tensors if name not in rows],
        f"{source} holds what has no place in the model:",
        "expected the weights of its config and of pre-training's heads alone",
    )
    weights = {}
    for name, variable in rows.items():
        if name in tensors:
            array = _as_weight(np.asarray(tensors[name]), f"{source}: {name}")
            weights[variable.ours] = array.T if dialect in variable.transposed else array
    return weights


def _as_weight(array: np.ndarray, where: str) -> np.ndarray:
    """Casts an array to float32; raises a UserError if it is not floating-point or not finite."""
    if not tf.as_dtype(array.dtype).is_floating:
        raise UserError(f"{where} holds {array.dtype}, expected floating-point weights")
    with np.errstate(over="ignore"):  # an overflow results in infinity, which is rejected below
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise UserError(f"{where} has values that are NaN or infinite: the file is damaged")
    return array


def from_ours(
    weights: Mapping[str, np.ndarray], config: AlbertConfig, dialect: str, table: Table = None
) -> dict[str, np.ndarray]:
    """Converts the weights of a model to foreign names. This is the inverse of `to_ours`."""
    tensors = {}
    for variable in variables(config, table):
        array = weights[variable.ours]
        array = array.T if dialect in variable.transposed else array
        tensors[getattr(variable, dialect)] = np.ascontiguousarray(array)
    return tensors


def model_variables(model: AlbertForPreTraining) -> dict[str, tf.Variable]:
    """Returns a dict mapping our names to variables, which must have been created.

    Our name is the path in the model (`encoder/attention_0/query/kernel`) without the block,
    because several blocks may share a variable.
    """
    named = {}
    for variable in model.variables:
        name = re.sub(r"block_\d+_\d+/", "", variable.name.partition("/")[2])
        named[name.removesuffix(":0")] = variable
    assert len(named) == len(model.variables), "two variables of one name"
    return named


def arrays(model: AlbertForPreTraining) -> dict[str, np.ndarray]:
    """Returns a dict mapping our names to the values of all variables."""
    return {name: variable.numpy() for name, variable in model_variables(model).items()}


def assign(model: tf.keras.Model, weights: Mapping[str, np.ndarray], source: str) -> list[str]:
    """Creates the variables of a model and assigns the weights, which have our names.

    Returns our names of the missing variables, which keep their initial values. Raises a UserError
    if the shape of a weight does not match the config.
    """
    model.create_variables()
    fresh = []
    for name, variable in model_variables(model).items():
        if name not in weights:
            fresh.append(name)
            continue
        array = weights[name]
        if array.shape != tuple(variable.shape):
            raise UserError(
                f"{source}: {name} has shape {list(array.shape)}, but by the config it should have "
                f"{list(variable.shape)}: weights and config are of different models"
            )
        variable.assign(array)
    return fresh


def with_rows(
    model: tf.keras.Model, vocab_size: int, rows_of: Callable[[np.ndarray], np.ndarray]
) -> tf.keras.Model:
    """Returns a copy of a model for another number of pieces; all other weights are unchanged.

    `rows_of` maps each variable with one row per piece, float32 [V, ...], to [vocab_size, ...].
    """
    values = model.get_config()
    config = dataclasses.replace(model.config, vocab_size=vocab_size)
    copy = type(model).from_config({**values, "config": dataclasses.asdict(config)})
    weights = arrays(model)
    for name in weights.keys() & {*_ROWS_OF_PIECES}:
        weights[name] = rows_of(weights[name])
    assign(copy, weights, "the model")
    if isinstance(model, AlbertForPreTraining) and model.masked_lm.is_drawn_afresh:
        copy.mark_missing("masked_lm/")
    return copy


def _not_matching(names: list[str], allowed: str | None) -> list[str]:
    if not allowed:
        return names
    return [name for name in names if not re.search(allowed, name)]


def _refuse(names: list[str], what: str, remedy: str) -> None:
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise UserError(f"{what} {', '.join(names[:5])}{more}; {remedy}")


def _pattern_of(names: list[str]) -> str:
    """Returns a shell-quoted regular expression for the names, or "REGEX" for over 5 layers."""
    layers = sorted({re.escape(re.split("[./][^./]+$", name)[0]) for name in names})
    return f"'^({'|'.join(layers)})[./]'" if len(layers) <= 5 else "REGEX"
