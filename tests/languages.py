"""Which languages can be tested on this machine, and programs of them."""

import importlib.util
from types import ModuleType

import pytest

from coordinate_eval.coordinator.inputs.suites.suite_yaml import shipped_folder
from coordinate_eval.evaluators.harness.code_eval import program_question
from coordinate_eval.evaluators.sandbox.toolchains import LANGUAGES, missing_packages
from coordinate_eval.records import Question
from tests.problems import Problem, humaneval_x, solution


def need(language: str) -> None:
    """Skip a test whose language has no compiler here, and name the packages to install."""
    if missing := missing_packages([language]):
        pytest.skip(f"no {LANGUAGES[language].title} here: apt-get install {' '.join(missing)}")


def tasks_module(name: str) -> ModuleType:
    """A module beside the shipped tasks, as the harness imports it."""
    spec = importlib.util.spec_from_file_location(name, shipped_folder() / "tasks" / f"{name}.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def question(problem: Problem, language: str, *, mutated: bool = False) -> Question:
    """The question for a problem's solution, as the task of HumanEval-X asks it."""
    row = humaneval_x(problem, language)
    body = solution(problem, language, mutated)
    ((program,),) = tasks_module("humaneval_x").programs([[body]], [row])
    return ask(f"{program}\n{row['test']}", language)


def ask(program: str, language: str, seconds: float | None = None) -> Question:
    """The question for a program. Its time is ample: the machine may be busy."""
    return program_question(program, seconds or 600.0, language)
