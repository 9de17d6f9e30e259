"""Implements the command `albert`, which is installed by the wheel and works in any directory.

For example, `albert pretrain --help` runs `python -m pipelines.pretrain --help`.
"""

import ast
import importlib.util
import runpy
import sys
from pathlib import Path

from albert_tf.jobs import program

# Modules of the programs in a checkout, in the order of a typical workflow.
PROGRAMS = (
    "pipelines.train_vocab",
    "pipelines.create_pretraining_data",
    "pipelines.index_records",
    "pipelines.show_records",
    "pipelines.pretrain",
    "pipelines.evaluate",
    "pipelines.minimal_pairs",
    "pipelines.finetune",
    "pipelines.predict",
    "pipelines.convert_checkpoint",
    "export.export_saved_model",
    "export.convert",
    "export.ask",
    "pipelines.data.demo_corpus",
)


def main() -> None:
    """Runs the program named by the first argument and passes it the other arguments."""
    modules = {name.rpartition(".")[2]: program.installed_module(name) for name in PROGRAMS}
    wanted = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if wanted in modules:
        del sys.argv[1]
        runpy.run_module(modules[wanted], run_name="__main__", alter_sys=True)
    elif wanted in ("--help", "-h", "help"):
        lines = ["albert PROGRAM [--flag=value ...]; albert PROGRAM --help explains one", ""]
        lines += [f"  {name:24} {_summary(module)}" for name, module in modules.items()]
        program.print_help("\n".join(lines))
    else:
        program.fail(f"no program {wanted!r}: expected {', '.join(modules)}")


def _summary(module: str) -> str:
    """Returns the first line of a program's docstring, without importing the program."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no source file of {module}: install albert_tf again")
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (docstring or module).splitlines()[0]


if __name__ == "__main__":
    main()
