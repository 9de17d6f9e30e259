"""Rollouts against a stand-in that refuses and ignores what TensorFlow Serving does."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from albert_tf.storage.errors import UserError
from export.serving import rollout
from tests.export.stand_in import ModelServer, QuietHandler, serving
from tests.jobs import finish, run, start, wait_for

ROLLOUT = "export.serving.rollout"
SERVING = Path(rollout.__file__).parent
SHIPPED = {"canary": 1, "stable": 1}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout, "_SECONDS_BETWEEN_CALLS", 0.01)
    return Path(shutil.copy(SERVING / "models.config", tmp_path))


def read(path):
    """The labels and versions of a config file, which has its comments and no file beside it."""
    assert path.read_text().startswith("# What is served") and len(list(path.parent.iterdir())) == 1
    config = rollout.ConfigFile(str(path), "albert")
    return dict(config.model.version_labels), sorted(config.versions())


def replace(path, *change):
    """Replaces a part of a file in one step, as the stand-in may read it at any moment."""
    text = path.read_text()
    assert change[0] in text
    path.with_name("beside").write_text(text.replace(*change))
    path.with_name("beside").replace(path)


def to_canary(path, server):
    return f"--config={path}", f"--server={server.url}", "--version=2", "--label=canary"


def move(path, server, label=None, version=None, timeout=60.0):
    config = rollout.ConfigFile(str(path), "albert")
    moved = rollout.labels_to_move(dict(config.model.version_labels), label, version)
    rollout.move_labels(config, rollout.Server(server.url, "albert", timeout), moved)


def test_from_a_canary_to_stable_and_back(path, capsys):
    with ModelServer(path, [1, 2, 3]).running() as server:

        def check(versions, **labels):
            assert read(path) == (labels, versions) and server.labels == labels

        move(path, server, "canary", 2)
        check([1, 2], canary=2, stable=1)
        for _ in range(2):  # once more: nothing is left to do
            move(path, server, "stable")
            check([1, 2], canary=2, stable=2, previous=1)
        move(path, server, "canary", 3)
        check([1, 2, 3], canary=3, stable=2, previous=1)
        capsys.readouterr()
        move(path, server, "stable")
        check([2, 3], canary=3, stable=3, previous=2)
        assert "version 1 has no label: it is removed" in capsys.readouterr().out
        for _ in range(2):
            move(path, server)
            check([2], canary=2, stable=2, previous=2)
        assert not server.log


def test_a_version_that_never_becomes_available_is_taken_out(path):
    with ModelServer(path, [1, 2], broken=[2]).running() as server:
        for version, message in (
            (2, r"^version 2 cannot be loaded: END: INTERNAL: bad$"),
            (3, r"after 0.5 s: version 3 is not found\. Does the directory of versions have it\?"),
        ):
            with pytest.raises(ValueError, match=message):
                move(path, server, "canary", version, timeout=60.0 if version == 2 else 0.5)
            assert read(path) == (SHIPPED, [1]) and server.labels == SHIPPED
        # The server answers the failure for a while after the version was mended.
        polls = iter(range(30))

        def begin_again(server):
            is_added = "versions: 2" in path.read_text() and next(polls, None) is None
            if is_added and server.states[2] == ("END", "INTERNAL"):
                server.states[2] = ("END", "OK")

        server.broken.clear()
        server.before_poll = begin_again
        move(path, server, "canary", 2)
        assert server.labels == {"canary": 2, "stable": 1}


def test_another_version_that_is_loading_is_named(path):
    with ModelServer(path, [1, 2, 3]).running() as server:
        server.load_polls = 10**9
        replace(path, "versions: 1", "versions: [1, 3]")
        wait_for(lambda: 3 in server.states)
        with pytest.raises(ValueError, match="version 2 is not found; version 3 is LOADING"):
            move(path, server, "canary", 2, timeout=0.3)
    assert read(path) == (SHIPPED, [1, 3])


def test_a_label_that_the_server_refuses_is_taken_back(path, monkeypatch):
    def lose_version_2(server):
        if re.search(r'"canary"\s+value: 2', path.read_text()):
            server.states[2] = ("END", "INTERNAL")

    wait_labels = rollout.Server.wait_labels

    def wait_no_longer_than_the_refusal(client, labels):
        wait_for(lambda: server.log)
        client._timeout = 0.0
        wait_labels(client, labels)

    monkeypatch.setattr(rollout.Server, "wait_labels", wait_no_longer_than_the_refusal)
    with ModelServer(path, [1, 2]).running() as server:
        server.before_poll = lose_version_2
        message = r"after 0 s: canary answers from version 1\. The server's log has the reason"
        with pytest.raises(ValueError, match=message):
            move(path, server, "canary", 2)
        assert read(path) == (SHIPPED, [1])


def test_a_change_by_another_program_is_left_alone(path):
    with ModelServer(path, [1, 2], load_polls=20).running() as server:
        theirs = []

        def change(server):
            if server.states.get(2) == ("LOADING", "OK") and not theirs:
                replace(path, '"canary"', '"theirs"')
                theirs.append(path.read_text())

        server.before_poll = change
        with pytest.raises(ValueError, match="changed by another program meanwhile"):
            move(path, server, "canary", 2)
        assert path.read_text() == theirs[0]


def test_a_killed_program_resumes(path):
    with ModelServer(path, [1, 2]).running() as server:
        server.load_polls = 10**9
        for until, labels in (
            (lambda: server.states.get(2) == ("LOADING", "OK"), SHIPPED),
            (lambda: "value: 2" in path.read_text(), {"canary": 2, "stable": 1}),
        ):
            process = start(ROLLOUT, *to_canary(path, server))
            wait_for(until, [process])
            process.kill()
            finish(process, -signal.SIGKILL)
            assert read(path) == (labels, [1, 2])
            server.load_polls = 1
        assert run(ROLLOUT, *to_canary(path, server))[0].endswith("canary is version 2\n")
        assert server.labels == {"canary": 2, "stable": 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_version_is_taken_out_after_ctrl_c(path, number):
    with ModelServer(path, [1, 2]).running() as server:
        server.load_polls = 10**9
        process = start(ROLLOUT, *to_canary(path, server))
        assert "version 2 is" in process.stdout.readline()
        process.send_signal(number)
        finish(process, 128 + number)
        assert read(path) == (SHIPPED, [1])


def test_a_rollback_needs_no_server(path):
    """One that loads a broken version again and again opens no port."""
    with ModelServer(path, [1, 2]).running() as server:
        move(path, server, "canary", 2)
        move(path, server, "stable")
    back = (ROLLOUT, f"--config={path}", "--rollback")
    printed, _ = run(*back, f"--server={server.url}")
    assert "version 2 has no label" in printed and "nothing was confirmed" in printed
    labels = {"canary": 1, "stable": 1, "previous": 1}
    assert read(path) == (labels, [1])
    with ModelServer(path, [1, 2], broken=[2]).running() as server:
        assert "confirmed" not in run(*back, f"--server={server.url}")[0]
        assert server.labels == labels


def test_a_proxy_without_its_server_is_waited_for(path):
    pages = [(502, "<html>502 Bad Gateway</html>")] * 3

    class Proxy(QuietHandler):
        def do_GET(self):  # noqa: N802
            self.reply(*pages.pop() if pages else (200, {"model_spec": {"version": "1"}}))

    with serving(Proxy) as port:
        client = rollout.Server(f"http://127.0.0.1:{port}", "albert", 60.0)
        client.wait_labels({"stable": 1})
    assert not pages


def test_links_stay_and_comments_inside_are_named(path, tmp_path, capsys):
    replace(path, "    base_path", "    # why # not\n    base_path")
    replace(path, "/models/albert", "/models/#1")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "models.config"
    link.symlink_to(path)
    config = rollout.ConfigFile(str(link), "albert")
    config.write({1, 2})
    assert link.is_symlink() and "versions: 2" in path.read_text()
    assert capsys.readouterr().out.endswith("comments after the first other line are dropped\n")
    config.write({1})
    assert not capsys.readouterr().out  # a number sign in a string begins no comment


def test_configs_that_are_unfit(path):
    text = path.read_text()
    for change, message in (
        (("specific {", "specifi {"), "expected a ModelServerConfig as text"),
        (('name: "albert"', 'name: "other"'), "one model of name 'albert', not 0"),
        (("specific {\n        versions: 1\n      }", "latest {}"), "under model_version_policy"),
        (("versions: 1", "versions: 7"), "label 'canary' names version 1, which is not under"),
    ):
        path.write_text(text)
        replace(path, *change)
        with pytest.raises(UserError, match=message):
            rollout.ConfigFile(str(path), "albert")
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(UserError, match=r"models\.config: not UTF-8: expected the config"):
        rollout.ConfigFile(str(path), "albert")
    path.unlink()
    with pytest.raises(UserError, match=r"models\.config: No such file .* such as a copy of"):
        rollout.ConfigFile(str(path), "albert")


def test_commands_that_are_refused(path):
    for flags, message in (
        (["--rollback", "--label=stable"], "expected either --label"),
        (["--rollback"], "nothing was rolled out to stable"),
        (["--version=9223372036854775808", "--label=canary"], "flag --version=9223372036854775808"),
        (["--label=canary", "--version=2", "--server=http://127.0.0.1:1"], "a running server"),
    ):
        assert message in run(ROLLOUT, f"--config={path}", *flags, exit_code=2)[1]
        assert read(path) == (SHIPPED, [1])
    with pytest.raises(ValueError, match="needs --version"):
        rollout.labels_to_move({"stable": 1}, "stable")


def test_the_health_check_sees_the_stable_version(path):
    compose = (SERVING / "compose.yaml").read_text()
    script = re.search(r"- >-\n(.*?)      interval", compose, re.DOTALL)[1]
    script = " ".join(line.strip() for line in script.splitlines()).replace("$$", "$")
    assert "/8501 " in script

    def check(port, label="stable"):
        own = script.replace("8501", port).replace("labels/stable", f"labels/{label}")
        return subprocess.run(["bash", "-c", own], capture_output=True, timeout=10).returncode

    with ModelServer(path, [1]).running() as server:
        port = server.url.rpartition(":")[2]
        assert server.answer("/v1/models/albert/labels/nosuch")[0] == 200  # ignores the label
        assert check(port) == 0 and check(port, "nosuch") == 1
        server.states[1] = ("END", "OK")
        server.before_poll = lambda server: server.states.update({1: ("END", "INTERNAL")})
        assert check(port) == 1
    assert check(port) == 1  # no port is open
