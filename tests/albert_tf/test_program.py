import os
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

from albert_tf.jobs import program
from albert_tf.storage import files
from tests.jobs import run_code


def stderr_of(body, *arguments, exit_code):
    """Returns the stderr of a program whose main does `body`."""
    imports = "from albert_tf.jobs import program\nfrom albert_tf.storage import files"
    code = f"{imports}\ndef main(_):\n    {body}\nprogram.run(main)\n"
    return run_code(code, *arguments, exit_code=exit_code)[1]


RATE = "pass\nfrom absl import flags\nflags.DEFINE_float('rate', 0.1, 'A rate.', 0.0)"
RATES = """pass
import dataclasses
from absl import flags
from albert_tf.jobs.settings import define_settings_flags, setting
@dataclasses.dataclass
class Rates:
    rates: float = setting(flags.DEFINE_float, "Rates.")
define_settings_flags(Rates, several=("rates",))"""
REQUIRED = """pass
from absl import flags
flags.DEFINE_string('one', None, 'One.', required=True)
flags.DEFINE_string('two', None, 'Another.', required=True)"""
HOME = """values = flags.FLAGS; print(
    values.train_file, values.output, values.mark, values.text, file=sys.stderr)
import os, sys
from absl import flags
os.environ["HOME"] = "/h"
for name in ("train_file", "output", "mark"):
    flags.DEFINE_string(name, "", "A string.")
flags.DEFINE_multi_string("text", [], "Texts.")"""
LENGTH = "pass\nprogram.define_max_seq_length(default=8)"
FULL_DISK = """import tensorflow as tf; raise tf.errors.NotFoundError(
    None, None, "{{node SaveV2_}} a/.b.partial-h-1-2/ckpt; No space left on device [Op:SaveV2]")
"""


@pytest.mark.parametrize(
    ("body", "argument", "message"),
    [
        ("files.match_files('no/such/*.txt', 'input_file')", "", "--input_file: no file matches"),
        ("pass", "/", "unknown argument '/': every option is a flag, see --help; quote patterns, "),
        (RATE, "--rate=inf", "flag --rate=inf: expected a finite number; see --help"),
        (RATES, "--rates=0.1,nan", "flag --rates=[0.1, nan]: expected a finite number; see --help"),
        (FULL_DISK, "", "the disk is full: free space at a, then run the same command again\n"),
        (
            "raise OSError(28, 'No space left on device', '/tmp/c')",
            "",
            "the disk is full: free space at /tmp (",
        ),
        (REQUIRED, "", "give --one; give --two; see --help"),
        (LENGTH, "--max_seq_length=7", "flag --max_seq_length=7"),
    ],
)
def test_a_users_error_is_one_line(body, argument, message):
    err = stderr_of(body, *filter(None, [argument]), exit_code=2)
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_tilde_is_the_home_directory_in_paths_alone():
    given = ("--train_file=~/a, ~/b,c~/d", "--output=~", "--mark=~/", "--text=~/a")
    assert stderr_of(HOME, *given, exit_code=0) == "/h/a, /h/b,c~/d /h ~/ ['~/a']\n"


@pytest.mark.parametrize(
    ("started", "shown"),
    [("albert_tf.pipelines.pretrain", "albert "), ("pipelines.pretrain", "python -m pipelines.")],
)
def test_an_error_names_programs_as_they_were_started(monkeypatch, capsys, started, shown):
    monkeypatch.setattr(program, "installed_module", lambda name: f"albert_tf.{name}")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=started))
    with pytest.raises(SystemExit):
        program.fail("run python -m pipelines.show_records first")
    assert capsys.readouterr().err == f"error: run {shown}show_records first\n"


def test_tracebacks_of_users_errors_if_asked_and_of_our_faults():
    err = stderr_of("open('no/such.txt')", "--verbosity=1", exit_code=2)
    assert "Traceback" in err and "\nerror: [Errno 2] No such file" in err
    assert "Traceback" in stderr_of("int('seven')", exit_code=1)
    stderr_of("raise KeyboardInterrupt", exit_code=130)


OWN = "localhost,127.0.0.1,::1,vm"
HOSTS = '{"cluster": {"worker": ["host0:2222", "10.0.0.2:1"], "chief": ["[::5]:7"]}}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"no_proxy": OWN}),
        ({"NO_PROXY": "corp.example, localhost"}, {"no_proxy": f"corp.example,{OWN}"}),
        ({"no_proxy": "*"}, {"no_proxy": "*"}),
        ({"no_proxy": "*", "no_grpc_proxy": "a"}, {"no_proxy": "*", "no_grpc_proxy": f"a,{OWN}"}),
        ({"TF_CONFIG": HOSTS}, {"no_proxy": f"{OWN},host0,10.0.0.2,::5"}),
        *(({"TF_CONFIG": text}, {"no_proxy": OWN}) for text in ('{"task": {}}', "no JSON")),
    ],
)
def test_loopback_and_the_hosts_of_a_run_are_never_proxied(monkeypatch, before, after):
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "TF_CONFIG"):
        monkeypatch.setenv(name, "")  # notes what to take back at the end
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(program.socket, "gethostname", lambda: "vm")
    for _ in range(2):  # a second call adds nothing
        program.never_proxy_loopback()
        assert {name: os.environ[name] for name in after} == after


def test_files_that_match(tmp_path):
    for name in ("b.txt", "a.txt", "c [1].txt", "d.csv"):
        (tmp_path / name).write_text("x")
    patterns = f"{tmp_path}/[ab].txt,{tmp_path}/c [1].txt"
    found = [path.rsplit("/", 1)[1] for path in files.match_files(patterns, "input_file")]
    assert found == ["a.txt", "b.txt", "c [1].txt"]
    with pytest.raises(ValueError, match=r"only directories do: write DIR/\* for the files"):
        files.match_files(str(tmp_path), "input_file")
    with pytest.raises(ValueError, match="--input_file is empty"):
        files.match_files(" ,", "input_file")


def test_files_whose_names_hold_a_comma(tmp_path):
    for name in ("a,b.txt", "a", "b.txt"):
        (tmp_path / name).write_text("x")
    assert files.match_files(f"{tmp_path}/a,b.txt", "f") == [f"{tmp_path}/a,b.txt"]
    (tmp_path / "a,b.txt").unlink()
    both = [f"{tmp_path}/a", f"{tmp_path}/b.txt"]
    assert files.match_files(",".join(both), "f") == both


def test_writing_leaves_nothing_half_done(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file.txt"
    files.write_atomically(str(path), "first")
    monkeypatch.setattr(tf.io.gfile, "rename", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.write_atomically(str(path), "second")
    assert path.read_text() == "first"


def test_sigterm_lets_a_program_remove_what_is_unfinished(tmp_path):
    body = f"""import os, signal
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        open({str(tmp_path / "removed")!r}, "w").close()"""
    err = stderr_of(body, exit_code=143)
    assert err == "\nterminated; run the same command again to resume\n"
    assert (tmp_path / "removed").exists()
