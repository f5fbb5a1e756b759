"""The harness tasks that come with the base suite: right answers score, wrong ones do not.

Their data comes from a hub. Here each task is loaded with a few rows of the same columns in its
place; TheoremQA and MGSM also with all of their real items, where these are.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.languages import tasks_module
from tests.problems import LANGUAGES, PROBLEMS, humaneval_x, multipl_e, solution
from tests.shipped import SHIPPED, Bench, bench, real
from tests.tiny import tiny_model

pytest.importorskip("lm_eval")

from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.code_eval import answer_to, answered_by, program_question
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.priors import catalogue
from coordinate_eval.records import Dataset, Request


def runs(program: str) -> bool:
    """Return whether a program of these tests, which are harmless, passes."""
    try:
        exec(program, {})
    except Exception:
        return False
    return True


SVAMP = [
    {"Body": "Ann has 8 nuts. ", "Question": "How many are 18 times as many?", "Answer": "144.0"},
    {"Body": "Bo had 1450 pins and lost none.", "Question": "How many has he?", "Answer": "1450.0"},
]


@pytest.mark.parametrize("task", ["svamp_test", "svamp_train"])
def test_svamp(task: str, tmp_path: Path) -> None:
    made = bench(tmp_path, task, SVAMP)
    assert made.built.items == 2
    assert made.prompt().count("The answer is") == 8
    assert made.prompt().endswith("Q: Ann has 8 nuts. How many are 18 times as many?\nA:")
    right = [" 8 * 18 = 144. The answer is 144.", " He has them all. The answer is $1,450.00."]
    for filtered in ("strict-match", "flexible-extract"):
        assert made.score(right, f"exact_match,{filtered}") == 1.0
        assert made.score([right[0], " The answer is 1451."], f"exact_match,{filtered}") == 0.5
    assert made.score(["144", "1450"], "exact_match,strict-match") == 0.0
    assert made.score(["144", "1450"], "exact_match,flexible-extract") == 1.0


def test_both_parts_of_svamp_are_one_group(tmp_path: Path) -> None:
    """Tasks of one's own folder win, as where there is no network."""
    for split, rows in (("test", SVAMP), ("train", SVAMP[:1])):
        data = tmp_path / f"{split}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {
            "include": str(SHIPPED / f"svamp_{split}.yaml"),
            "task": f"svamp_{split}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {split: str(data)}},
        }
        (tmp_path / f"{split}.yaml").write_text(yaml.safe_dump(task))
    evaluator = HarnessEvaluator(
        tokenizer=tiny_model(), include_path=[str(SHIPPED), str(tmp_path)], max_length=50_000
    )
    dataset = Dataset(name="svamp", task="svamp")
    asked: list[Request] = []
    assert evaluator.build(dataset, asked.append).items == 3
    said = "The answer is 144."
    responses = [respond(each, text=said, tokens=1, finish="stop") for each in asked]
    results = evaluator.finish(dataset, responses, {})
    assert results.results["svamp"]["exact_match,strict-match"] == pytest.approx(2 / 3)
    assert results.results["svamp_test"]["exact_match,strict-match"] == 0.5


THEOREMS = [
    ("2", "integer", ["2", "2.0", "$2$", "2 ways"], ["3", "2.1", "", "-2"]),
    ("-1.047", "float", ["-1.047", "-1.05 rad", "−1.03"], ["1.047", "-1.2", "none"]),
    ("0.0001", "float", ["1e-4", "1.0 \\times 10^{-4}", "1/10000"], ["1", "10^-4 or so"]),
    ("0.5", "float", ["\\frac{1}{2}", "$1/2$", ".5"], ["1/0", "2/1"]),
    ("True", "bool", ["True", "yes", "true, since it is"], ["False", "no", "perhaps"]),
    ("False", "bool", ["False", "No"], ["True"]),
    ("[0, 5]", "list of integer", ["[0, 5]", "0, 5", "(0,5)"], ["[5, 0]", "[0, 5, 1]", "0"]),
    ("[0.5, 0.66667]", "list of float", ["[1/2, 2/3]", "{0.51, 0.66}"], ["[0.5]", "[0.5, 0.9]"]),
    ("(b)", "option", ["(b)", "b", "(B) sin(2x)"], ["(a)", "", "none"]),
]


@pytest.mark.parametrize(("answer", "kind", "right", "wrong"), THEOREMS)
def test_answers_of_theoremqa(answer: str, kind: str, right: list[str], wrong: list[str]) -> None:
    is_right = tasks_module("theoremqa").is_right
    for said in right:
        assert is_right(said, answer, kind), said
    for said in wrong:
        assert not is_right(said, answer, kind), said


def test_theoremqa(tmp_path: Path) -> None:
    rows = [
        {"Question": f"What is question {n}?", "Answer": answer, "Answer_type": kind, "Picture": ""}
        for n, (answer, kind, *_) in enumerate(THEOREMS)
    ]
    made = bench(tmp_path, "theoremqa", rows)
    assert made.prompt().count("The answer is") == 5
    assert made.prompt().endswith("Question: What is question 0?\nAnswer:")
    gold = [f" It is known. The answer is {row['Answer']}." for row in rows]
    assert made.score(gold, "exact_match,none") == 1.0
    assert made.score(["no idea"] * len(rows), "exact_match,none") == 0.0


