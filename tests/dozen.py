"""A dozen small problems in six languages, as rows of HumanEval-X and of MultiPL-E.

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
        "largest", ("a", "b"), {(1, 2): 2, (9, 3): 9, (-4, -5): -4},
        "int r = a; if (b > a) r = b;",
        "r := a; if b > a { r = b }",
        "let r = if b > a { b } else { a };",
        "r = max(a, b)",
    ),
    Problem(
        "divisor", ("a", "b"), {(12, 18): 6, (7, 5): 1, (0, 4): 4},
        "int r = a, s = b; while (s != 0) { int t = r % s; r = s; s = t; }",
        "r, s := a, b; for s != 0 { r, s = s, r % s }",
        "let (mut r, mut s) = (a, b); while s != 0 { let t = r % s; r = s; s = t; }",
        "r, s = a, b\nwhile s:\n    r, s = s, r % s",
    ),
    Problem(
        "factorial", ("n",), {(0,): 1, (3,): 6, (7,): 5040},
        "int r = 1; for (int i = 2; i <= n; i++) r = r * i;",
        "r := 1; for i := 2; i <= n; i++ { r *= i }",
        "let mut r = 1; for i in 2..=n { r *= i; }",
        "r = 1\nfor i in range(2, n + 1):\n    r *= i",
    ),
    Problem(
        "fibonacci", ("n",), {(0,): 0, (1,): 1, (10,): 55},
        "int r = 0, s = 1; for (int i = 0; i < n; i++) { int t = r + s; r = s; s = t; }",
        "r, s := 0, 1; for i := 0; i < n; i++ { r, s = s, r + s }",
        "let (mut r, mut s) = (0, 1); for _ in 0..n { let t = r + s; r = s; s = t; }",
        "r, s = 0, 1\nfor _ in range(n):\n    r, s = s, r + s",
    ),
    Problem(
        "smallest_factor", ("n",), {(2,): 2, (35,): 5, (49,): 7},
        "int r = 2; while (n % r != 0) r++;",
        "r := 2; for n % r != 0 { r++ }",
        "let mut r = 2; while n % r != 0 { r += 1; }",
        "r = 2\nwhile n % r:\n    r += 1",
    ),
    Problem(
        "digits", ("n",), {(0,): 0, (9,): 9, (4071,): 12},
        "int r = 0, m = n; while (m > 0) { r = r + m % 10; m = (m - m % 10) / 10; }",
        "r := 0; for m := n; m > 0; m /= 10 { r += m % 10 }",
        "let (mut r, mut m) = (0, n); while m > 0 { r += m % 10; m /= 10; }",
        "r = sum(map(int, str(n)))",
    ),
    Problem(
        "evens", ("a", "b"), {(1, 2): 1, (0, 10): 6, (3, 3): 0},
        "int r = 0; for (int i = a; i <= b; i++) if (i % 2 == 0) r++;",
        "r := 0; for i := a; i <= b; i++ { if i%2 == 0 { r++ } }",
        "let mut r = 0; for i in a..=b { if i % 2 == 0 { r += 1; } }",
        "r = sum(i % 2 == 0 for i in range(a, b + 1))",
    ),
    Problem(
        "power", ("a", "n"), {(2, 10): 1024, (7, 0): 1, (-3, 3): -27},
        "int r = 1; for (int i = 0; i < n; i++) r = r * a;",
        "r := 1; for i := 0; i < n; i++ { r *= a }",
        "let mut r = 1; for _ in 0..n { r *= a; }",
        "r = a ** n",
    ),
    Problem(
        "triangle", ("n",), {(0,): 0, (1,): 1, (100,): 5050},
        "int r = n * (n + 1) / 2;",
        "r := n * (n + 1) / 2",
        "let r = n * (n + 1) / 2;",
        "r = n * (n + 1) // 2",
    ),
    Problem(
        "backwards", ("n",), {(7,): 7, (120,): 21, (1234,): 4321},
        "int r = 0, m = n; while (m > 0) { r = 10 * r + m % 10; m = (m - m % 10) / 10; }",
        "r := 0; for m := n; m > 0; m /= 10 { r = 10*r + m%10 }",
        "let (mut r, mut m) = (0, n); while m > 0 { r = 10 * r + m % 10; m /= 10; }",
        "r = int(str(n)[::-1])",
    ),
    Problem(
        "divisors", ("n",), {(1,): 1, (12,): 6, (13,): 2},
        "int r = 0; for (int i = 1; i <= n; i++) if (n % i == 0) r++;",
        "r := 0; for i := 1; i <= n; i++ { if n%i == 0 { r++ } }",
        "let mut r = 0; for i in 1..=n { if n % i == 0 { r += 1; } }",
        "r = sum(n % i == 0 for i in range(1, n + 1))",
    ),
    Problem(
        "halvings", ("n",), {(1,): 0, (6,): 8, (27,): 111},
        "int r = 0, m = n; while (m != 1) { m = m % 2 == 0 ? m / 2 : 3 * m + 1; r++; }",
        "r := 0; for m := n; m != 1; r++ { if m%2 == 0 { m /= 2 } else { m = 3*m + 1 } }",
        "let (mut r, mut m) = (0, n);"
        " while m != 1 { m = if m % 2 == 0 { m / 2 } else { 3 * m + 1 }; r += 1; }",
        "r, m = 0, n\nwhile m != 1:\n    m, r = m // 2 if m % 2 == 0 else 3 * m + 1, r + 1",
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
