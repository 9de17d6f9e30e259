"""A path means the same to every program."""

import shutil

import pytest

from albert_tf.checkpoints.opening import ALBERT_TF, EXPORT, GOOGLE, HUGGINGFACE, open_model
from albert_tf.storage.errors import UserError
from export.loading import open_checkpoint
from pipelines import predict
from tests.albert_tf.checkpoints.test_name_map import convert, to_google

CONVERT = "' is a .*: convert it by pipelines.convert_checkpoint"
REFUSALS = {GOOGLE: CONVERT, HUGGINGFACE: CONVERT, EXPORT: "/2' is an export: give the model dir"}


@pytest.fixture(scope="module")
def paths(tmp_path_factory, pretrained, tuned):
    place = tmp_path_factory.mktemp("models")
    to_google(pretrained, place / "google")
    convert(pretrained, place / "huggingface", "huggingface")
    shutil.copytree(place / "google", place / "hub/1/assets")
    (place / "hub/1/variables").mkdir()
    (place / "hub/1/saved_model.pb").touch()
    for file in (place / "hub/1/assets").glob("model.ckpt-best.*"):
        file.rename(place / "hub/1/variables" / file.name.replace("model.ckpt-best", "variables"))
    shutil.copytree(place / "hub/1", place / "export/2")
    (place / "export/2/assets.extra").mkdir()
    (place / "export/2/assets.extra/export.json").touch()
    return {"ours": pretrained, "seed": tuned / "seed_1", **{p.name: p for p in place.iterdir()}}


@pytest.mark.parametrize(
    ("name", "form", "kind", "inside"),
    [
        ("ours", ALBERT_TF, "pretraining", "checkpoints/ckpt-1"),
        ("seed", ALBERT_TF, "classifier", "best/ckpt-7"),
        ("huggingface", HUGGINGFACE, "pretraining", "model.safetensors"),
        ("google", GOOGLE, "pretraining", "model.ckpt-best"),
        ("hub", GOOGLE, "pretraining", "1/variables/variables"),
        ("export", EXPORT, "pretraining", "2/variables/variables"),
    ],
)
def test_what_a_path_is(paths, name, form, kind, inside):
    opened = open_model(f"{paths[name]}/")
    found = (opened.format, opened.kind, opened.checkpoint)
    assert found == (form, kind, f"{paths[name]}/{inside}")
    if form != ALBERT_TF:
        with pytest.raises(UserError, match=REFUSALS[form]):
            open_checkpoint(str(paths[name]))


def test_a_module_of_tf_hub_is_predicted_like_its_source(paths):
    loaded = [predict.load(paths[name]) for name in ("hub", "google", "ours")]
    assert len({model._model.identity["weights"] for model in loaded}) == 1
