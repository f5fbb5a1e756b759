"""Test modules stand alone: what several of them need lies in modules that are no tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported(module: Path) -> Iterator[str]:
    """The dotted names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{each.name}" for each in node.names)


def test_no_module_imports_from_a_test_module_or_a_conftest() -> None:
    modules = [path for path in TESTS.rglob("*.py") if "fixtures" not in path.parts]
    tests = {path.stem for path in modules if path.stem.startswith("test_")} | {"conftest"}
    assert len(tests) > 100
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in modules
        for name in imported(path)
        if name.startswith((".", "tests.")) and tests & set(name.split("."))
    }
    assert not found


def test_modules_have_names_of_their_own() -> None:
    """Pytest imports a module below a folder that is no package by its name alone."""
    names = [
        path.name for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()
    ]
    assert len(names) == len(set(names)), [name for name in set(names) if names.count(name) > 1]
