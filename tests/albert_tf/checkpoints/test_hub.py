"""Models by name, from a stand-in for the Hugging Face Hub on this machine."""

import hashlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import hub
from albert_tf.checkpoints.conversion import published_model
from albert_tf.checkpoints.model_directory import find_checkpoint, read_if_exists, read_origin
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from pipelines.training.run import initial_path
from tests.albert_tf.checkpoints.test_huggingface import change_huggingface
from tests.albert_tf.checkpoints.test_name_map import without
from tests.export.stand_in import QuietHandler, serving
from tests.jobs import run

COMMIT = "5f8d1e0c" * 5
NAME = "acme/tiny"


def test_paths_are_left_as_they_are(tmp_path):
    for path in ("runs/missing", str(tmp_path), "a/b/c", "gs://bucket/x"):
        assert hub.local_path(path) == path
    for path in ("hf://tiny", "hf://a/b/c", "hf://a/b@", "hf://a/é"):
        with pytest.raises(UserError, match="expected hf://OWNER/NAME"):
            hub.local_path(path)
    with pytest.raises(UserError, match="convert it first"):
        initial_path("hf://a/b", str(tmp_path), "multi_worker")


class Handler(QuietHandler):
    hub = SimpleNamespace(page=None)  # the model that is served: see `server`

    def do_GET(self):  # noqa: N802
        if self.hub.status != 200:
            code = {401: "GatedRepo", 404: "RepoNotFound"}.get(self.hub.status, "")
            return self.answer(self.hub.status, b"{}", {"X-Error-Code": code})
        if self.path.startswith("/api/models/"):
            if self.hub.page:
                return self.answer(200, self.hub.page, {})
            info = self.info()
            if "/tree/" in self.path:  # huggingface_hub 2 asks for the files' list in this form
                names = {"rfilename": "path", "blobId": "oid"}
                files = ({names.get(k, k): v for k, v in f.items()} for f in info["siblings"])
                info = [{"type": "file", **file} for file in files]
            return self.answer(200, json.dumps(info).encode(), {})
        name = self.path.rpartition("/")[2]
        content = self.hub.files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if self.command == "GET":
            self.hub.asked.append(name)
        return self.answer(200, content, headers)

    do_HEAD = do_GET  # noqa: N815

    def info(self):
        files = [
            {"rfilename": name, "size": len(content), "blobId": "0" * 40}
            for name, content in self.hub.files.items()
        ]
        return {"id": NAME, "sha": COMMIT, "siblings": files, "private": False, "tags": []}

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture(scope="module")
def published(pretrained, tmp_path_factory):
    directory = tmp_path_factory.mktemp("hub") / "model"
    albert_tf.save_pretrained(*albert_tf.from_pretrained(pretrained), directory)
    (directory / "pytorch_model.bin").write_bytes(b"not asked for")
    return directory


@pytest.fixture
def server(published, tmp_path, monkeypatch):
    """`status`: of all answers; `page`: the answer to each question about the model."""
    hub = SimpleNamespace(asked=[], status=200, page=None)
    hub.files = {path.name: path.read_bytes() for path in published.iterdir()}
    monkeypatch.setattr(Handler, "hub", hub)
    with serving(Handler) as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield hub


def test_what_a_model_lacks_is_drawn_from_a_seed(published, tmp_path, monkeypatch):
    cached = tmp_path / "models--acme--tiny" / "snapshots" / COMMIT
    shutil.copytree(published, cached)
    change_huggingface(cached, without("sop_classifier."))
    monkeypatch.setattr(hub, "local_path", lambda name: str(cached))
    directories = [published_model(f"hf://{NAME}", str(tmp_path / d)) for d in ("a", "b")]
    one, other = (files.sha256(f"{find_checkpoint(d)[1]}.index") for d in directories)
    assert one == other
    fresh = read_if_exists(directories[0], "origin.json")["freshly_initialised"]
    assert fresh.startswith("sentence_order/classifier/kernel, sentence")


