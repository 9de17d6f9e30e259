"""Runs the units of a job on an Apache Beam runner. No other module imports apache_beam."""

import atexit
import dataclasses
import functools
import logging
import os
import queue
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import joblib
from absl import flags

import albert_tf
from albert_tf.jobs.settings import setting
from albert_tf.storage.errors import UserError

# Command that starts a worker process of DirectRunner. Unlike Beam's own command, it discards
# stderr (exceptions still reach the main process), leaves a SIGTERM to the main process, and exits
# on Ctrl-C and when the main process ends, so that no worker writes beside a new job.
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
        """Returns the number of worker processes of DirectRunner for `num_units` units."""
        return max(1, min(self.num_workers or joblib.cpu_count(), num_units))

    def describe(self, num_units: int) -> str:
        """Describes the workers for the plan of a job."""
        if self.runner != "DirectRunner":
            return f"of {self.runner}"
        return f"{self.count(num_units)}, about 0.6 GB of memory each"  # pipelines/README.md


def run(function: Callable[[Any], None], units: Sequence[Any], workers: Workers) -> None:
    """Calls `function` on every unit, in any order, on any number of workers, perhaps repeatedly.

    `function` and `units` must be picklable. Each call should take a few minutes at most.

    Raises:
      UserError: if the runner is unknown, its packages are missing, or it rejects the options; if a
        worker process was killed.
    """
    if not units:
        return
    runner, options = workers.runner, shlex.split(workers.beam_options)
    _import_beam()
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    chosen: Any = runner
    if runner == "DirectRunner":
        # Create the runner here. Passing its name makes Beam try to download another runner first.
        count = workers.count(len(units))
        processes = SubprocessSDKEnvironment.from_command_string(_WORKER_COMMAND)
        chosen = FnApiRunner(default_environment=processes if count > 1 else None)
        options.append(f"--direct_num_workers={count}")
        logging.disable(logging.ERROR)  # Every error is also raised as an exception.
    try:
        try:
            pipeline = beam.Pipeline(runner=chosen, options=PipelineOptions(options))
        except (ValueError, ImportError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"--runner={runner}, --beam_options={options}: {reason}; expected a runner of "
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
    except ImportError as error:  # of Dataflow without its packages
        raise UserError(f"--runner={runner}: {error}") from error
    except RuntimeError as error:
        # If Beam runs the function in this process, it wraps KeyboardInterrupt and SystemExit.
        if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):
            raise error.__context__ from None
        raise
    finally:
        logging.disable(logging.NOTSET)


def _import_beam() -> None:
    """Imports Beam without its warnings."""
    logging.disable(logging.WARNING)  # On import, Beam warns about missing optional packages.
    try:
        with warnings.catch_warnings():
            # Google's packages warn of Python versions that are near their end of life.
            warnings.simplefilter("ignore", FutureWarning)
            import apache_beam.runners.portability.fn_api_runner  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)


def _run_in_thread(run_pipeline: Callable[[], object]) -> None:
    """Calls `run_pipeline` in a thread, so that a signal does not interrupt Beam.

    Beam would let the workers finish their units, wait forever or report their end as the error.
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
    if error:  # Keep the hook: Beam's other threads may fail later, behind the error message.
        raise error
    threading.excepthook = default_hook


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
