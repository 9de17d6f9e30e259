"""Hugging Face's ALBERT on torch, which the benchmark of the train step measures beside ours.

Torch is imported in the function: the process that measures ours does not load it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import numpy as np

from tests.benchmarks.measuring import torch_product


def huggingface_torch(
    batch: dict[str, np.ndarray], compiled: bool, dtype: str
) -> tuple[Callable[[], float], Callable[[], None]]:
    """Returns (step, product): a training step of AlbertForPreTraining, the ceiling's product.

    Only the predicted positions meet the vocabulary. The optimizer is torch's fused AdamW after
    clip_grad_norm_: less work than LAMB.

    Args:
      batch: arrays as our model takes them.
      compiled: whether torch.compile makes kernels of forward and loss.
      dtype: bfloat16: products under torch.autocast.

    Raises:
      ImportError: if torch, transformers or the compiler is missing.
    """
    os.environ["USE_TORCH"] = "1"  # read by transformers at its import: it leaves TensorFlow alone
    import torch
    import transformers

    if compiled and not (os.environ.get("CXX") or shutil.which("g++")):
        raise ImportError("no g++, and torch.compile needs a C++ compiler")
    # What Hugging Face publishes for albert-base-v2; the rest is default.
    config = transformers.AlbertConfig(
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
    )
    model = transformers.AlbertForPreTraining(config).train()
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
