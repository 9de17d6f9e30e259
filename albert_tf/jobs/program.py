"""Runs the programs. Invalid input results in a one-line error message and exit code 2."""

import contextlib
import importlib.util
import json
import math
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from absl import app, flags, logging

from albert_tf.storage.errors import UserError, disk_full, is_disk_full, store_error

# TensorFlow's file-system errors, which are not OSErrors. The last one is also raised if TensorFlow
# runs out of memory.
_FILE_ERRORS = """
    AlreadyExistsError DataLossError FailedPreconditionError NotFoundError PermissionDeniedError
    ResourceExhaustedError
""".split()

# Other programs' names of flags.
_SYNONYMS = {
    "lr": "learning_rate",
    "epochs": "num_epochs",
    "num_train_epochs": "num_epochs",
    "batch_size": "global_batch_size",
    "seed": "random_seeds",
    "model_name_or_path": "init_checkpoint",
}

# Last words of the names of flags whose values are paths, which may be comma-separated.
_PATHS = "checkpoint config corpus dir file input model output prefix vocab".split()
_HOME = r"((?:^|,)\s*)~(?=/|\s*(?:,|$))"


def run(main: Callable[[list[str]], None]) -> None:
    """Runs `main` with absl and reports user errors as one line on stderr.

    The exit code is 2 for user errors: UserError, invalid flags, OSError and TensorFlow's
    file-system errors. --verbosity=1 also prints their traceback. All other exceptions are bugs and
    print their traceback. On Ctrl-C and SIGTERM, unfinished files are deleted, and the exit codes
    are 130 and 143.
    """
    process, signals = os.getpid(), []

    def end(number, _):
        signals.append(number)
        if os.getpid() == process:  # forked children inherit the handler
            how = "interrupted" if number == signal.SIGINT else "terminated"
            print(f"\n{how}; run the same command again to resume", file=sys.stderr)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)  # the exit code of a shell for a process killed by a signal

    def guarded(argv: list[str]) -> None:
        if len(argv) > 1:
            hint = "; quote patterns, and separate files by commas" * os.path.exists(argv[1])
            fail(f"unknown argument {argv[1]!r}: every option is a flag, see --help{hint}")
        signal.signal(signal.SIGTERM, end)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
            signal.signal(signal.SIGINT, end)
        try:
            main(argv)
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:
            if signals:  # An extension module may replace what the handler raises by its own error.
                sys.exit(128 + signals[-1])
            if not is_user_error(error):
                raise
            if flags.FLAGS.verbosity > 0:
                traceback.print_exc()
            fail(_message(error))

    never_proxy_loopback()
    app.run(guarded, flags_parser=_parse_flags)


def never_proxy_loopback() -> None:
    """Adds this machine and all hosts in TF_CONFIG to the environment variable `no_proxy`.

    Otherwise Beam and TensorFlow workers would send their gRPC calls to the proxy in `https_proxy`.
    """
    own = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    # A malformed TF_CONFIG is ignored here, because TensorFlow itself reports it.
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))["cluster"]
        addresses = [address for task in cluster.values() for address in task]
        own += [address.rpartition(":")[0].strip("[]") for address in addresses]
    for name in ("no_proxy", "no_grpc_proxy"):  # gRPC prefers no_grpc_proxy if it is set
        if name == "no_grpc_proxy" and name not in os.environ:
            continue
        given = os.environ.get(name) or os.environ.get("NO_PROXY", "")
        hosts = [host.strip() for host in given.split(",") if host.strip()]
        if "*" not in hosts:
            os.environ[name] = ",".join(dict.fromkeys([*hosts, *own]))


def define_max_seq_length(
    name: str = "max_seq_length", default: int | None = None, help: str = "", **options
) -> None:
    """Defines --max_seq_length; `help` is appended to the help text, for example the default."""
    flags.disclaim_key_flags()  # --help lists the flag under the calling module
    of_all = "Maximum sequence length in pieces, including [CLS] and [SEP]."
    flags.DEFINE_integer(name, default, f"{of_all} {help}".strip(), lower_bound=8, **options)


def check_max_seq_length(max_seq_length: int, rows: int, trained_length: int | None = None) -> None:
    """Raises a UserError for lengths above `rows`; warns for lengths above `trained_length`."""
    if max_seq_length > rows:
        raise UserError(
            f"--max_seq_length={max_seq_length} is beyond the position table of the model "
            f"({rows} rows): use at most {rows}, or a model with more max_position_embeddings"
        )
    if trained_length and max_seq_length > trained_length:
        print(
            f"warning: --max_seq_length={max_seq_length}, but the checkpoint was trained with at "
            f"most {trained_length} pieces: its training never used the positions beyond"
        )


