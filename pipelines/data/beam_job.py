"""Runs the units of a job on an Apache Beam runner. No other module imports apache_beam."""

import atexit
import contextlib
import dataclasses
import functools
import logging
import math
import os
import queue
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

import albert_tf
from albert_tf.jobs.settings import define_settings_flags, setting
from albert_tf.storage.errors import UserError

# Command that starts a worker process of DirectRunner. Unlike Beam's own command, it discards
# stderr (exceptions of our code still reach the main process), and the worker exits on Ctrl-C and
# when the main process ends. Beam's own worker would continue to write for some seconds, at the
# same time as a restarted job. A SIGTERM to all processes of a job is left to the main process.
_WORKER_COMMAND = f"""exec {shlex.quote(sys.executable)} -c '
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, lambda *_: os._exit(0))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def leave_with(parent):
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
threading.Thread(target=leave_with, args=[os.getppid()], daemon=True).start()
from apache_beam.runners.worker import sdk_worker_main
sdk_worker_main.main(sys.argv)' 2>/dev/null"""

_WORKER_GIGABYTES = 0.6  # measured: pipelines/README.md, "Machines"


def available_cpus(root: str = "/") -> int:
    """Returns the number of CPUs that this process may use, at least 1.

    This is the number of CPUs of its affinity, limited by the quotas of its control group (version
    2) and of the group's parents, which a container's CPU limit sets. `root` is the directory of
    `proc` and `sys`.
    """
    available = float(len(os.sched_getaffinity(0)))
    memberships = Path(root, "proc/self/cgroup")
    text = memberships.read_text() if memberships.exists() else ""
    for group in re.findall("^0::/(.*)$", text, re.MULTILINE):
        for name in [Path(group), *Path(group).parents]:
            limit = Path(root, "sys/fs/cgroup", name, "cpu.max")
            with contextlib.suppress(OSError):  # no limit, or none that may be read
                quota, period = limit.read_text().split()
                available = min(available, math.inf if quota == "max" else int(quota) / int(period))
    return max(1, int(available))


