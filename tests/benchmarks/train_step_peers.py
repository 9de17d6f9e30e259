"""ALBERT in other libraries, for comparison in the benchmark `train_step`.

Each function imports its own libraries, so that a process loads only those of its side.
"""

import os
import shutil
from collections.abc import Callable

import numpy as np

from tests.benchmarks.measuring import torch_product


class Peer:
    """Another library's model with the interface that a training step expects.

    Attributes:
      trainable_variables: like those of a Keras model.
    """

    def __init__(self, forward: Callable[[dict], dict], trainable_variables: list):
        self._forward = forward
        self.trainable_variables = trainable_variables

    def __call__(self, batch, dropout_seed=None):
        """Computes a batch, without dropout."""
        return self._forward(batch)


def huggingface_tf() -> Peer:
    """Returns TFAlbertForPreTraining, which computes logits at the predicted positions only.

    Raises:
      ImportError: if transformers is missing or has no TensorFlow models (from release 5 on).
    """
    os.environ["USE_TF"] = "1"  # then transformers does not import torch
    import tensorflow as tf
    from transformers import TFAlbertForPreTraining

    model = TFAlbertForPreTraining(huggingface_config())
    model.build()  # calls of its parts would not create all weights

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

    # The model has two output biases, and this one is not used: it would have no gradient.
    trained = [v for v in model.trainable_variables if v is not model.predictions.bias]
    return Peer(forward, trained)


def huggingface_torch(
    batch: dict[str, np.ndarray], compiled: bool, dtype: str
) -> tuple[Callable[[], float], Callable[[], None]]:
    """Returns a training step of AlbertForPreTraining, and the matrix product for the ceiling.

    Logits are computed at the predicted positions only. The optimizer is torch's fused AdamW after
    clip_grad_norm_, which is less work than LAMB.

    Args:
      batch: arrays in the format of our model.
      compiled: whether torch.compile compiles forward pass and loss.
      dtype: bfloat16 computes products under torch.autocast.

    Raises:
      ImportError: if torch, transformers or the compiler is missing.
    """
    os.environ["USE_TORCH"] = "1"  # then transformers does not import TensorFlow
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

    def loss_of():
        encoded = model.albert(**inputs)
        index = positions[:, :, None].expand(-1, -1, model.config.hidden_size)
        logits = model.predictions(encoded.last_hidden_state.gather(1, index))
        masked_lm = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        order_logits = model.sop_classifier(encoded.pooler_output)
        return masked_lm + torch.nn.functional.cross_entropy(order_logits, order)

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
    """Returns the config that Hugging Face publishes for albert-base-v2; others are defaults."""
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
