"""The datasets with judges and compilers beside others, in one run on a real controller."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dev_cluster import DevCluster
from tests.judges import Judge, Reply, says
from tests.languages import need
from tests.problems import LANGUAGES, PROBLEMS, humaneval_x
from tests.random_examples import LONG
from tests.runs import TASKS, Workspace, results
from tests.slurm.runs import FOUR_TASKS, all_gone

pytest.importorskip("lm_eval")

from coordinate_eval.coordinator.inputs.suites.suite_yaml import shipped_folder

COMPILED = LANGUAGES if LONG else ("cpp", "js")
"""Languages whose libraries take no time to compile, in a short run."""
KEY = "sk-a-secret-of-the-judge"
JUDGED = {"mt_bench": 2, "vicuna_bench": 1, "arena_hard": 2}
"""How often each question is asked: two turns, one, and two games."""
SHORT = {"max_gen_toks": 64}
"""The tiny model has a context of 1,024 tokens."""
PROMPTS = {
    "single-v1": "{question} | {answer}",
    "single-math-v1": "{question} | {ref_answer_1} | {answer}",
    "single-v1-multi-turn": "{question_1} | {answer_1} | {question_2} | {answer_2}",
    "single-math-v1-multi-turn": "{question_1} | {ref_answer_1} | {answer_1} | {question_2} | "
    "{ref_answer_2} | {answer_2}",
}


def judge(body: dict[str, Any], number: int) -> Reply:
    """Rate, or compare where a baseline's answer is shown; the same words for the same answer."""
    said = json.dumps(body["messages"])
    if "BASELINE" in said:
        return says("[[A>B]]" if len(said) % 2 else "[[B>>A]]")
    return says(f"[[{sum(said.encode()) % 10 + 1}]]")


class Data:
    """Questions, references and prompts of the judged datasets, and problems of HumanEval-X."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        prompts = [
            {"name": name, "system_prompt": "Rate.", "prompt_template": template}
            for name, template in PROMPTS.items()
        ]
        turns: list[dict[str, Any]] = [
            {"question_id": number, "category": category, "turns": ["Ask.", "Ask again."]}
            for number, category in enumerate(("writing", "math", "stem"))
        ]
        references = [{"question_id": 1, "choices": [{"index": 0, "turns": ["two", "zero"]}]}]
        common = {"references": references, "prompts": prompts}
        single = [question | {"turns": question["turns"][:1]} for question in turns]
        arena = [{"uid": uid, "category": "arena", "prompt": f"{uid}?"} for uid in "abcd"]
        settings = {"arena": {"baseline": "m", "system_prompt": "Compare."}}
        template = r'prompt_template: "Q {QUESTION}\nA {ANSWER_A}\nB {ANSWER_B}"'
        self.files: dict[str, dict[str, Any]] = {
            "mt_bench": {"questions": turns, **common},
            "vicuna_bench": {"questions": single, **common},
            "arena_hard": {
                "questions": arena,
                "prompts": f"JUDGE_SETTINGS = {settings!r}\n",
                "template": template,
            },
        }
        baseline = [{"uid": each["uid"], "answer": "BASELINE"} for each in arena]
        self.baseline = self._written("baseline.jsonl", baseline)

    def suite(self) -> Path:
        """Write tasks that read these files, and a suite of them and of others."""
        folder = self.folder / "tasks"
        folder.mkdir()
        shipped = shipped_folder() / "tasks"
        datasets: list[dict[str, Any]] = [{"name": name, "task": name} for name in FOUR_TASKS]
        for name, files in self.files.items():
            paths = {key: self._written(f"{name}-{key}", text) for key, text in files.items()}
            self._task(name, shipped, dataset_kwargs={"data_files": paths})
            judged = {"name": name, "rubric": name, "chat_template": True}
            datasets.append({"task": f"own_{name}", "gen_kwargs": SHORT, **judged})
        for language in COMPILED:
            rows = [humaneval_x(problem, language) for problem in PROBLEMS[:1]]
            local = self._written(f"{language}.jsonl", rows)
            self._task(
                f"humaneval_x_{language}", shipped, dataset_path="json", dataset_name=None,
                dataset_kwargs={"data_files": {"test": local}},
            )  # fmt: skip
        group = yaml.safe_load((shipped / "humaneval_x.yaml").read_text())
        group |= {"group": "own_x", "task": [f"own_humaneval_x_{name}" for name in COMPILED]}
        (folder / "own_x.yaml").write_text(yaml.safe_dump(group))
        datasets.append({"name": "humaneval_x", "task": "own_x", "gen_kwargs": SHORT})
        content = {"include_path": [str(TASKS), str(folder)], "datasets": datasets}
        path = self.folder / "whole.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def _task(self, name: str, shipped: Path, **changes: Any) -> None:
        content = {"include": str(shipped / f"{name}.yaml"), "task": f"own_{name}", **changes}
        (self.folder / "tasks" / f"{name}.yaml").write_text(json.dumps(content))

    def _written(self, name: str, content: Any) -> str:
        if not isinstance(content, str):
            content = "".join(json.dumps(row) + "\n" for row in content)
        (self.folder / name).write_text(content)
        return str(self.folder / name)


def test_datasets_with_judges_and_compilers_are_scored_beside_others(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    for language in COMPILED:
        need(language)
    user, data = Workspace(tmp_path), Data(tmp_path)
    with Judge(judge, models=["judge"], key=KEY) as server:
        run = user.submit(
            data.suite(), "--judge-url", server.url, "--judge-model", "judge",
            COORDINATE_EVAL_JUDGE_BASELINE=data.baseline,
            COORDINATE_EVAL_JUDGE_API_KEY_ENV="JUDGE_KEY", JUDGE_KEY=KEY,
        )  # fmt: skip
        found = results(run)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert found["complete"], (found["missing"], found["failures"])
    assert not found["missing"]
    scored = found["results"]
    assert {*FOUR_TASKS, *JUDGED, "humaneval_x"} <= scored.keys()
    asked = {name: len(data.files[name]["questions"]) * times for name, times in JUDGED.items()}
    assert {name: judge["questions"] for name, judge in found["judge"].items()} == asked
    assert {judge["without_verdict"] for judge in found["judge"].values()} == {0}
    assert scored["humaneval_x"]["pass@1,program"] == 0  # made up by the simulated engine
    said = user.call("samples", run, "--dataset", "humaneval_x", COLUMNS="200").stdout
    assert re.search(r"failed: ", said)
    all_gone(user)
