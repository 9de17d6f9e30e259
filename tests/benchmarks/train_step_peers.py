"""ALBERT as others compute it: what the benchmark of the train step sets beside ours.

A side's libraries are imported in its functions: the process that measures one loads no other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import numpy as np

from tests.benchmarks.measuring import torch_product

_LAYER_NORM_EPSILON = 1e-12


class Peer:
    """A model of others, called as a training step calls ours.

    Args:
      forward: batch -> logits.
      variables: returns those that are trained.
    """

    def __init__(self, forward: Callable[[dict], dict], variables: Callable[[], list]):
        self._forward = forward
        self._variables = variables

    @property
    def trainable_variables(self) -> list:
        """As a Keras model has them."""
        return self._variables()

    def __call__(self, batch, dropout_seed=None, num_hidden_layers=None):
        """Computes a batch; dropout is 0 here and the depth the model's."""
        return self._forward(batch)


def plain_keras(config) -> Peer:
    """Returns an AlbertConfig's ALBERT as one writes it of Keras' own layers.

    Tokens stay in [b, L, H]; MultiHeadAttention, LayerNormalization and the activation are stock.
    The predicted positions are gathered before the product with the vocabulary, as ours are.
    """
    import tensorflow as tf

    layers = tf.keras.layers

    def gelu(x):
        return tf.keras.activations.gelu(x, approximate=True)

    def dense(units, activation=None):
        return layers.Dense(units, activation, kernel_initializer=initializer())

    def embedding(rows):
        return layers.Embedding(rows, config.embedding_size, embeddings_initializer=initializer())

    def initializer():
        return tf.keras.initializers.TruncatedNormal(stddev=config.initializer_range)

    def layer_norm():
        return layers.LayerNormalization(epsilon=_LAYER_NORM_EPSILON)

    class PlainAlbert(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.words = embedding(config.vocab_size)
            self.types = embedding(config.type_vocab_size)
            self.positions = embedding(config.max_position_embeddings)
            self.embedding_norm, self.projection = layer_norm(), dense(config.hidden_size)
            self.attention = layers.MultiHeadAttention(
                config.num_attention_heads,
                config.hidden_size // config.num_attention_heads,
                kernel_initializer=initializer(),
            )
            self.attention_norm = layer_norm()
            self.intermediate = dense(config.intermediate_size, gelu)
            self.output_dense = dense(config.hidden_size)
            self.output_norm = layer_norm()
            self.pooler = dense(config.hidden_size, "tanh")
            self.transform = dense(config.embedding_size, gelu)
            self.transform_norm = layer_norm()
            self.output_bias = self.add_weight(
                "output_bias", [config.vocab_size], initializer="zeros"
            )
            self.classifier = dense(2)

        def call(self, inputs):
            word_ids = inputs["input_word_ids"]
            x = self.words(word_ids) + self.types(inputs["input_type_ids"])
            x += self.positions(tf.range(word_ids.shape[1]))
            x = self.projection(self.embedding_norm(x))
            mask = inputs["input_mask"][:, tf.newaxis]
            for _ in range(config.num_hidden_layers):
                x = self.attention_norm(x + self.attention(x, x, attention_mask=mask))
                x = self.output_norm(x + self.output_dense(self.intermediate(x)))
            predicted = tf.gather(x, inputs["masked_lm_positions"], batch_dims=1)
            predicted = self.transform_norm(self.transform(predicted))
            logits = tf.matmul(predicted, self.words.embeddings, transpose_b=True)
            return {
                "masked_lm_logits": logits + self.output_bias,
                "sentence_order_logits": self.classifier(self.pooler(x[:, 0])),
            }

    model = PlainAlbert()
    return Peer(model, lambda: model.trainable_variables)


def huggingface_tf() -> Peer:
    """Returns TFAlbertForPreTraining, predicted positions gathered.

    Raises:
      ImportError: if transformers is not there or has no TensorFlow models (from release 5 on).
    """
    os.environ["USE_TF"] = "1"  # read by transformers at its import: it leaves torch alone
    import tensorflow as tf
    from transformers import TFAlbertForPreTraining

    model = TFAlbertForPreTraining(huggingface_config())
    model.build()  # its parts are called one by one, which would leave it without weights

    def forward(batch):
        encoded = model.albert(
            input_ids=batch["input_word_ids"],
            attention_mask=batch["input_mask"],
            token_type_ids=batch["input_type_ids"],
            training=True,
        )
        predicted = tf.gather(encoded.last_hidden_state, batch["masked_lm_positions"], batch_dims=1)
        order = model.sop_classifier(pooled_output=encoded.pooler_output, training=True)
        return {
            "masked_lm_logits": model.predictions(hidden_states=predicted),
            "sentence_order_logits": order,
        }

    # Nothing reads one of its two output biases: no gradient would come to it.
    trained = [v for v in model.trainable_variables if v is not model.predictions.bias]
    return Peer(forward, lambda: trained)


def keras_nlp(config) -> Peer:
    """Returns an AlbertConfig's AlbertMaskedLM of KerasNLP; a Dense layer gives the sentence order.

    Raises:
      ImportError: if keras_nlp is missing.
    """
    import tensorflow as tf
    from keras_nlp import models

    backbone = models.AlbertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        embedding_dim=config.embedding_size,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        max_sequence_length=config.max_position_embeddings,
    )
    head = models.AlbertMaskedLM(backbone).get_layer("mlm_head")
    classifier = tf.keras.layers.Dense(2)

    def forward(batch):
        encoded = backbone(
            {
                "token_ids": batch["input_word_ids"],
                "padding_mask": batch["input_mask"],
                "segment_ids": batch["input_type_ids"],
            }
        )
        positions = batch["masked_lm_positions"]
        return {
            "masked_lm_logits": head(encoded["sequence_output"], positions),
            "sentence_order_logits": classifier(encoded["pooled_output"]),
        }

    def variables():
        parts = (backbone, head, classifier)
        every = [variable for part in parts for variable in part.trainable_variables]
        # The vocabulary's table is of the backbone and of the head.
        return list({variable.ref(): variable for variable in every}.values())

    return Peer(forward, variables)


