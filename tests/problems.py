"""Three small problems in six languages, as rows of HumanEval-X and of MultiPL-E.

Each has numbers as arguments and one as its result, and a solution in every language. A mutated
solution gives the next number.
"""

import textwrap
from typing import Any, NamedTuple

LANGUAGES = ("cpp", "go", "java", "js", "python", "rust")
_TASK_IDS = {
    "cpp": "CPP", "go": "Go", "java": "Java", "js": "JavaScript", "python": "Python",
    "rust": "Rust",
}  # fmt: skip


class Problem(NamedTuple):
    """One problem: its cases are arguments and results; a solution ends with the result."""

    name: str
    arguments: tuple[str, ...]
    cases: dict[tuple[int, ...], int]
    c: str
    go: str
    rust: str
    python: str


PROBLEMS = [
    Problem(
        "divisor", ("a", "b"), {(12, 18): 6, (7, 5): 1, (0, 4): 4},
        "int r = a, s = b; while (s != 0) { int t = r % s; r = s; s = t; }",
        "r, s := a, b; for s != 0 { r, s = s, r % s }",
        "let (mut r, mut s) = (a, b); while s != 0 { let t = r % s; r = s; s = t; }",
        "r, s = a, b\nwhile s:\n    r, s = s, r % s",
    ),
    Problem(
        "fibonacci", ("n",), {(0,): 0, (1,): 1, (10,): 55},
        "int r = 0, s = 1; for (int i = 0; i < n; i++) { int t = r + s; r = s; s = t; }",
        "r, s := 0, 1; for i := 0; i < n; i++ { r, s = s, r + s }",
        "let (mut r, mut s) = (0, 1); for _ in 0..n { let t = r + s; r = s; s = t; }",
        "r, s = 0, 1\nfor _ in range(n):\n    r, s = s, r + s",
    ),
    Problem(
        "power", ("a", "n"), {(2, 10): 1024, (7, 0): 1, (-3, 3): -27},
        "int r = 1; for (int i = 0; i < n; i++) r = r * a;",
        "r := 1; for i := 0; i < n; i++ { r *= a }",
        "let mut r = 1; for _ in 0..n { r *= a; }",
        "r = a ** n",
    ),
]  # fmt: skip


def solution(problem: Problem, language: str, mutated: bool = False) -> str:
    """Return the body of the function, as HumanEval-X has it: with the braces that close it."""
    plus = " + 1" if mutated else ""
    match language:
        case "python":
            return textwrap.indent(f"{problem.python}\nreturn r{plus}\n", "    ")
        case "go":
            return f"    {problem.go}\n    return r{plus}\n}}\n"
        case "rust":
            return f"    {problem.rust}\n    return r{plus};\n}}\n"
        case "js":
            return f"    {problem.c.replace('int ', 'let ')}\n    return r{plus};\n}}\n"
        case "java":
            return f"        {problem.c}\n        return r{plus};\n    }}\n}}"
        case _:
            return f"    {problem.c}\n    return r{plus};\n}}\n"


