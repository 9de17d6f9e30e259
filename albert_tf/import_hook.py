"""Runs code of ours with the import of a package that is imported later: `add`."""

import sys


def add(name: str, action) -> None:
    """Calls `action(execute, module)` when the package `name` is imported; once.

    Args:
      name: a package that is not imported yet.
      action: calls `execute(module)`, which runs the package's own code, and what belongs around
        it.
    """
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds the package as Python does, and lets the action import it."""

    def __init__(self, name, action):
        self.name, self.action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            # Here, as TensorFlow looks for Keras long before it imports it.
            def execute_once(module):
                self.action(execute, module)
                sys.meta_path.remove(self)  # only now: an import that failed may be tried again

            # This loader is the package's own: no other import calls it.
            spec.loader.exec_module = execute_once  # type: ignore[method-assign]
        return spec