def model_garden(config, predictions: int) -> Peer:
    """Returns BertPretrainer around AlbertEncoder of TensorFlow's Model Garden.

    Args:
      config: AlbertConfig.
      predictions: number of masked positions in an example.

    Raises:
      ImportError: if tf-models-official or one of its packages is missing.
    """
    import tensorflow as tf
    from official.nlp.modeling import models, networks

    encoder = networks.AlbertEncoder(
        config.vocab_size,
        config.embedding_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.max_position_embeddings,
        config.type_vocab_size,
        config.intermediate_size,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    initializer = tf.keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    gelu = encoder.get_config()["activation"]
    model = models.BertPretrainer(encoder, 2, predictions, None, gelu, initializer)
    names = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")

    def forward(batch):
        outputs = model([batch[name] for name in names])
        return {
            "masked_lm_logits": outputs["masked_lm"],
            "sentence_order_logits": outputs["classification"],
        }

    return Peer(forward, lambda: model.trainable_variables)


def huggingface_torch(
    batch: dict[str, np.ndarray], gathered: bool, compiled: bool, dtype: str
) -> tuple[Callable[[], float], Callable[[], None]]:
    """Returns (step, product): a training step of AlbertForPreTraining, the ceiling's product.

    The optimizer is torch's fused AdamW after clip_grad_norm_: less work than LAMB.

    Args:
      batch: arrays as our model takes them.
      gathered: False: the model's own loss, which scores every position. True: only the predicted
        positions meet the vocabulary.
      compiled: whether torch.compile makes kernels of forward and loss.
      dtype: bfloat16: products under torch.autocast.

    Raises:
      ImportError: if torch, transformers or the compiler is missing.
    """
    os.environ["USE_TORCH"] = "1"  # read by transformers at its import: it leaves TensorFlow alone
    import torch
    from transformers import AlbertForPreTraining

    if compiled and not (os.environ.get("CXX") or shutil.which("g++")):
        raise ImportError("no g++, and torch.compile needs a C++ compiler")
    model = AlbertForPreTraining(huggingface_config()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    inputs = {
        "input_ids": tensors["input_word_ids"],
        "attention_mask": tensors["input_mask"],
        "token_type_ids": tensors["input_type_ids"],
    }
    positions, labels = tensors["masked_lm_positions"].long(), tensors["masked_lm_ids"].long()
    order = tensors["sentence_order_labels"].long()
    # -100 is what its loss leaves out.
    labels_everywhere = torch.full(inputs["input_ids"].shape, -100)
    labels_everywhere.scatter_(1, positions, labels)

    def own_loss():
        return model(**inputs, labels=labels_everywhere, sentence_order_label=order).loss

    def gathered_loss():
        encoded = model.albert(**inputs)
        index = positions[:, :, None].expand(-1, -1, model.config.hidden_size)
        logits = model.predictions(encoded.last_hidden_state.gather(1, index))
        masked_lm = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        order_logits = model.sop_classifier(encoded.pooler_output)
        return masked_lm + torch.nn.functional.cross_entropy(order_logits, order)

    loss_of = gathered_loss if gathered else own_loss
    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, torch_product(dtype)


def huggingface_config(vocab_size: int = 30_000):
    """Returns the config that Hugging Face publishes for albert-base-v2; the rest is default."""
    import transformers

    return transformers.AlbertConfig(
        vocab_size=vocab_size,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
    )
