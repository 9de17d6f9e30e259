"""Hugging Face's own code reads what we write: `make test-extras`."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import huggingface, name_map, reference_config
from albert_tf.models import AlbertForPreTraining
from tests.builders import tiny_config, with_random_weights

pytestmark = [pytest.mark.slow, pytest.mark.extras("torch", "transformers")]

CONFIG = tiny_config(hidden_size=24, num_hidden_layers=6, initializer_range=0.2)
BATCH, SEQ_LEN = 5, 17


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"embedding_size": 24},
        {"parameter_sharing": "none", "hidden_act": "relu"},
        {"parameter_sharing": "attention"},
        {"parameter_sharing": "ffn", "num_hidden_groups": 3},
        {"parameter_sharing": "none", "hidden_act": "gelu_erf", "embedding_size": 24},  # a BERT
    ],
    ids=str,
)
def test_transformers_loads_our_export(changes, tmp_path):
    import torch
    import transformers

    tf.keras.utils.set_random_seed(11)
    config = dataclasses.replace(CONFIG, **changes)
    model = with_random_weights(AlbertForPreTraining(config), scale=0.1)
    weights, rng = name_map.arrays(model), np.random.default_rng(7)
    huggingface.write(str(tmp_path), model)
    [architecture] = json.loads((tmp_path / "config.json").read_text())["architectures"]
    theirs, report = getattr(transformers, architecture).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    ids = rng.integers(5, CONFIG.vocab_size, [BATCH, SEQ_LEN]).astype(np.int32)
    mask = (np.arange(SEQ_LEN) < rng.integers(9, SEQ_LEN, [BATCH, 1])).astype(np.int32)
    types = (np.arange(SEQ_LEN) > 6).astype(np.int32) * mask
    inputs = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}
    inputs["masked_lm_positions"] = np.tile(np.arange(SEQ_LEN, dtype=np.int32), [BATCH, 1])
    ours = model({name: tf.constant(array) for name, array in inputs.items()})
    theirs.eval()
    with torch.no_grad():
        outputs = theirs(
            input_ids=torch.tensor(ids, dtype=torch.long),
            attention_mask=torch.tensor(mask, dtype=torch.long),
            token_type_ids=torch.tensor(types, dtype=torch.long),
        )
    # Positions of padding attend alike only under the same constant for masked keys.
    is_bert = architecture == "BertForPreTraining"
    of_pair = outputs.seq_relationship_logits if is_bert else outputs.sop_logits
    for logits, expected in (
        (outputs.prediction_logits.numpy()[mask == 1], ours["masked_lm_logits"].numpy()[mask == 1]),
        (of_pair.numpy(), ours["sentence_order_logits"].numpy()),
    ):
        assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()

    # What they write anew, under tied names or not, comes back the same.
    theirs.save_pretrained(tmp_path / "theirs")
    again = huggingface.read(str(tmp_path / "theirs"))
    their_config, our_config = map(reference_config.on_their_side, (again.config, config))
    assert their_config == our_config and not again.notes
    written = name_map.from_ours(weights, config, "torch")
    for name, array in name_map.from_ours(again.weights, again.config, "torch").items():
        np.testing.assert_array_equal(array, written[name])


def test_bfloat16_weights_of_transformers(tmp_path):
    import torch
    import transformers

    values = huggingface.config_values(CONFIG)
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(**values))
    theirs = theirs.to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    imported = huggingface.read(str(tmp_path))
    found = name_map.from_ours(imported.weights, imported.config, "torch")
    expected = theirs.state_dict()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name].float().numpy())
