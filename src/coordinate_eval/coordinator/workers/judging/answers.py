"""The answers of a judge that are kept for all runs of a user, and what is odd about answers.

Each is a file, named by the question's content: no question is paid for twice.
"""

import contextlib
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from coordinate_eval import _files
from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.judged.thinking import spoken
from coordinate_eval.records import Answer, Question, Record, schema


def count_odd(answers: Iterable[Answer]) -> dict[str, int]:
    """Return how many answers are odd, by kind. The names are those of the results."""
    return dict(sorted(Counter(kind for answer in answers for kind in _kinds(answer)).items()))


def _kinds(answer: Answer) -> Iterator[str]:
    if not answer.passed:
        yield "refused"
        return
    said = spoken(answer.result)
    if said is None:
        yield "thinking_unended"
    elif not said.strip():
        yield "empty"
    if answer.cut:
        yield "cut"
    yield from (f"without_{name}" for name in answer.without)


class _Kept(Record):
    """One file: an answer, and the judge that gave it."""

    schema_: Literal["coordinate-eval/judged@1"] = schema("coordinate-eval/judged@1")

    judge: str
    answer: Answer


class KeptAnswers:
    """The answers of one judge, a file each. Without a folder that can be used, it keeps none."""

    def __init__(self, cache: Path, judge: str) -> None:
        self._judge = judge
        digest = hashlib.sha256(judge.encode()).hexdigest()[:10]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", judge).strip("-.")[-40:]
        mine = cache / f"judged-{os.geteuid()}"
        self._folder: Path | None = mine / f"{name or 'judge'}-{digest}"
        try:
            for folder in (mine, self._folder):
                _files.own_folder(folder)
        except (OSError, CoordinateError) as error:
            sys.stderr.write(f"the judge's answers are not kept for later runs: {error}\n")
            self._folder = None

    def find(self, question: Question) -> Answer | None:
        """Return the kept answer to a question; None if there is no usable one."""
        if self._folder is not None:
            with contextlib.suppress(OSError, CoordinateError):
                found = _files.read_record_if_there(self._path(self._folder, question.id), _Kept)
                if found and (found.judge, found.answer.id) == (self._judge, question.id):
                    return found.answer.model_copy(
                        update={"kept": True, "tokens": 0, "seconds": 0.0}
                    )
        return None

    def store(self, answer: Answer) -> None:
        """Keep an answer. An answer that is there stays. An error costs later runs a question."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                kept = _Kept(judge=self._judge, answer=answer)
                _files.create(self._path(self._folder, answer.id), kept.model_dump_json())

    @staticmethod
    def _path(folder: Path, identity: str) -> Path:
        return folder / identity[:2] / f"{identity}.json"