def test_models_of_tf_hub_are_fetched_by_their_url(published, tmp_path, monkeypatch):
    archive = shutil.make_archive(str(tmp_path / "model"), "gztar", published)
    with open(archive, "rb") as file:
        whole = file.read()
    asked, answers = [], {"/tiny/1": whole, "/cut/1": whole[:9_000], "/page/1": b"<html>"}

    class TfHub(Handler):
        def do_GET(self):  # noqa: N802
            asked.append(self.path)
            content = answers.get(self.path.partition("?")[0])
            self.answer(200 if content else 404, content or b"", {})

    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "cache"))
    with serving(TfHub) as port:
        url = f"http://127.0.0.1:{port}"
        for _ in range(2):  # the second time from the cache
            model = albert_tf.from_pretrained(f"{url}/tiny/1")[0]
        assert asked == ["/tiny/1?tf-hub-format=compressed"]
        theirs = albert_tf.from_pretrained(published)[0]
        np.testing.assert_equal(model.get_weights(), theirs.get_weights())
        published_model(f"{url}/tiny/1", str(tmp_path / "out"))
        assert read_origin(str(tmp_path / "out")) == f"{url}/tiny/1"
        for name in ("cut/1", "page/1", "no/1"):
            with pytest.raises(UserError, match=f"{url}/{name}: .*; check the network and the URL"):
                hub.local_path(f"{url}/{name}")
        with pytest.raises(UserError, match="ends in a version"):
            published_model(f"{url}/tiny", str(tmp_path / "other"))


def convert(output, name=f"hf://{NAME}", *more, exit_code=0):
    flags = (f"--input={name}", f"--output_dir={output}", *more)
    return run("pipelines.convert_checkpoint", *flags, exit_code=exit_code)


@pytest.mark.extras("huggingface_hub")
class TestNames:
    def test_only_what_is_needed_is_fetched(self, server, published, tmp_path, monkeypatch):
        out = convert(tmp_path / "one")[0]
        assert f"snapshots/{COMMIT}" in out
        ours, theirs = (albert_tf.from_pretrained(p)[0] for p in (tmp_path / "one", published))
        np.testing.assert_equal(ours.get_weights(), theirs.get_weights())
        assert {*server.asked} == {*server.files} - {"pytorch_model.bin"}
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        server.status = 404
        for number, revision in enumerate(("", "@main", f"@{COMMIT}")):
            convert(tmp_path / f"offline_{number}", f"hf://{NAME}{revision}")
        error = convert(tmp_path / "three", "hf://acme/other", exit_code=2)[1]
        assert "error: hf://acme/other: LocalEntryNotFoundError: " in error

    def test_refusals(self, server, tmp_path, monkeypatch):
        def assert_refused(name=f"hf://{NAME}"):
            error = convert(tmp_path / "one", name, exit_code=2)[1].splitlines()[-1]
            assert error.startswith(f"error: {name}: ") and "; check the network" in error
            assert len(error) < 500
            return error

        assert_refused("hf://acme/a..b")
        for server.page in (b"<html>Log in</html>", b"[]", b"[" * 100_000):
            assert_refused()
        server.page = None
        for server.status, kind in ((401, "GatedRepoError"), (404, "RepositoryNotFoundError")):
            assert kind in assert_refused()
        for endpoint in ("http://127.0.0.1:9", "http://[bad"):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            assert_refused()

    def test_a_model_without_weights_here_is_not_whole(self, server, tmp_path, monkeypatch):
        del server.files["model.safetensors"]
        for _ in ("at the hub", "in the cache, with the hub out of reach"):
            error = convert(tmp_path / "one", exit_code=2)[1]
            assert f"error: hf://{NAME}: model.safetensors did not come: check the net" in error
            monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    def test_fine_tuning_starts_from_a_name(self, server, tmp_path):
        (tmp_path / "train.tsv").write_text("text\tlabel\n" + "one\ta\ntwo\tb\n" * 4)

        def finetune(name, exit_code=0):
            flags = f"--train_file={tmp_path}/train.tsv --init_checkpoint={name} --eval_steps=0"
            flags += f" --num_train_steps=2 --num_warmup_steps=1 --output_dir={tmp_path}/run"
            flags += " --task=classification --global_batch_size=4"
            return run("pipelines.finetune", *flags.split(), exit_code=exit_code)

        assert "40 hexadecimal digits" in finetune(f"hf://{NAME}@main", exit_code=2)[1]
        finetune(f"hf://{NAME}")
        origin = f"hf://{NAME}@{COMMIT}"
        assert json.loads((tmp_path / "run/run.json").read_text())["origin"] == origin
        server.status = 404  # needed no more
        finetune(origin)
        name = f"hf://{NAME}@{COMMIT[::-1]}"
        assert f"holds {origin}, not {name}" in finetune(name, exit_code=2)[1]
