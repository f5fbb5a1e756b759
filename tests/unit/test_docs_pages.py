"""The generated reference has every option and setting; CONTRIBUTING.md names files that exist."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.inputs import layers

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coordinate_eval"


@pytest.fixture(scope="module")
def docs_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "scripts" / "docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_option_is_in_the_reference(docs_pages: ModuleType) -> None:
    page = docs_pages.commands()
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]  # a group
    section = page.split("## `coordinate-eval run`")[1].split("\n## ")[0]
    options = [name for each in run.params for name in each.opts if name.startswith("--")]
    assert len(options) > 20
    for option in options:
        assert f"`{option}`" in section
    assert "`coordinate-eval priors show`" in page
    assert "_supervise" not in page
    assert "## Exit status" in page


def test_every_setting_is_in_the_reference(docs_pages: ModuleType) -> None:
    page = docs_pages.settings_page()
    for name in layers.names():
        variable = layers.PREFIX + name.replace(".", "_").upper()
        assert f"| `{name.rpartition('.')[2]}` | `{variable}` |" in page
    assert str(Path.home()) + "/" not in page


def test_links_of_pages_from_the_root(docs_pages: ModuleType) -> None:
    pages = docs_pages.pages()
    assert f"]({docs_pages.SOURCES}SECURITY.md)" in pages["contributing.md"]
    assert "](architecture.md)" in pages["contributing.md"]
    assert f"]({docs_pages.SOURCES}LICENSE)" in pages["contributing.md"]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = {*re.findall(r"`([\w./*-]+(?:\.\w+|/))`", text), *re.findall(r"\]\(([\w./-]+)\)", text)}
    paths = {each for each in named if "/" in each and not each.startswith(("/", ".", "~"))}
    bases = [ROOT, PACKAGE, PACKAGE / "coordinator", PACKAGE / "evaluators"]
    missing = [each for each in paths if not any(list(base.glob(each)) for base in bases)]
    assert not missing


def test_tests_of_attacks_that_are_named_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(named) > 10
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_examples_stand_in_the_how_to() -> None:
    pages = [path.read_text() for path in (ROOT / "docs" / "how-to").glob("*.md")]
    shown = [each for page in pages for each in re.findall(r'^--8<-- "(.*)"$', page, re.M)]
    assert {"examples/after_each_save.py", "examples/crontab", "examples/suite.yaml"} <= {*shown}
    assert all((ROOT / each).is_file() for each in shown)