def test_all_of_theoremqa(tmp_path: Path) -> None:
    rows = json.loads(real("theoremqa/theoremqa_test.json").read_text())
    made = bench(tmp_path, "theoremqa", [row | {"Answer": str(row["Answer"])} for row in rows])
    assert made.built.items == 800
    gold = [f" So it is. The answer is {row['Answer']}." for row in rows]
    assert made.score(gold, "exact_match,none") == 1.0
    turned = [*gold[1:], gold[0]]
    assert made.score(turned, "exact_match,none") < 0.2


CRUX = [
    {"code": "def f(n):\n    return [n] * 2", "input": "3", "output": "[3, 3]", "id": "a"},
    {"code": "def f(s, t):\n    return s + t", "input": "'a', '#'", "output": "'a#'", "id": "b"},
    {"code": "def f(x):\n    return None", "input": "1", "output": "None", "id": "c"},
]


def test_outputs_of_cruxeval(tmp_path: Path) -> None:
    made = bench(tmp_path, "cruxeval_o", CRUX)
    assert made.prompt().endswith("def f(n):\n    return [n] * 2\nassert f(3) ==")
    assert made.prompt().count("assert f(") == 3
    assert not made.built.asks
    assert made.score([" [3,3]", " 'a#'", " None"], "pass@1,none") == 1.0
    assert made.score([" [3, 3]  # twice", ' "a#"', " None"], "pass@1,none") == 1.0
    assert made.score([" f(3)", " 'a' + '#'", " __import__('os')"], "pass@1,none") == 0.0
    assert made.score(["(" * 5000, "", "1 2"], "pass@1,none") == 0.0


def test_inputs_of_cruxeval(tmp_path: Path) -> None:
    made = bench(tmp_path, "cruxeval_i", CRUX)
    assert made.prompt().endswith("# One call that gives [3, 3]\nassert")
    assert made.built.asks
    gold = [f" f({row['input']}) == {row['output']}" for row in CRUX]
    assert made.score(gold, "pass@1,none", runs) == 1.0
    others = [" f(1 + 2) == [3, 3]", " f('', 'a#') == 'a#'  # also", " f(7)"]
    assert made.score(others, "pass@1,none", runs) == 1.0
    wrong = [" f(4) == [4, 4]", " True or f('a', '#') == 'a#'", " f(1) == None; x = 1"]
    assert made.score(wrong, "pass@1,none", runs) == 0.0
    assert program_question("pass", 3.0).timeout_seconds == 3.0


def test_gaokao_bench(tmp_path: Path) -> None:
    rows = [
        {"question": "1. 下列正确的是\nA. 一\nB. 二\n", "answer": ["B"], "index": 0, "score": 6},
        {"question": "2. 下列正确的是\nA. 一\nB. 二\n", "answer": ["A"], "index": 1, "score": 6},
    ]
    made = bench(tmp_path, "gaokao_bench_chemistry", rows)
    assert made.prompt().endswith("题目：1. 下列正确的是\nA. 一\nB. 二\n\n解题思路：")
    assert made.score(["A 不对。\n答案：B", "故选：A。"], "acc,none") == 1.0
    assert made.score(["答案：A\n再想想。\n答案：B", "B"], "acc,none") == 0.5
    several = bench(
        tmp_path, "gaokao_bench_english_cloze", [{"question": "…", "answer": [*"CFAED"]}]
    )
    assert several.score(["答案：C F A E D"], "acc,none") == 1.0
    assert several.score(["答案：36. C 37. F 38. A 39. D 40. E"], "acc,none") == 0.6
    assert several.score(["答案：CFA"], "acc,none") == 0.6
    more = bench(tmp_path, "gaokao_bench_physics", [{"question": "…", "answer": ["AC"]}])
    assert more.score(["答案：C、A"], "acc,none") == 1.0
    assert more.score(["答案：A"], "acc,none") == 0.0


@pytest.mark.parametrize("language", ["en", "zh", "sw"])
def test_real_items_of_mgsm(language: str, tmp_path: Path) -> None:
    import lm_eval.tasks

    with real(f"mgsm/mgsm_{language}.tsv").open(newline="") as file:
        read = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = [
        {"question": question, "answer": None, "answer_number": int(number.replace(",", ""))}
        for question, number in read
    ]
    name = f"mgsm_native_cot_{language}"
    folder = Path(lm_eval.tasks.__file__).parent / "mgsm" / "native_cot"
    assert name in yaml.safe_load((SHIPPED / "mgsm.yaml").read_text())["task"]
    made = Bench(tmp_path, folder / f"{name}.yaml", rows)
    assert made.built.items == 250
    gold = [f" … {row['answer_number']}" for row in rows]
    assert made.score(gold, "exact_match,flexible-extract") == 1.0


