"""Suites: defaults, shipped ones, and messages that name the line."""

from pathlib import Path

import pytest

from coordinate_eval.coordinator import suite
from coordinate_eval.errors import UserError
from coordinate_eval.records import Suite


def parse(text: str, folder: Path = Path()) -> Suite:
    return suite.parse(text, where="my.yaml", folder=folder)


def test_defaults_are_merged() -> None:
    made = parse(
        "defaults: {num_fewshot: 2, gen_kwargs: {temperature: 0.5}}\n"
        "datasets:\n- {name: a, task: t}\n- {name: b, task: t, num_fewshot: 0}\n- plain\n"
    )
    assert [d.num_fewshot for d in made.datasets] == [2, 0, 2]
    assert [d.task for d in made.datasets] == ["t", "t", "plain"]
    assert made.name == "my"


def test_the_digest_is_of_the_meaning() -> None:
    one = parse("datasets:\n- {name: a, task: t, num_fewshot: 1}\n")
    same = parse("defaults: {num_fewshot: 1}\ndatasets: [{task: t, name: a}]  # same\n")
    other = parse("datasets:\n- {name: a, task: t, num_fewshot: 2}\n")
    assert one.digest == same.digest != other.digest


def test_include_path_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "s.yaml").write_text("include_path: [tasks]\ndatasets: [a]\n")
    assert suite.load(str(tmp_path / "s.yaml")).include_path == [str(tmp_path / "tasks")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("datasets:\n- {name: a, task: t}\n- {name: a, task: u}\n", 3, "twice"),
        ("datasets:\n- {name: a, task: t}\n- {name: A, task: u}\n", 3, "twice"),
        ("datasets:\n- {name: a, task: t, shots: 3}\n", 2, "shots"),
        ("datasets:\n- name: a\n  task: t\n  items: 0\n", 4, "items is 0"),
        ("datasets:\n- {name: ../a, task: t}\n", 2, "name"),
        ("datasets:\n- {name: a}\n", 2, "needs a task"),
        ("datasets:\n- {name: a, items: 5, prior: {gpu_seconds: -1}}\n", 2, "gpu_seconds"),
        ("datasets:\n- {name: a, items: 5, prior: {gpu_seconds: .nan}}\n", 2, "gpu_seconds"),
        ("dataset: []\n", 1, "unknown key"),
        ("datasets: []\n", 1, "list"),
        ("defaults: {color: red}\ndatasets: [a]\n", 1, "color"),
        ("datasets:\n- {name: a, task: t\n", 3, ""),
        ("datasets:\n- {name: a, name: b, task: t}\n", 2, "twice"),
        ("include_path: [nowhere]\ndatasets: [a]\n", 1, "no folder"),
        ("- a\n", 1, "mapping"),
        ("", 1, "mapping"),
        ("datasets:\n- !!python/object/apply:os.system [echo]\n", 2, ""),
        ("datasets:\n- {name: a, task: t, num_fewshot: many}\n", 2, "num_fewshot"),
    ],
)
def test_mistakes_name_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert f"my.yaml, line {line}:" in str(caught.value)
    assert words in str(caught.value)


def test_shipped_suites_load() -> None:
    for name in suite.shipped():
        assert suite.load(name).datasets


def test_an_unknown_suite_names_those_there_are() -> None:
    with pytest.raises(UserError, match="base"):
        suite.load("nothing-like-this")
    with pytest.raises(UserError, match="cannot be read"):
        suite.load("nothing-like-this.yaml")