def prepare_environment() -> None:
    """Sets environment variables that the worker processes of DirectRunner inherit.

    The workers can then import our code, use no accelerator and do not print TensorFlow's log.
    By default they read gs:// in blocks of 4 MB instead of TensorFlow's 64 MB, because a unit can
    be a small part of an object.
    """
    project = str(Path(albert_tf.__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ.setdefault("GCS_READ_CACHE_BLOCK_SIZE_MB", "4")


@dataclasses.dataclass(frozen=True)
class Workers:
    """The Beam runner and its options."""

    runner: str = setting(
        flags.DEFINE_string, "Beam runner. DirectRunner runs on this machine.", "DirectRunner"
    )
    num_workers: int | None = setting(
        flags.DEFINE_integer,
        "Number of worker processes of DirectRunner. Default: one per CPU that this process may "
        "use (its affinity, and the CPU limit of its container).",
        None,
        lower_bound=1,
    )
    beam_options: str = setting(
        flags.DEFINE_string, "Options for other runners, passed to Beam unchanged.", ""
    )

    def count(self, num_units: int) -> int:
        """Returns the number of worker processes of DirectRunner for so many units."""
        return max(1, min(self.num_workers or available_cpus(), num_units))

    def describe(self, num_units: int) -> str:
        """Describes the workers for the plan of a job."""
        if self.runner != "DirectRunner":
            return f"of {self.runner}"
        return f"{self.count(num_units)}, about {_WORKER_GIGABYTES} GB of memory each"


def define_flags() -> None:
    """Defines the flags of the Beam runner."""
    define_settings_flags(Workers)


def run(function: Callable[[Any], None], units: Sequence[Any], workers: Workers) -> None:
    """Calls `function` on every unit, in any order and on any number of workers.

    `function` and `units` must be picklable. Each call should take a few minutes at most. Beam may
    call `function` more than once for the same unit.

    Raises:
      UserError: if the runner is unknown, its packages are missing, or it rejects the options; if a
        worker process was killed.
    """
    if not units:
        return
    runner, options = workers.runner, shlex.split(workers.beam_options)
    num_workers = 1
    _check_packages(options)
    beam = _import_beam(runner)
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    chosen: Any = runner
    if runner == "DirectRunner":
        # Create the runner here. Passing its name makes Beam try to download another runner first.
        num_workers = workers.count(len(units))
        processes = SubprocessSDKEnvironment.from_command_string(_WORKER_COMMAND)
        chosen = FnApiRunner(default_environment=processes if num_workers > 1 else None)
        options.append(f"--direct_num_workers={num_workers}")
        logging.disable(logging.ERROR)  # Every error is also raised as an exception.
    try:
        try:
            pipeline = beam.Pipeline(runner=chosen, options=PipelineOptions(options))
        except (ValueError, ImportError, AttributeError) as error:
            raise UserError(
                f"--runner={runner}, --beam_options={options}: {error}; expected a runner of "
                "Apache Beam, or MODULE.CLASS of one that is installed, and its options"
            ) from error
        # Without Reshuffle, Beam would fuse the steps and give all units to one worker.
        _ = (
            pipeline
            | "Units" >> beam.Create(units)
            | "Spread" >> beam.Reshuffle()
            | "Work" >> beam.Map(function)
        )
        _run_in_thread(lambda: pipeline.run().wait_until_finish())
    except RuntimeError as error:
        # If Beam runs the function in this process, it wraps KeyboardInterrupt and SystemExit.
        if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):
            raise error.__context__ from None
        raise
    finally:
        logging.disable(logging.NOTSET)


def _import_beam(runner: str):
    """Imports Beam without its warnings, and the packages of Dataflow if `runner` needs them."""
    logging.disable(logging.WARNING)  # On import, Beam warns about missing optional packages.
    try:
        with warnings.catch_warnings():
            # Google's packages warn of Python versions that are near their end of life.
            warnings.simplefilter("ignore", FutureWarning)
            import apache_beam
            import apache_beam.runners.portability.fn_api_runner

            if "dataflow" in runner.lower():
                _check_dataflow()
    finally:
        logging.disable(logging.NOTSET)
    return apache_beam


def _check_packages(beam_options: Sequence[str]) -> None:
    """Raises a UserError if workers install the wheel but the job is run from a checkout."""
    option = re.search(r"--extra_package\S*[= ]\S*albert_tf-\S+", " ".join(beam_options))
    if option and not __name__.startswith("albert_tf."):
        raise UserError(
            f"--beam_options={option[0]}: workers would not find the modules of this checkout, as "
            "the wheel has them under albert_tf.pipelines: install the wheel and start the job by "
            "`albert PROGRAM` instead of `python -m pipelines.PROGRAM`"
        )


def _check_dataflow() -> None:
    """Raises a UserError if Beam's Google Cloud packages are not installed."""
    try:
        from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--runner=DataflowRunner needs apache-beam[gcp] ({error}): pip install "
            "'albert_tf[dataflow]', or 'dist/albert_tf-VERSION-py3-none-any.whl[dataflow]'"
        ) from error


def _run_in_thread(run_pipeline: Callable[[], object]) -> None:
    """Calls `run_pipeline` in a thread; raises what it raises.

    A signal therefore interrupts this function and not Beam, which would first let the workers
    finish their units, wait for them forever or report their end as the error.
    """
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run_and_report() -> None:
        try:
            run_pipeline()
            ends.put(None)
        except BaseException as error:
            ends.put(error)

    default_hook = threading.excepthook
    threading.excepthook = functools.partial(_on_thread_failure, ends, default_hook)
    try:
        # Daemon threads start daemon threads: at exit, Python waits for none of them.
        threading.Thread(target=run_and_report, daemon=True).start()
        error = ends.get()
    except (KeyboardInterrupt, SystemExit) as end:  # of a signal
        atexit.register(_exit_without_threads, getattr(end, "code", 128 + signal.SIGINT))
        raise
    finally:
        threading.excepthook = default_hook
    if error:
        raise error


def _exit_without_threads(code: int) -> None:
    """Ends the process. Beam's threads, still at work, could change the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _on_thread_failure(
    ends: queue.SimpleQueue, default_hook: Callable, args: threading.ExceptHookArgs
) -> None:
    """Reports that a worker process was killed. Beam would wait for it forever."""
    if "Worker subprocess exited" in str(args.exc_value):
        atexit.register(_exit_without_threads, 2)
        ends.put(
            UserError(
                "a worker process was killed, perhaps because memory ran out; run the same "
                "command again to resume. A smaller --num_workers needs less memory"
            )
        )
    # Threads connected to the killed process fail with gRPC errors, which add no information.
    elif not args.exc_type.__module__.startswith("grpc"):
        default_hook(args)
