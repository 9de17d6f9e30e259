"""Base classes of serving modules, which combine a trained model with its tokenizer."""

import abc
import dataclasses
import functools
import os
import tempfile

import tensorflow as tf

from albert_tf.checkpoints.model_directory import CONFIG_FILE, TASK_FILE
from albert_tf.config import AlbertConfig
from albert_tf.encoder import AlbertEncoder, cls_only_positions
from albert_tf.storage import files
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import FEATURES, Packer, model_inputs
from albert_tf.text.tokenization import AlbertTokenizer
from .. import signatures
from ..batches import map_rows
from ..checks import check_shapes


@dataclasses.dataclass(frozen=True)
class ServedCheckpoint:
    """A checkpoint to export and its export settings."""

    kind: str  # one of export.kinds.MODULES
    task: dict  # the content of task.json; {} for kinds without a task
    checkpoint: str  # prefix
    model_dir: str  # contains the vocabulary
    config: AlbertConfig
    tokenizer: AlbertTokenizer
    max_seq_length: int  # of sequences created from text, including special pieces
    precision: str = "float32"  # of matmuls and their weights; or "bfloat16"


class ServingModule(tf.train.Checkpoint, abc.ABC):
    """Base class of all kinds. It tokenizes, packs and encodes texts.

    For each of its `signatures`, there is a method with the same name, inputs and outputs (but
    `error`). `answer` computes the outputs for packed sequences. Calling a module runs the encoder.

    tf.random.set_seed and tf.keras.utils.set_random_seed clear TensorFlow's kernel cache, which
    contains all in-graph SentencePiece models of the process. Existing modules then fail, so set
    the seed before creating a module. Served models are not affected.
    """

    def __init__(self, model: tf.keras.Model, served: ServedCheckpoint):
        super().__init__()
        self.served = served
        directory = tempfile.TemporaryDirectory()
        # Do not track the model, except its variables. Keras would save traces of all layers.
        self._untracked = lambda: (model, directory)
        config_file = os.path.join(directory.name, CONFIG_FILE)
        self.encoder.config.write(config_file)
        # Make a Reusable SavedModel, which hub.KerasLayer can fine-tune. They are attributes,
        # because properties of a tf.Module are not saved in a SavedModel.
        self.variables = list(self.encoder.variables)
        # bfloat16 variables are not trainable, because small updates would be lost in rounding.
        trainable = served.precision == "float32"
        self.trainable_variables = list(self.encoder.trainable_variables) if trainable else []
        self.regularization_losses: list[tf.Tensor] = []
        self.head_variables = [
            v for v in model.variables if not any(v is known for known in self.variables)
        ]
        vocabulary = os.path.join(served.model_dir, served.tokenizer.vocabulary.file_name)
        self.vocab_file = tf.saved_model.Asset(vocabulary)
        self.config_file = tf.saved_model.Asset(config_file)
        if served.task:  # with the Decision, which is not in the original task.json
            task_file = os.path.join(directory.name, TASK_FILE)
            files.write_json(task_file, served.task)
            self.task_file = tf.saved_model.Asset(task_file)
        self.max_seq_length = served.max_seq_length
        self.tokenizer = served.tokenizer.in_graph()
        self.packer = Packer(served.tokenizer, served.max_seq_length)
        # All signatures call these two functions, so each graph is traced and saved only once.
        # Inlining would add control inputs to constants in a function. In TensorFlow 1 sessions,
        # which TensorFlow Serving uses, these control inputs prevent oneDNN from fusing gelu (see
        # primitives.gelu). Question answering calls its model directly, so its gelu is fused only
        # in TensorFlow 2.
        ids = tf.TensorSpec([None, None], tf.int32)
        function = functools.partial(
            tf.function,
            autograph=False,
            input_signature=[ids, ids, ids],
            experimental_attributes={"_noinline": True},
        )
        self.encode = function(self._encode)
        self.encode_to_pooled = function(functools.partial(self._encode, pooled_alone=True))

    @property
    def model(self) -> tf.keras.Model:
        """The model, which is not tracked by TensorFlow."""
        return self._untracked()[0]

    @property
    def encoder(self) -> AlbertEncoder:
        """The encoder of the model, or the model itself if it is an encoder."""
        return self.model if isinstance(self.model, AlbertEncoder) else self.model.encoder

    @property
    def signatures(self) -> dict[str, signatures.Signature]:
        """The signatures of the model, adapted to its task."""
        served = self.served
        return signatures.of_task(served.kind, served.task, self.encoder.config.type_vocab_size)

    @property
    def sizes(self) -> dict[str, int]:
        """A dict mapping names of dimensions that are fixed by the model to their sizes."""
        config, task = self.encoder.config, self.served.task
        return {
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "max_seq_length": self.max_seq_length,
            "labels": len(task.get("labels", ())),
            "choices": task.get("num_choices", 1),
        }

    @tf.function(autograph=False)
    def __call__(self, inputs: dict, training: bool = False) -> dict:
        """Encodes model_inputs, int32 [batch, seq_len]. Used to fine-tune a loaded SavedModel.

        In training, dropout has the config's rates and a new seed per call. Only this branch uses
        XLA, which a server may lack. Returns float32 `sequence_output` [batch, seq_len, H] and
        `pooled_output` [batch, H], also as `default`, which TF-Hub's text API requires.
        """
        seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32) if training else None
        encoded = _float32(self.encoder(inputs, seed), "sequence_output", "pooled_output")
        return {**encoded, "default": encoded["pooled_output"]}

    def functions(self) -> dict:
        """Traces `__call__`, and returns a dict of concrete functions, one per signature."""
        ids = tf.TensorSpec([None, None], tf.int32)
        inputs = model_inputs(dict.fromkeys(FEATURES, ids))
        for training in (False, True):
            self.__call__.get_concrete_function(inputs, training=training)
        return {name: self.function(name) for name in self.signatures}

    def function(self, signature: str):
        """Traces a signature and returns its concrete function."""
        method, table = getattr(self, signature), self.signatures[signature]
        if "error" in table.outputs:
            method = functools.partial(self._on_good_rows, method)
        # The lambda is needed, because a default such as text_pair=None would become an input.
        function = tf.function(
            lambda **inputs: method(**check_shapes(inputs, table, self.sizes)), autograph=False
        )
        return function.get_concrete_function(**table.input_specs())

    def read(self, texts: tf.Tensor) -> tf.Tensor:
        """Truncates texts, string [batch], to the characters that can be part of a sequence."""
        return chars_of_sequence(texts, self.max_seq_length)

    def pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Truncates texts with `read` and tokenizes them to int32 [batch, (pieces)]."""
        return self.tokenizer(self.read(texts))

    def tokens(self, **tokens) -> dict:
        return self.encode(**tokens)

    def pooled(self, **tokens) -> dict:
        return self.encode_to_pooled(**tokens)

    def _on_good_rows(self, function, **tokens) -> dict:
        """Applies a function to all rows without values out of range; adds `error` of each row.

        `tokens` are int32 [batch, columns]. `error`, string [batch], is "" for a good row. The
        other outputs of a bad row are NaN: a server may merge the rows of several clients into one
        batch, so a bad row must not affect other rows.
        """
        config = self.encoder.config
        limits: dict[str, int | tf.Tensor] = dict(
            zip(FEATURES, (config.vocab_size, 2, config.type_vocab_size))
        )
        if "mlm_positions" in tokens:
            limits["mlm_positions"] = tf.shape(tokens["input_ids"])[1]
        error: tf.Tensor | str = ""
        for name, limit in reversed(limits.items()):  # the first error is set last
            is_bad = tf.reduce_any((tokens[name] < 0) | (tokens[name] >= limit), axis=1)
            last = f"{limit - 1}" if isinstance(limit, int) else "seq_len - 1"
            error = tf.where(is_bad, f"{name} must be 0 to {last}", error)
        is_good = tf.equal(error, "")[:, tf.newaxis]
        # Invalid rows are replaced by zeros, which are valid.
        harmless = {name: tf.where(is_good, values, 0) for name, values in tokens.items()}
        outputs = map_rows(lambda part: function(**part), harmless, keep_padding=True)
        for name, output in outputs.items():
            is_row_good = tf.reshape(is_good, [-1] + [1] * (output.shape.rank - 1))
            outputs[name] = tf.where(is_row_good, output, float("nan"))
        return {**outputs, "error": error}

    def tokenize(self, text, text_pair) -> dict:
        return self.packer.pad_to_longest(self.pack_texts(text, text_pair))

    def pack_texts(self, text: tf.Tensor, text_pair: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Packs the text or text pair of each row; see Packer.pack."""
        first = self.pieces(text)
        if text_pair is None:
            return self.packer.truncate_and_pack(first)
        second = self.pieces(text_pair)
        # A model that was fine-tuned on pairs gets a pair even if the second text is empty.
        has_second = self.served.task.get("has_pairs") or second.row_lengths() > 0
        return self.packer.truncate_and_pack(first, second, has_second)

    def tokenization_info(self) -> dict:
        settings = self.served.tokenizer.settings._asdict()
        settings = {name: tf.constant(value) for name, value in settings.items()}
        return {"vocab_file": self.vocab_file.asset_path, **settings}

    def labels(self) -> dict:
        """Serves the `labels` signature. Only tasks with labels have it."""
        return {"labels": tf.constant(self.served.task["labels"])}

    @abc.abstractmethod
    def answer(self, tokens: dict) -> dict:
        """Computes output tensors [batch, ...] for packed sequences, usually a part of a batch.

        `tokens` contains `input_ids`, `input_mask` and `segment_ids`, int32 [batch, seq_len]. Some
        kinds add other tensors. If each request is one sequence, these are the final outputs.
        """

    def share_of_unknown(self, tokens: dict, counts: tf.Tensor | None = None) -> tf.Tensor:
        """Computes the share of unknown pieces in all sequences of a request, float32 [batch].

        A piece in the overlap of two windows counts twice, a question once per window, and a
        context once per choice. `counts`, int64 [batch], is the number of consecutive sequences per
        request. None means one.
        """
        ids = tokens["input_ids"]
        num_rows, seq_len = tf.unstack(tf.shape(ids, tf.int64))
        ends = tf.range(1, num_rows + 1) if counts is None else tf.cumsum(counts)
        row_splits = tf.concat([[0], ends * seq_len], axis=0)
        return self.served.tokenizer.unknown_shares(tf.reshape(ids, [-1]), row_splits)

    def _encode(self, input_ids, input_mask, segment_ids, pooled_alone=False) -> dict:
        seq_len, longest = tf.shape(input_ids)[1], self.encoder.config.max_position_embeddings
        message = f"seq_len must be 1 to {longest}, the rows of the position table"
        is_valid = tf.debugging.assert_positive(seq_len, message)
        is_short = tf.debugging.assert_less_equal(seq_len, longest, message)
        with tf.control_dependencies([is_valid, is_short]):  # else another op's error is unclear
            input_ids = tf.identity(input_ids)
        inputs = model_inputs(dict(zip(FEATURES, (input_ids, input_mask, segment_ids))))
        if pooled_alone:
            encoded = self.encoder(inputs, positions=cls_only_positions(input_ids))
            return _float32(encoded, "pooled_output")
        return _float32(self.encoder(inputs), "sequence_output", "pooled_output")


class TextModule(ServingModule):
    """Base class of all kinds whose inputs are texts or text pairs."""

    def serving_default(self, text, text_pair=None) -> dict:
        return map_rows(self.answer, self.pack_texts(text, text_pair))

    def unknown_share(self, text, text_pair=None) -> dict:
        """Serves the `unknown_share` signature. Only some kinds have it."""
        return {"unknown_share": self.share_of_unknown(self.pack_texts(text, text_pair))}


def _float32(encoded: dict, *names: str) -> dict:
    """Selects outputs of an encoder by name and casts them to float32."""
    return {name: tf.cast(encoded[name], tf.float32) for name in names}
