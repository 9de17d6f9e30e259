import json

import pytest

from albert_tf.config import NAMES, AlbertConfig


def test_written_and_read_with_unknown_keys_and_hugging_faces_name_of_gelu(tmp_path):
    config = AlbertConfig(vocab_size=77, hidden_size=24, num_attention_heads=3, hidden_act="relu")
    path = tmp_path / "albert_config.json"
    config.write(str(path))
    assert AlbertConfig.read(str(path)) == config
    path.write_text('{"hidden_act": "gelu_new", "net_structure_type": 0, "layers_to_keep": []}')
    assert AlbertConfig.read(str(path)) == AlbertConfig()


def test_named_sizes():
    for name in NAMES:
        config = AlbertConfig.named(name)
        assert config.intermediate_size == 4 * config.hidden_size
        assert (config.embedding_size == config.hidden_size) == name.startswith("bert")
        dropout = 0.1 if name.startswith("bert") or name.endswith("_v1") else 0.0
        if name != "albert_xxlarge_v1":  # published without
            assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == dropout
    with pytest.raises(ValueError, match="no config is named 'albert_tiny'; known: albert_base"):
        AlbertConfig.named("albert_tiny")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 10, "num_attention_heads": 3}, "not a multiple of num_attention_heads"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is not one of"),
        ({"parameter_sharing": "some"}, "parameter_sharing 'some' is not one of"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a whole number"),
        ({"vocab_size": 3.5}, "vocab_size is 3.5"),
        ({"vocab_size": True}, "vocab_size is True, expected a whole number"),
        ({"initializer_range": True}, "initializer_range is True, expected a number >= 0"),
        ({"hidden_act": "x" * 10**5}, r"hidden_act 'xx.{0,100}\.\.\. \(100,002 characters\) is"),
        ({"vocab_size": ["x" * 10**5]}, r"vocab_size is \['xx.{0,100}\.\.\. \(100,004 char"),
        ({"hidden_dropout_prob": 1.0}, "expected 0 <= p < 1"),
        ({"num_hidden_groups": 13}, "more than num_hidden_layers 12"),
        ({"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob is '0.1', expected a number >= 0"),
        ({"initializer_range": float("inf")}, "initializer_range is inf"),
        ({"initializer_range": 10**400}, "initializer_range is 1"),
        *((text, "albert_config") for text in (b"{", b"[]", b"\xff", b"[" * 100_000)),
        (b'{"vocab_size": %b}' % (b"9" * 5_000), "albert_config"),
    ],
    ids=range(19),
)
def test_bad_values_name_the_file(tmp_path, values, message):
    path = tmp_path / "albert_config.json"
    path.write_bytes(values if isinstance(values, bytes) else json.dumps(values).encode())
    with pytest.raises(ValueError, match=message) as error:
        AlbertConfig.read(str(path))
    assert str(path) in str(error.value)
