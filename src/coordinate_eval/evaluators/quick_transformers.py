"""The import of transformers, in half of its CPU time. Without PyTorch, it takes most of a second.

It asks which distributions have which packages, for which all of their files are listed, and needs
the answer for three. It reads its hundreds of models for the names that they export, takes each
apart into lines to find one of them, and does so twice, since it remembers too few.
"""

import functools
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution
from typing import Any

from coordinate_eval.evaluators.around_import import around_import

_MODULE = "transformers.utils.import_utils"


@functools.cache
def quicken() -> None:
    """Have transformers be imported with less work, if this process imports it from now on."""
    around_import(_MODULE, _quicker)


class Providers(Mapping[str, list[str]]):
    """The distributions of each package, looked for when they are asked for.

    It has what `importlib.metadata.packages_distributions` returns, which is called only to list
    all packages.
    """

    def __init__(self, of_all: Callable[[], Mapping[str, list[str]]]) -> None:
        self._of_all = functools.cache(of_all)

    def __getitem__(self, package: str) -> list[str]:
        names = [d.metadata["Name"] for d in importlib.metadata.distributions() if has(d, package)]
        if not names:
            raise KeyError(package)
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_all())

    def __len__(self) -> int:
        return len(self._of_all())


def has(distribution: Distribution, package: str) -> bool:
    """Return whether a distribution has a package or module of this name at its top."""
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return package in declared
    files = distribution.read_text("RECORD")
    if files is None:
        files = "\n".join(map(str, distribution.files or ()))
    if package not in files:  # which takes far less time to see
        return False
    inside = rf"^{re.escape(package)}(/.*)?\.py(,|$)"
    return re.search(inside, files, re.MULTILINE) is not None


@contextmanager
def _quicker() -> Iterator[None]:
    """Change what the module asks while it is run, and how it reads others later.

    A version of transformers that does without one of these is left as it is.
    """
    of_all = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = lambda: Providers(of_all)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = of_all
    module: Any = sys.modules[_MODULE]
    structure: Any = getattr(module, "create_import_structure_from_path", None)
    if hasattr(structure, "__wrapped__"):  # a cache of 128 folders, of several hundred
        module.create_import_structure_from_path = functools.cache(structure.__wrapped__)
    if fetch := getattr(module, "fetch__all__", None):
        module.fetch__all__ = _from_the_last(fetch)


def _from_the_last(fetch: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that reads a module's text from the last line on that it would look for."""

    @functools.wraps(fetch)
    def fetching(text: str) -> Any:  # noqa: ANN401  whatever this version returns
        return fetch(text[text.rfind("\n__all__") + 1 :])

    return fetching
