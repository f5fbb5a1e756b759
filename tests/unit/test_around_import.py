"""Changes to a library that wait for its import."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from coordinate_eval.evaluators.around_import import hidden

IMPORTS = """
import sys
from contextlib import contextmanager
from coordinate_eval.evaluators.around_import import around_import
"""


def run(script: str, folder: Path) -> None:
    """Run a script in a folder with modules; it must end well."""
    argv = [sys.executable, "-c", IMPORTS + script]
    done = subprocess.run(argv, cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SCRIPT = """
@contextmanager
def around():
    seen.append("before")
    yield
    sys.modules["library.part"].value = "changed"
    seen.append("after")

seen = []
around_import("library.part", around)
around_import("library.part", around)
assert "library" not in sys.modules and not seen
from library import value
assert value == "changed", value
assert seen == ["before", "before", "after", "after"], seen
around_import("library.part", around)
assert seen[4:] == ["before", "after"]
import library.other
"""


def test_a_module_is_changed_before_anybody_sees_it(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "__init__.py").write_text("from library.part import value\n")
    (library / "part.py").write_text("value = 'as it was'\n")
    (library / "other.py").write_text("")
    run(SCRIPT, tmp_path)


FAILING = """
@contextmanager
def around():
    seen.append("before")
    yield

seen = []
around_import("wrong", around)
for _ in range(2):
    try:
        import wrong
    except OSError:
        pass
assert seen == ["before", "before"], seen
"""


def test_an_import_that_fails_is_tried_again_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("raise OSError('not now')\n")
    run(FAILING, tmp_path)


@pytest.mark.parametrize("imported", [True, False])
def test_a_hidden_package_cannot_be_imported_until_it_is_shown(imported: bool) -> None:
    before = importlib.import_module("colorsys")
    if not imported:
        del sys.modules["colorsys"]
    try:
        with hidden("colorsys"):
            assert importlib.util.find_spec("colorsys") is None
            with pytest.raises(ImportError):
                importlib.import_module("colorsys")
        assert (sys.modules.get("colorsys") is before) == imported
        assert importlib.import_module("colorsys")
    finally:
        sys.modules["colorsys"] = before
