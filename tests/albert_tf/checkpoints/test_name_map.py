import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import conversion, google, huggingface, name_map, reference_config
from albert_tf.checkpoints.opening import open_model
from albert_tf.models import AlbertForPreTraining
from tests.albert_tf.test_parity import save_tensors
from tests.builders import tiny_config, with_random_weights

TINY = tiny_config(num_hidden_layers=4, hidden_dropout_prob=0.1, classifier_dropout_prob=0.3)
CONFIGS = {
    "as_many_groups_as_layers": {"num_hidden_groups": 4},
    "uneven_groups": {"num_hidden_groups": 3, "num_hidden_layers": 7},
    "inner_groups": {"num_hidden_groups": 2, "inner_group_num": 3, "hidden_act": "relu"},
    "no_projection": {"embedding_size": 20, "num_hidden_layers": 1},
    "bert": {"parameter_sharing": "none", "embedding_size": 20, "hidden_act": "gelu_erf"},
    "none_inner": {"parameter_sharing": "none", "inner_group_num": 2, "hidden_act": "gelu_erf"},
}


def read_google(path, allow_missing=None):
    return google.read(*google.find(str(path)), allow_missing)


READERS = {"google": read_google, "huggingface": huggingface.read}


def make_model(**changes):
    tf.keras.utils.set_random_seed(5)  # the same weights in every call
    return with_random_weights(AlbertForPreTraining(dataclasses.replace(TINY, **changes)), scale=1)


def build(imported):
    """Returns a model with the imported weights, and the names of missing variables."""
    model = AlbertForPreTraining(imported.config)
    return model, name_map.assign(model, imported.weights, "out")


def write(form, directory, model):
    """Writes a model as Google's code or transformers would."""
    if form == "huggingface":
        huggingface.write(str(directory), model)
        return str(directory)
    config, weights = model.config, name_map.arrays(model)
    tensors = {**name_map.from_ours(weights, config, "google"), "global_step": np.int64(0)}
    directory.mkdir(parents=True, exist_ok=True)
    save_tensors(f"{directory}/model.ckpt-best", tensors)
    (directory / "albert_config.json").write_text(json.dumps(reference_config.values(config)))
    return str(directory)


def to_google(model_dir, directory):
    """Writes a model directory as Google would publish it."""
    model, tokenizer = albert_tf.from_pretrained(model_dir)
    write("google", directory, model)
    tokenizer.save(str(directory))
    return directory


def convert(path, output_dir, output_format="albert_tf", **options):
    opened = open_model(str(path), conversion.FORMATS)
    conversion.convert(opened, str(output_dir), output_format, **options)
    return output_dir


@pytest.fixture
def out(tmp_path):
    """A checkpoint in Google's format."""
    write("google", tmp_path, make_model())
    return tmp_path


def change_config(directory, name="albert_config.json", **changes):
    path = directory / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_round_trip_is_exact(changes, tmp_path):
    model = make_model(**changes)
    if changes == CONFIGS["as_many_groups_as_layers"]:
        changes = {"parameter_sharing": "none"}
    for form, read in READERS.items():
        imported = read(write(form, tmp_path / form, model))
        assert imported.config == dataclasses.replace(TINY, **changes)
        np.testing.assert_equal(imported.weights, name_map.arrays(model))


@pytest.mark.parametrize(
    ("form", "sharing", "inner"), [("google", "ffn", 1), ("huggingface", "attention", 2)]
)
def test_half_sharing_is_written_as_copies(form, sharing, inner, tmp_path):
    model = make_model(parameter_sharing=sharing, num_hidden_groups=2, inner_group_num=inner)
    imported = READERS[form](write(form, tmp_path / "out", model))
    assert imported.config.parameter_sharing == "none"
    copied, _ = build(imported)
    ids = tf.constant([[2, 7, 9, 3, 11, 3]])
    tf.nest.map_structure(np.testing.assert_array_equal, copied(ids), model(ids))


def change_google(directory, change):
    prefix = str(directory / "model.ckpt-best")
    save_tensors(prefix, change(read_tensors(prefix)))


def read_tensors(prefix):
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def without(*names):
    return lambda tensors: {k: v for k, v in tensors.items() if not k.startswith(names)}


def test_missing_is_refused_unless_it_is_an_allowed_head(out):
    whole = read_tensors(str(out / "model.ckpt-best"))
    change_google(out, without("bert/pooler/dense/bias"))
    for allowed in (None, "^cls/"):
        with pytest.raises(ValueError, match=r"lacks bert/pooler/dense/bias; --allow_missing"):
            read_google(out, allow_missing=allowed)
    change_google(out, lambda _: without("cls/")(whole))
    with pytest.raises(ValueError, match=r"lacks cls/\S+( cls/\S+){4} and 2 more; --allow_missing"):
        read_google(out)
    imported = read_google(out, allow_missing="^cls/")
    built, fresh = build(imported)
    assert len(fresh) == 7 and all(name.startswith(("masked_lm", "sentence")) for name in fresh)
    np.testing.assert_array_equal(built.masked_lm.output_bias, np.zeros(61))
    pooler = name_map.arrays(make_model())["encoder/pooler/kernel"]
    np.testing.assert_array_equal(built.encoder.pooler.kernel, pooler)


