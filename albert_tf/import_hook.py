"""Runs code of ours after the import of a package that is imported later: `add`."""

import sys


def add(name: str, action) -> None:
    """Calls `action(module)` once, when the package `name`, not imported yet, has been imported."""
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds the package as Python does, and calls the action when its code has run."""

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
                execute(module)
                sys.meta_path.remove(self)  # only now: an import that failed may be tried again
                self.action(module)

            # This loader is the package's own: no other import calls it.
            spec.loader.exec_module = execute_once  # type: ignore[method-assign]
        return spec
