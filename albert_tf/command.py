"""The command `albert`: `albert pretrain --help` is `python -m pipelines.pretrain --help`.

The wheel installs it, for use from any directory.
"""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys
from pathlib import Path

# In the order of a model's life.
PROGRAMS = (
    "pipelines.train_vocab",
    "pipelines.create_pretraining_data",
    "pipelines.index_records",
    "pipelines.data.show_records",
    "pipelines.pretrain",
    "pipelines.evaluate",
    "pipelines.finetune",
    "pipelines.convert_checkpoint",
    "pipelines.reproduce",
    "export.export_saved_model",
    "export.tflite",
    "export.ask",
    "export.serving.client",
    "pipelines.data.demo_corpus",
)


def main() -> None:
    """Runs the program that the first argument names, with the other arguments."""
    modules = {module.rpartition(".")[2]: module for module in PROGRAMS}
    wanted = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if wanted in modules:
        del sys.argv[1]
        runpy.run_module(modules[wanted], run_name="__main__", alter_sys=True)
    elif wanted in ("--help", "-h", "help"):
        print("albert PROGRAM [--flag=value ...]; albert PROGRAM --help explains one\n")
        for name, module in modules.items():
            print(f"  {name:24} {_summary(module)}")
    else:
        print(f"error: no program {wanted!r}: expected {', '.join(modules)}", file=sys.stderr)
        sys.exit(2)


def _summary(module: str) -> str:
    """Returns the first line of a program's docstring; the program is not imported."""
    source = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)).splitlines()[0]


if __name__ == "__main__":
    main()
