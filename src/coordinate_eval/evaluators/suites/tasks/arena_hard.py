"""Arena-Hard (Li et al., 2024), v0.1 and v2.0: questions, and what a judge is told.

The judge's instructions are published in a Python file. It is read as data and never run.
"""

import ast
from collections.abc import Mapping
from typing import Any

import datasets
import yaml

from coordinate_eval.evaluators.judged.published import chosen, read_lines, read_text

_ARENA_HARD = (
    "https://raw.githubusercontent.com/lmarena/arena-hard-auto/"
    "196f6b826783b3da7310e361a805fa36f0be83f3"
)
_PROMPTS = (
    f"{_ARENA_HARD}/utils/judge_utils.py"
    "#sha256=cbb093f4fc27408d8447e946392f26f98538b1e3950f574aca91a0f7595167b4"
)
_FILES = {
    "v0.1": {
        "questions": f"{_ARENA_HARD}/data/arena-hard-v0.1/question.jsonl"
        "#sha256=2650242d2883f22b2abd498f273b6a7e02253cce533f5c91a858e1d44aa3002f",
        "template": f"{_ARENA_HARD}/config/arena-hard-v0.1.yaml"
        "#sha256=87ac45a188421218349697b5eda95cc77f6e60b6f61495d67d8cfebba3210528",
        "prompts": _PROMPTS,
    },
    "v2.0": {
        "questions": f"{_ARENA_HARD}/data/arena-hard-v2.0/question.jsonl"
        "#sha256=a75cef6623db6b27aec810497b059f0659705d7ff48dcbccc5bd5b130728ac73",
        "template": f"{_ARENA_HARD}/config/arena-hard-v2.0.yaml"
        "#sha256=ee68e5c6ac98a79720bf11014fc3f7fc3c3e5899153b3b08efe3db0e174215a0",
        "prompts": _PROMPTS,
    },
}
_SETTINGS = "JUDGE_SETTINGS"


def arena_hard(
    data_files: Mapping[str, str] | None = None, **_: object
) -> dict[str, datasets.Dataset]:
    """Return the documents of v0.1, from the files that are given, else the published."""
    return {"test": datasets.Dataset.from_list(documents(chosen(_FILES["v0.1"], data_files)))}


def arena_hard_v2(
    data_files: Mapping[str, str] | None = None, **_: object
) -> dict[str, datasets.Dataset]:
    """Return the documents of v2.0, as `arena_hard` does."""
    return {"test": datasets.Dataset.from_list(documents(chosen(_FILES["v2.0"], data_files)))}


def documents(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a document for each question, with the judge's instructions and the user's message."""
    settings = assigned(read_text(files["prompts"]), _SETTINGS)
    template = yaml.safe_load(read_text(files["template"]))["prompt_template"]
    found = []
    for question in read_lines(files["questions"], "category"):
        if question["category"] not in settings:
            raise ValueError(f"{_SETTINGS} has no instructions for {question['category']!r}")
        found.append(
            {
                "id": str(question["uid"] if "uid" in question else question["question_id"]),
                "category": question["category"],
                "question": _prompt(question),
                "system_prompt": settings[question["category"]]["system_prompt"],
                "prompt_template": template,
            }
        )
    return found


def assigned(source: str, name: str) -> Any:  # noqa: ANN401  what a file says
    """Return the literal that a Python file assigns to a name. It may refer to earlier ones."""
    known: dict[str, ast.expr] = {}

    class Known(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return known.get(node.id, node)

    try:
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                known[statement.targets[0].id] = Known().visit(statement.value)
        return ast.literal_eval(known[name])
    except (SyntaxError, KeyError) as error:
        raise ValueError(f"the judge's prompts are a Python file that assigns {name}") from error


def _prompt(question: Mapping[str, Any]) -> str:
    """Return the only question, in the form of today or in that of the first release."""
    return str(question["prompt"] if "prompt" in question else question["turns"][0]["content"])
