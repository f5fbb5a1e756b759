"""Programs in six languages, compiled and run: right ones pass, wrong ones do not."""

import pytest
from tests.languages import ask, need, question, tasks_module
from tests.problems import LANGUAGES, PROBLEMS, multipl_e, solution
from tests.random_examples import LONG
from tests.sandboxes import CONFINING, STRONG, opened, works

from coordinate_eval.evaluators.sandbox.confinement import Level
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
from coordinate_eval.records import Question

COMPILED = [language for language in LANGUAGES if language != "python"]
QUICK = [language for language in COMPILED if language not in ("go", "rust")]
"""Those whose libraries take no time to compile."""
BEST = next((level for level in Level if level is not Level.LIMITS and works(level)), None)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The strongest sandbox; it compiles the libraries of a language once."""
    if BEST is None:
        pytest.skip("nothing confines programs here")
    return Sandbox(BEST)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_solution_passes_and_every_mutated_one_fails(sandbox: Sandbox, language: str) -> None:
    need(language)
    for problem in PROBLEMS:
        right = sandbox.run(question(problem, language))
        assert (right.passed, right.result) == (True, "passed"), problem.name
        wrong = sandbox.run(question(problem, language, mutated=True))
        assert wrong.result.startswith("failed: "), problem.name
        assert "it does not compile" not in wrong.result


@pytest.mark.parametrize("language", COMPILED)
def test_programs_of_multipl_e(sandbox: Sandbox, language: str) -> None:
    need(language)
    module = tasks_module("multipl_e")
    for problem in PROBLEMS[:1]:
        row = multipl_e(problem, language)
        end = "" if language in ("js", "go") else row["stop_tokens"][0]
        for mutated in (False, True):
            body = solution(problem, language, mutated).rstrip().removesuffix("}").rstrip()
            body = body.removesuffix("}").rstrip() if language == "java" else body
            text = f"{body}\n}}\n" if not end else f"{body}{end} and so on"
            ((program,),) = module.programs([[text]], [row])
            tests = f"{row['tests']}\n{module._ENDS.get(language, '')}"
            answer = sandbox.run(ask(f"{program}\n{tests}", language))
            assert answer.passed == (not mutated), answer.result
            assert "it does not compile" not in answer.result


# Each level compiles anew what programs import. Those above have the first one, and those of
# tests/hostile/test_compilers.py that of an ordinary user.
@pytest.mark.parametrize("of", CONFINING if LONG else CONFINING[-1:])
@pytest.mark.parametrize("language", COMPILED if LONG else QUICK)
def test_at_every_level_as_root_and_as_an_ordinary_user(
    of: tuple[Level, bool], language: str
) -> None:
    need(language)
    with opened(of) as runner:
        right = runner.run(question(PROBLEMS[0], language))
        assert (right.passed, right.result) == (True, "passed")
        assert any(digit.isdecimal() for digit in right.toolchain)
        assert not runner.run(question(PROBLEMS[0], language, mutated=True)).passed


@pytest.mark.parametrize("language", COMPILED)
def test_what_does_not_compile_says_why(sandbox: Sandbox, language: str) -> None:
    need(language)
    asked = question(PROBLEMS[0], language)
    answer = sandbox.run(ask(f"{asked.content}\n%% not a program", language))
    assert answer.result.startswith("failed: ")
    assert "program" in answer.result or "Main" in answer.result
    assert len(answer.result) <= 500


ENDLESS = {
    "cpp": "int main() { for (volatile int i = 0;;) i = i + 1; }",
    "go": 'package main\nimport "testing"\nfunc TestIt(t *testing.T) { for { } }',
    "java": "class Main { public static void main(String[] a) { while (true) { } } }",
    "js": "while (true) { }",
    "rust": "#[test] fn it() { loop { } }",
}


@pytest.mark.parametrize("language", COMPILED)
def test_a_program_without_end_times_out(sandbox: Sandbox, language: str) -> None:
    need(language)
    sandbox.run(question(PROBLEMS[0], language))  # its libraries are compiled now
    answer = sandbox.run(ask(ENDLESS[language], language, seconds=3.0))
    assert (answer.passed, answer.result) == (False, "timed out")


@pytest.mark.parametrize("level", STRONG)
def test_a_program_may_be_no_text(level: Level) -> None:
    need("js")
    answer = Sandbox(level).run(Question.model_validate({
        "id": "q", "kind": "program", "content": "process.exit('\\ud800' === 'x' ? 1 : 0) // \0",
        "timeout_seconds": 600.0, "language": "js",
    }))  # fmt: skip
    assert answer.passed, answer.result