def installed_module(name: str) -> str:
    """Returns the name of a module of `pipelines` or `export`, which starts with albert_tf in a
    wheel.
    """
    return f"albert_tf.{name}" if importlib.util.find_spec("albert_tf.pipelines") else name


def installed_commands(text: str) -> str:
    """Replaces `python -m pipelines.pretrain` in `text` by `albert pretrain` if albert_tf is
    installed.

    A program that was itself started by `python -m pipelines.NAME` keeps that form.
    """
    started = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    of_checkout = started.startswith(("pipelines.", "export."))
    if of_checkout or installed_module("pipelines") == "pipelines":
        return text
    return re.sub(r"python -m (?:pipelines|export)\.(?:\w+\.)*(\w+)", r"albert \1", text)


def print_help(text: str) -> None:
    """Prints to stdout, which `head` or a pager may close early."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Python flushes stdout again at exit, which would fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    """Returns the program's docstring and flags, grouped by the module that defines the flags.

    The title of a group is the first line of the module's docstring.
    """
    main = sys.modules["__main__"]
    parts = [installed_commands(main.__doc__ or "")]
    for name in flags.FLAGS.flags_by_module_dict():
        if name in (sys.argv[0], main.__name__):
            title = "The program's own flags."
        elif name.startswith(("albert_tf.", "pipelines.", "export.")):
            title = (sys.modules[name].__doc__ or name).splitlines()[0]
        else:
            continue
        _, _, described = flags.FLAGS.module_help(name).strip().partition("\n")
        parts.append(f"{title}\n{described}\n")
    return "\n".join([*parts, "--helpfull also lists absl's flags, such as --flagfile."])


def _parse_flags(argv: list[str]) -> list[str]:
    if {"--help", "-help", "-h"} & {*argv[1:]}:
        print_help(_help())
        sys.exit(0)
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        # absl's message has one line per missing required flag.
        missing = r"flag --(\w+)=None: Flag --\1 must have a value other than None\."
        what = re.sub(missing, r"give --\1", str(error))
        theirs = getattr(error, "flagname", "")
        if (ours := _SYNONYMS.get(theirs, "")) in flags.FLAGS:
            what = f"there is no flag --{theirs}: use --{ours}"
        fail(f"{'; '.join(what.splitlines())}; see --help")
    home = os.path.expanduser("~")
    for name, value in flags.FLAGS.flag_values_dict().items():
        # A shell does not expand a ~ behind `--flag=`.
        if name.rpartition("_")[2] in _PATHS and isinstance(value, str) and "~" in value:
            flags.FLAGS[name].value = re.sub(_HOME, lambda found: found[1] + home, value)
        numbers = value if isinstance(value, list) else [value]
        # NaN passes absl's bounds.
        if not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
            fail(f"flag --{name}={value}: expected a finite number; see --help")
    # With absl's default, INFO, TensorFlow 2.21 logs every checkpoint.
    if flags.FLAGS["verbosity"].using_default_value:
        logging.set_verbosity(logging.WARNING)
    return rest


def is_user_error(error: Exception) -> bool:
    """Returns whether to show only the message of `error` to the user, without a traceback."""
    if isinstance(error, (MemoryError, OSError, UserError)) or type(error).__name__ in _FILE_ERRORS:
        return True
    # TensorFlow raises various errors if an object store rejects a call, fails, is unreachable or
    # has no plugin. Bugs raise the same classes, so the message must come from an object store.
    is_tensorflow = type(error).__module__.partition(".")[0] == "tensorflow"
    return is_tensorflow and store_error(str(error)) is not None


def _message(error: Exception) -> str:
    # Without the name of the TensorFlow op.
    text = re.sub(r"{{.*?}} ?| \[Op:\w+\]", "", str(error) or repr(error))
    if message := store_error(text):
        return message
    if is_disk_full(error):
        # TensorFlow's message starts with the path, an OSError may have none.
        named, found, _ = text.partition("; No space left")
        path = named if found else getattr(error, "filename", None)
        if not path:
            return disk_full("the output directory")
        # A directory of unfinished output (files.partial_name) is deleted by now.
        return disk_full(os.path.dirname(re.sub(r"\.[^/]*\.partial-.*", "", path)) or ".")
    if type(error).__name__ == "ResourceExhaustedError":
        return (
            "out of memory: lower the batch size or --max_seq_length, or take a smaller model "
            f"({text.strip().splitlines()[0]})"
        )
    return text


def fail(message: str) -> None:
    """Prints one line to stderr and exits with code 2."""
    print(f"error: {' '.join(installed_commands(message).split())}", file=sys.stderr)
    sys.exit(2)