def humaneval_x(problem: Problem, language: str) -> dict[str, Any]:
    """Return a problem as a row of HumanEval-X."""
    name, arguments = problem.name, problem.arguments
    calls = {
        f"{name}({', '.join(map(str, given))})": wanted for given, wanted in problem.cases.items()
    }
    row: dict[str, Any] = {}
    match language:
        case "cpp":
            prompt = f"/* {name} */\nint {name}({_each(arguments, 'int {}')}){{\n"
            checks = "".join(f"    assert({call} == {is_}); \n" for call, is_ in calls.items())
            test = f"#undef NDEBUG\n#include<assert.h>\nint main(){{\n{checks}}}\n"
        case "go":
            head = f"func {name}({_each(arguments, '{} int')}) int {{\n"
            prompt = f'import (\n    "math"\n)\n\n// {name}\n{head}'
            checks = "".join(f"    assert.Equal({is_}, {call})\n" for call, is_ in calls.items())
            test = f"func TestIt(t *testing.T) {{\n    assert := assert.New(t)\n{checks}}}\n"
            row["import"] = 'import (\n    "math"\n)\n'
            row["test_setup"] = (
                'package main\n\nimport (\n    "testing"\n'
                '    "github.com/stretchr/testify/assert"\n)\n'
            )
        case "java":
            head = f"    public int {name}({_each(arguments, 'int {}')}) {{\n"
            prompt = f"import java.util.*;\n\nclass Solution {{\n    /** {name} */\n{head}"
            checks = ", ".join(f"s.{call} == {is_}" for call, is_ in calls.items())
            test = (
                "public class Main {\n    public static void main(String[] args) {\n"
                f"        Solution s = new Solution();\n        List<Boolean> all = Arrays.asList("
                f"{checks});\n        if (all.contains(false)) throw new AssertionError();\n"
                "    }\n}\n"
            )
        case "js":
            prompt = f"/* {name} */\nconst {name} = ({', '.join(arguments)}) => {{\n"
            checks = "".join(f"  console.assert({call} === {is_})\n" for call, is_ in calls.items())
            test = f"const test = () => {{\n{checks}}}\n\ntest()\n"
        case "python":
            prompt = f'def {name}({_each(arguments, "{}: int")}) -> int:\n    """{name}"""\n'
            test = "".join(f"assert {call} == {is_}\n" for call, is_ in calls.items())
        case _:
            prompt = f"\n/* {name} */\n"
            row["declaration"] = (
                "use rand::Rng;\nuse regex::Regex;\nuse md5;\n\n"
                f"fn {name}({_each(arguments, '{}: i32')}) -> i32 {{\n"
            )
            checks = "".join(f"        assert_eq!({call}, {is_});\n" for call, is_ in calls.items())
            test = (
                "\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n"
                f"    fn test_it() {{\n{checks}    }}\n}}\n"
            )
    return {
        "task_id": f"{_TASK_IDS[language]}/{PROBLEMS.index(problem)}",
        "prompt": prompt,
        "declaration": "",
        "canonical_solution": solution(problem, language),
        "test": test,
        "example_test": test,
    } | row


def _each(arguments: tuple[str, ...], form: str) -> str:
    return ", ".join(form.format(name) for name in arguments)


def multipl_e(problem: Problem, language: str) -> dict[str, Any]:
    """Return a problem as a row of MultiPL-E. There is none in Python."""
    name, arguments = problem.name, problem.arguments
    equal = [
        (f"candidate({', '.join(map(str, given))})", wanted)
        for given, wanted in problem.cases.items()
    ]
    match language:
        case "cpp":
            prompt = f"#include<assert.h>\n// {name}\nint {name}({_each(arguments, 'int {}')}) {{\n"
            checks = "".join(f"    assert({call} == ({is_}));\n" for call, is_ in equal)
            tests = f"}}\nint main() {{\n    auto candidate = {name};\n{checks}}}\n"
            stops = ["\n}"]
        case "go":
            prompt = (
                'package it_test\n\nimport (\n    "testing"\n    "fmt"\n)\n\n'
                f"// {name}\nfunc {name}({_each(arguments, '{} int')}) int {{\n"
            )
            checks = "".join(
                f'    if fmt.Sprint({call}) != "{is_}" {{ t.Errorf("{name}") }}\n'
                for call, is_ in equal
            )
            tests = f"func TestIt(t *testing.T) {{\n    candidate := {name}\n{checks}}}\n"
            stops = ["\nfunc", "struct", "\n// "]
        case "java":
            prompt = (
                "import java.util.*;\nimport org.javatuples.*;\nclass Problem {\n"
                f"    // {name}\n    public static int {name}({_each(arguments, 'int {}')}) {{\n"
            )
            checks = "".join(
                f"        assert({call.replace('candidate', name)} == ({is_}));\n"
                for call, is_ in equal
            )
            tests = f"    }}\n    public static void main(String[] args) {{\n{checks}    }}\n}}\n"
            stops = ["\n    }\n"]
        case "js":
            prompt = f"//{name}\nfunction {name}({', '.join(arguments)}){{\n"
            checks = "".join(f"  assert.deepEqual({call},{is_});\n" for call, is_ in equal)
            tests = (
                "const assert = require('node:assert');\n\nfunction test() {\n"
                f"  let candidate = {name};\n{checks}}}\n\ntest();\n"
            )
            stops = ["\nfunction ", "\n/*", "\n//", "\nconsole.log"]
        case _:
            prompt = f"/// {name}\nfn {name}({_each(arguments, '{}: i32')}) -> i32 {{\n"
            checks = "".join(f"    assert_eq!({call}, {is_});\n" for call, is_ in equal)
            tests = f"}}\n\nfn main() {{\n    let candidate = {name};\n{checks}}}\n"
            stops = ["\n}"]
    return {"name": name, "language": language, "prompt": prompt, "tests": tests} | {
        "stop_tokens": stops
    }
