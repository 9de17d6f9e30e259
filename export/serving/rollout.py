r"""Moves a version label of a running TensorFlow Serving to another version, and back.

The program edits the config file, which the server reloads every 30 s. The first edit adds a
version. When the server reports that the version is AVAILABLE, the second edit moves the label. A
single edit would fail, because a server rejects labels of versions that are not loaded. The program
then waits until the server uses the new version for the label. On failure, the edits are undone.

`--label=stable` also moves the label `previous` to the old version of `stable`. --rollback moves
`stable` back to this version. The second edit removes versions without a label. If the program is
killed, the config remains valid. Run the same command again to resume.

If no server responds, --rollback still edits the config, but cannot confirm the change.

Examples:
  python -m export.serving.rollout --config=models.config --version=2 --label=canary
  python -m export.serving.rollout --config=models.config --label=stable  # canary's version
  python -m export.serving.rollout --config=models.config --rollback
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from absl import flags
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from albert_tf.jobs import program
from albert_tf.storage.errors import UserError

FLAGS = flags.FLAGS

STABLE, CANARY, PREVIOUS = "stable", "canary", "previous"
_SECONDS_BETWEEN_CALLS = 1.0
_CALL_TIMEOUT = 10.0  # seconds
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')  # a quoted string in a config
_FAILED = "END: "  # prefix of the state if all attempts to load have failed


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    flags.DEFINE_string(
        "config", None, "The server's config file, which will be edited.", required=True
    )
    flags.DEFINE_string("server", "http://localhost:8501", "URL of the server's REST port.")
    flags.DEFINE_string("model", "albert", "Name of the model in the config.")
    flags.DEFINE_enum("label", None, [CANARY, STABLE], "Label to move.")
    flags.DEFINE_integer(
        "version",
        None,
        "New version of the label. Default for --label=stable: canary's version.",
        lower_bound=1,
        upper_bound=2**63 - 1,
    )
    flags.DEFINE_bool(
        "rollback", False, "Move stable back to the version of previous; and canary, if equal."
    )
    flags.DEFINE_float(
        "timeout", 900.0, "Seconds to wait for the server after each edit.", lower_bound=0.0
    )


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if FLAGS.rollback == (FLAGS.label is not None) or (FLAGS.rollback and FLAGS.version):
        raise UserError("expected either --label, with or without --version, or --rollback")
    config = ConfigFile(FLAGS.config, FLAGS.model)
    moved = labels_to_move(dict(config.model.version_labels), FLAGS.label, FLAGS.version)
    server = Server(FLAGS.server, FLAGS.model, FLAGS.timeout)
    try:
        server.states()
    except NoAnswerError as error:
        if not FLAGS.rollback:
            raise
        config.move_labels(moved)
        print(
            f"{error}. {FLAGS.config} is rolled back, but nothing was confirmed. A server that is "
            "starting reads the file at its next start: restart the server, then run the same "
            "command again to confirm"
        )
    else:
        move_labels(config, server, moved)
    print("\n".join(f"{label} is version {version}" for label, version in sorted(moved.items())))


def labels_to_move(
    labels: dict[str, int], label: str | None, version: int | None = None
) -> dict[str, int]:
    """Returns a dict mapping labels to their new versions.

    If `label` is None (--rollback), STABLE is moved to the version of PREVIOUS, and so is CANARY if
    it has the same version as STABLE. If `version` is None, STABLE is moved to CANARY's version.
    """
    if label is None:
        if PREVIOUS not in labels:
            raise UserError(
                f"the config has no label {PREVIOUS!r}: nothing was rolled out to stable"
            )
        moved = [STABLE, CANARY] if labels.get(CANARY) == labels.get(STABLE) else [STABLE]
        return dict.fromkeys(moved, labels[PREVIOUS])
    if version is None:
        if label == CANARY or CANARY not in labels:
            raise UserError(f"--label={label} needs --version: no other label names a version")
        version = labels[CANARY]
    if label == STABLE and labels.get(STABLE, version) != version:
        return {STABLE: version, PREVIOUS: labels[STABLE]}
    return {label: version}


def move_labels(config: ConfigFile, server: Server, moved: dict[str, int]) -> None:
    """Moves labels to other versions in a config, and waits until the server has applied them.

    If a UserError is raised, the earlier labels are restored, and versions in `moved` that had no
    label are removed. If another program has changed the file in the meantime, it is not edited.
    """
    # Raises an error before the first edit if no server responds.
    earlier = server.states()
    before, wanted = dict(config.model.version_labels), set(moved.values())
    with_added = config.versions() | wanted
    # Used to undo the edits. If a version that cannot be loaded remained in the config, the server
    # would not open its ports after a restart.
    without_added = with_added - (wanted - set(before.values()))
    if wanted <= config.versions():
        earlier = {}  # no version is added, so reported failures are final
    try:
        config.write(with_added)
        server.wait_available(wanted, earlier)
    except BaseException:  # including Ctrl-C and SIGTERM
        config.write(without_added)
        raise
    config.move_labels(moved)
    try:
        server.wait_labels(moved)
    except UserError:
        # Do not undo after Ctrl-C, because the server may have unloaded a version in `before` and
        # would reject its label. The config is valid, and the same command resumes.
        config.model.version_labels.clear()
        config.model.version_labels.update(before)
        config.write(without_added)
        raise


class ConfigFile:
    """A model in a config file of TensorFlow Serving, a ModelServerConfig in text format."""

    def __init__(self, path: str, model_name: str):
        self._path = os.path.realpath(path)  # do not replace a symbolic link
        self._text = self._read()
        self._config = model_server_config_pb2.ModelServerConfig()
        try:
            text_format.Parse(self._text, self._config)
        except text_format.ParseError as error:
            raise UserError(f"{path}: {error}: expected a ModelServerConfig as text") from error
        models = [m for m in self._config.model_config_list.config if m.name == model_name]
        if len(models) != 1:
            raise UserError(f"{path}: expected one model of name {model_name!r}, not {len(models)}")
        (self.model,) = models
        if not self.versions():
            raise UserError(
                f"{path}: expected versions of {model_name!r} under model_version_policy, "
                "specific: with another policy, the server loads and unloads versions by itself"
            )
        for label, version in sorted(self.model.version_labels.items()):
            if version not in self.versions():
                raise UserError(
                    f"{path}: label {label!r} names version {version}, which is not under "
                    "versions: the server would ignore the file. Mend it first"
                )

    def versions(self) -> set[int]:
        """Returns the versions that the server should load."""
        return set(self.model.model_version_policy.specific.versions)

    def move_labels(self, moved: dict[str, int]) -> None:
        """Moves labels to other versions and writes the file.

        Versions without a label are removed. They may be left over from a killed program.
        """
        self.model.version_labels.update(moved)
        labelled = set(self.model.version_labels.values())
        for version in sorted(self.versions() - labelled):
            print(f"version {version} has no label: it is removed from versions")
        self.write(labelled)

    def write(self, versions: set[int]) -> None:
        """Writes the file with the given versions; only comments at the top are preserved."""
        self.model.model_version_policy.specific.versions[:] = sorted(versions)
        if self._read() != self._text:
            raise UserError(
                f"{self._path} was changed by another program meanwhile, and is left as it is: "
                "check it, then run the same command again"
            )
        written = text_format.Parse(self._text, model_server_config_pb2.ModelServerConfig())
        if written == self._config:
            return
        lines = self._text.splitlines(keepends=True)
        comments = "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
        if "#" in _STRING.sub("", self._text[len(comments) :]):
            print(f"{self._path}: comments after the first other line are dropped")
        text = comments + text_format.MessageToString(self._config)
        # Do not use albert_tf.storage.files: importing TensorFlow takes seconds, and a rollback is
        # urgent.
        partial = f"{self._path}.partial-{os.getpid()}"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            os.fsync(file.fileno())
        shutil.copymode(self._path, partial)
        os.replace(partial, self._path)
        self._text = text

    def _read(self) -> str:
        try:
            return Path(self._path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise UserError(
                f"--config={self._path}: {reason}: expected the config file that the server reads, "
                "such as a copy of export/serving/models.config"
            ) from error


class Server:
    """Client for the REST API of TensorFlow Serving at http://HOST:PORT or https://HOST:PORT.

    `timeout` is the number of seconds to wait for the server after each edit of its config.
    """

    def __init__(self, url: str, model_name: str, timeout: float):
        self._url = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(model_name)}"
        self._timeout = timeout

    def states(self) -> dict[int, str]:
        """Returns a dict mapping versions to their states, with the error if loading failed."""
        states = {}
        for each in self._get("").get("model_version_status", []):
            status = each.get("status", {})
            code = status.get("error_code", "OK")
            error = "" if code == "OK" else f": {code}: {status.get('error_message', '')}"
            states[int(each["version"])] = each["state"] + error
        return states

    def wait_available(self, versions: set[int], earlier: dict[int, str]) -> None:
        """Waits until versions are loaded.

        `earlier` contains the states before the config was edited. It is needed because the server
        reports the error of an earlier attempt until it starts to load a version again.
        """
        begun: set[int] = set()  # versions whose state has changed from `earlier`

        def missing():
            states = self.states()
            begun.update(v for v in versions if states.get(v) != earlier.get(v))
            for version in sorted(begun):
                if states.get(version, "").startswith(_FAILED):
                    raise UserError(f"version {version} cannot be loaded: {states[version]}")
            faults = [v for v in sorted(versions) if states.get(v) != "AVAILABLE"]
            if faults:  # the server may be loading another version
                loading = (v for v, state in states.items() if state == "LOADING")
                faults += [v for v in loading if v not in versions]
            return [f"version {v} is {states.get(v, 'not found')}" for v in faults]

        self._wait(
            missing,
            "Does the directory of versions have it? Does the server read this config anew "
            "(--model_config_file_poll_wait_seconds)?",
        )

    def wait_labels(self, labels: dict[str, int]) -> None:
        """Waits until the server uses the given version for each label."""

        def wrong():
            found = {label: self._version_of(label) for label in labels}
            return [
                f"{label} answers from {'no version' if v is None else f'version {v}'}"
                for label, v in found.items()
                if v != labels[label]
            ]

        self._wait(wrong, "The server's log has the reason.")

    def _wait(self, find_faults: Callable[[], list[str]], hint: str) -> None:
        deadline = time.monotonic() + self._timeout
        shown = None
        while True:
            try:
                faults = "; ".join(find_faults())
            except NoAnswerError as error:  # for example, the server is busy loading
                faults = str(error)
            if not faults:
                return
            if faults != shown:
                print(faults, flush=True)
                shown = faults
            if time.monotonic() > deadline:
                raise UserError(f"after {self._timeout:g} s: {faults}. {hint}")
            time.sleep(_SECONDS_BETWEEN_CALLS)

    def _version_of(self, label: str) -> int | None:
        """Returns the version of a label from the metadata API; the status API ignores labels."""
        answer = self._get(f"/labels/{urllib.parse.quote(label)}/metadata")
        version = answer.get("model_spec", {}).get("version")
        return None if version is None else int(version)

    def _get(self, path: str) -> dict:
        """Returns the JSON response of the server, which may be an error message."""
        url, status = self._url + path, 0
        try:
            try:
                response = urllib.request.urlopen(url, timeout=_CALL_TIMEOUT)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                status = response.status
                return {**json.load(response)}
        except (TypeError, ValueError) as error:
            if status >= 500:  # an error page of a proxy, such as 502 Bad Gateway
                raise NoAnswerError(
                    f"{url}: {response}: expected a running server there"
                ) from error
            raise UserError(f"{url}: expected TensorFlow Serving's REST API there") from error
        except (http.client.HTTPException, OSError) as error:
            raise NoAnswerError(f"{url}: {error}: expected a running server there") from error


class NoAnswerError(UserError):
    """Raised if the server, or the server behind a proxy, does not respond."""


if __name__ == "__main__":
    define_flags()
    program.run(main)