def test_what_the_config_does_not_describe_is_refused(out):
    write("google", out / "groups", make_model(num_hidden_groups=2))
    change_config(out / "groups", num_hidden_groups=1)
    with pytest.raises(ValueError, match=r"no place in the model: bert/.*/group_1/"):
        read_google(out / "groups")
    change_config(out, vocab_size=41)
    imported = read_google(out)
    with pytest.raises(ValueError, match=r"word_embeddings has shape \[61, 12\], .* \[41, 12\]"):
        build(imported)


def test_slots_prefix_and_keras_names_are_understood(tmp_path):
    write("google", tmp_path, model := make_model(num_hidden_groups=2))
    slots = ("adam_m", "adam_v", "lamb_m", "lamb_v")
    # Keras numbers normalizations through the model: 9 and 10 sort otherwise as text.
    keras = {
        "group_0/inner_group_0/LayerNorm/": "group_0/inner_group_0/layer_normalization_9/",
        "group_0/inner_group_0/LayerNorm_1/": "group_0/inner_group_0/layer_normalization_10/",
        "embeddings/LayerNorm": "embeddings/layer_normalization",
    }

    def change(tensors):
        renamed = {"global_step": tensors.pop("global_step")}
        assert renamed["global_step"].dtype == np.int64 and len(tensors) == len(model.variables)
        slotted = {f"{n}/{slot}": array for n, array in tensors.items() for slot in slots}
        for name, array in {**tensors, **slotted}.items():
            for old, new in keras.items():
                name = name.replace(old, new)
            renamed[f"module/{name}"] = array
        return renamed

    change_google(tmp_path, change)
    imported = read_google(tmp_path)
    assert imported.notes == [f"left out: {4 * len(model.variables)} optimizer slots"]
    np.testing.assert_equal(imported.weights, name_map.arrays(model))


def test_damaged_checkpoint(out):
    path = out / "model.ckpt-best.data-00000-of-00001"
    data = path.read_bytes()
    for damaged in (b"", data[:4000], data[:1234] + bytes([data[1234] ^ 1]) + data[1235:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model.ckpt-best' is not a readable checkpoint"):
            read_google(out)


def test_incomplete_or_missing_config(out):
    path = out / "albert_config.json"
    config = {**json.loads(path.read_text()), "hidden_size": 24}  # 12 heads, the default, fit
    assert "parameter_sharing" not in config, "which Google's code does not have"
    del config["num_attention_heads"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"albert_config.json: .* it lacks num_attention_heads"):
        read_google(out)
    path.unlink()
    with pytest.raises(ValueError, match=r"no config at .*albert_config.json"):
        read_google(out)


def test_hub_module(out):
    tensors = read_tensors(str(out / "model.ckpt-best"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, array in tensors.items():
            tf.compat.v1.get_variable(name, initializer=array)
        session.run(tf.compat.v1.global_variables_initializer())
        builder = tf.compat.v1.saved_model.Builder(str(out / "module"))
        builder.add_meta_graph_and_variables(session, [])
        builder.save()
    (out / "module/assets").mkdir()
    (out / "albert_config.json").rename(out / "module/assets/albert_config.json")
    opened = open_model(out / "module")
    assert opened.directory == str(out / "module/assets")
    imported = google.read(opened.checkpoint, opened.directory)
    np.testing.assert_equal(imported.weights, name_map.arrays(make_model()))


def test_checkpoint_of_googles_bert(tmp_path):
    """Its "gelu" is the tanh form."""
    model = make_model(parameter_sharing="none", embedding_size=20)
    weights = name_map.arrays(model)
    tensors = name_map.from_ours(weights, model.config, "google", name_map.BERT_TABLE)
    assert tensors["bert/encoder/layer_1/attention/output/LayerNorm/gamma"].shape == (20,)
    save_tensors(str(tmp_path / "bert_model.ckpt"), tensors)
    values = huggingface.config_values(model.config)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    names += ("intermediate_size", "max_position_embeddings", "type_vocab_size")
    config = {"hidden_act": "gelu", **{name: values[name] for name in names}}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    imported = read_google(tmp_path / "bert_model.ckpt")
    assert (imported.config.hidden_act, imported.config.parameter_sharing) == ("gelu", "none")
    np.testing.assert_equal(imported.weights, name_map.arrays(model))
