"""Changes to a library that wait for its import, which takes seconds and may never come."""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Around = Callable[[], AbstractContextManager[None]]
"""Makes a context in which a module is run. Nobody else sees the module before it is left."""


def around_import(name: str, around: Around) -> None:
    """Have a module run inside such a context, now if it is there, else when it is imported.

    An exception of the context is one of the import.
    """
    if name in sys.modules:
        with around():
            pass
    else:
        sys.meta_path.insert(0, _Finder(name, around))


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """Have a package look as if it were not installed while the block runs.

    A library that is imported meanwhile does without it from then on. Others can import it.
    """
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]
    before = modules.get(package)
    modules[package] = None
    try:
        yield
    finally:
        if before is None:
            del modules[package]
        else:
            modules[package] = before


class _Finder(MetaPathFinder):
    """Finds one module as the other finders do, and has it run inside a context."""

    def __init__(self, name: str, around: Around) -> None:
        self._name, self._around = name, around
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec; None for every other module."""
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        loader = spec.loader if spec is not None else None
        if loader is not None:
            run = loader.exec_module

            def run_inside(module: ModuleType) -> None:
                with self._around():
                    run(module)

            loader.exec_module = run_inside  # type: ignore[method-assign]
        return spec
