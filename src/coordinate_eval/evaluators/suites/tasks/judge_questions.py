"""Questions to a judge: each document has the messages of one, which are its prompt as they are."""

import json
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.task import ConfigurableTask


def read(*, file: str, **_: object) -> dict[str, datasets.Dataset]:
    """Return the questions in a file of JSON lines."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return {"test": datasets.Dataset.from_list([json.loads(line) for line in lines])}


class JudgeQuestions(ConfigurableTask):  # type: ignore[misc]  # lm_eval has no types
    """A task whose documents are conversations."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={key: config[key] for key in config if key != "class"})

    def fewshot_context(self, doc: dict[str, Any], **options: Any) -> str:  # noqa: ANN401  as there
        """Return the prompt of a document, in the judge's chat template.

        Where the template takes no system message, that is put before the first question.
        """
        first, *others = (dict(message) for message in doc["messages"])
        text: str = options["chat_template"]([first, *others])
        if first["role"] != "system" or first["content"].strip() in text:
            return text
        joined = f"{first['content']}\n\n{others[0]['content']}"
        merged: str = options["chat_template"]([others[0] | {"content": joined}, *others[1:]])
        return merged


def answered(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return whether the judge said anything."""
    return {"answered": float(bool(results[0].strip()))}