@pytest.mark.parametrize("language", LANGUAGES)
def test_humaneval_x(language: str, tmp_path: Path) -> None:
    rows = [humaneval_x(problem, language) for problem in PROBLEMS]
    made = bench(tmp_path, f"humaneval_x_{language}", rows)
    assert made.built.languages == [language]
    assert made.built.metric_cpu_seconds > 0
    head = "fn divisor(a: i32" if language == "rust" else "divisor"
    assert head in made.prompt()
    goods = [solution(problem, language) for problem in PROBLEMS]
    asked: list[str] = []

    def passes(program: str) -> bool:
        asked.append(program)
        return "WRONG" not in program

    cut = "    WRONG }" if language == "java" else "WRONG }"
    rambling = [f"{good}\n{'x = WRONG' if language == 'python' else cut}" for good in goods]
    assert made.score(rambling, "pass@1,program", passes) == 1.0  # all after its end is cut
    assert all(row["test"].strip() in program for row, program in zip(rows, asked, strict=True))
    bad = goods[0].replace("r", "WRONG", 1)
    wrong = made.score([bad, *goods[1:]], "pass@1,program", passes)
    assert wrong == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("language", "text", "body"),
    [
        ("go", "    if x { y() }\n}\n\nfunc other() {}", "    if x { y() }\n}"),
        ("java", "        f();\n    }\n}\n// more", "        f();\n    }\n}"),
        ("java", "        f();\n    }\n    public static void main(", "        f();\n    }\n}"),
        ("cpp", "    for (;;) { x(); }\n    y(", "    for (;;) { x(); }"),
        ("js", "  return 1", "  return 1"),
        ("python", "    return 1\n\n\nprint(2)\n    3", "    return 1\n\n"),
    ],
)
def test_where_an_answer_of_humaneval_x_ends(language: str, text: str, body: str) -> None:
    assert tasks_module("humaneval_x").answer(language, text) == body


def test_go_imports_what_the_answer_uses_and_its_tests_do_not(tmp_path: Path) -> None:
    row = humaneval_x(PROBLEMS[0], "go")
    ((program,),) = tasks_module("humaneval_x").programs(
        [["    // as in strings.\n    fmt.Println(rand.Int())\n    return a\n}\n"]], [row]
    )
    assert program.count("import (") == 2
    for package, wanted in (("fmt", 1), ("math/rand", 1), ("strings", 0), ("math", 0)):
        assert program.count(f'"{package}"') == wanted


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "python"])
def test_multipl_e(language: str, tmp_path: Path) -> None:
    rows = [multipl_e(problem, language) for problem in PROBLEMS[:2]]
    made = bench(tmp_path, f"multipl_e_{language}", rows)
    assert made.built.languages == [language]
    asked: list[str] = []

    def passes(program: str) -> bool:
        asked.append(program)
        return "MORE" not in program

    texts = [f" body {n}{row['stop_tokens'][0]} MORE" for n, row in enumerate(rows)]
    assert made.score(texts, "pass@1,program", passes) == 1.0
    for program, row in zip(asked, rows, strict=True):
        assert program.startswith(row["prompt"].strip() + " body ")
        assert row["tests"] in program


def test_several_samples_give_an_unbiased_estimate(tmp_path: Path) -> None:
    """Of four samples two pass: pass@1 is 1/2, and pass@2 is 1 - C(2, 2) / C(4, 2)."""
    row = humaneval_x(PROBLEMS[0], "js")
    made = bench(tmp_path, "humaneval_x_js", [row])
    predictions = [["a", "b", "c", "WRONG"]]
    with answered_by(lambda asked: answer_to(asked, passed=asked.content[0] in "ab", result="")):
        scores = tasks_module("humaneval_x").pass_at_k([row["test"]], predictions, [1, 2, 8], "js")
    assert made.built.languages == ["js"]
    assert scores == pytest.approx({"pass@1": 0.5, "pass@2": 5 / 6})


@pytest.mark.parametrize("name", suite.shipped())
def test_every_task_of_a_shipped_suite_is_there(name: str) -> None:
    from lm_eval.tasks import TaskManager

    base = suite.load(name)
    index = TaskManager(include_path=base.include_path).task_index
    for dataset in base.datasets:
        if dataset.task is not None:
            found = leaves(index, dataset.task)
            assert set(found) <= set(index)
            # Both tasks of cruxeval have every item, as two requests in the catalogue.
            shared = len(found) // 2 if dataset.name == "cruxeval" else len(found)
            entry = catalogue.entries()[dataset.name]
            assert shared == entry.tasks, dataset.name
            if entry.num_fewshot:
                samplers = {index[n].cfg.get("fewshot_config", {}).get("sampler") for n in found}
                assert entry.same_examples == (samplers == {"first_n"}), dataset.name


def leaves(index: dict[str, Any], member: Any) -> list[str]:
    """The tasks that a task, a tag or a group consists of."""
    if isinstance(member, dict):
        inside = member.get("task")
        if isinstance(inside, list):
            return [name for one in inside for name in leaves(index, one)]
        member = member.get("group") or inside
    entry = index[member]
    if entry.kind.name == "TAG":
        return [name for name, other in index.items() if member in other.tags]
    if entry.kind.name == "GROUP":
        return [name for one in entry.cfg["task"] for name in leaves(index, one)]
    return [member]
