"""Datasets that nobody can score here, and a checkpoint whose tensors are not its config's.

Both are found before a GPU works for them. To list a model's tensors takes torch and seconds the
first time, so a child process does it while prompts are built. If the child cannot tell, the run
goes on.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coordinate_eval import _files
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import (
    request_indexes,
    unfinished,
    unscored_datasets,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.starting.baselines import name_by_item, why_incomplete
from coordinate_eval.errors import ServerRefuses, ServerSilent, UserError
from coordinate_eval.evaluators.confined.evaluator import find_level, refusal
from coordinate_eval.evaluators.judged.completions import Completion
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.sandbox import toolchains
from coordinate_eval.evaluators.sandbox.toolchains import missing_packages
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.replies import MOST_WORDS
from coordinate_eval.records import DatasetRequests, Rubric


def refuse(run_dir: RunDir, run: Run) -> list[str]:
    """Give up the datasets that cannot be scored here.

    A dataset with generated answers is given up where nothing confines its scoring. A dataset with
    programs is given up where their compiler is not installed. A dataset that compares answers with
    a baseline's is given up if some of these are missing. A judged dataset is given up if the judge
    refuses the key or a question, has no such model, or too short a context. A judge that does not
    answer may answer later.

    This is called before the first job is submitted, so that no GPU works for these datasets. This
    node speaks for the nodes of scoring and metric jobs: a node that can do less refuses its work.

    Returns:
        events for the user, mostly none.
    """
    unscored = {dataset.name for dataset in unscored_datasets(run_dir, run)}
    indexes = {n: i for n, i in request_indexes(run_dir, run).items() if n in unscored}
    events = []
    here = f"on {os.uname().nodename}"
    for reasons, why in (
        (dict(_unconfined(run, indexes)), f"Nothing confines what their scoring may run {here}"),
        (dict(_without_compiler(indexes)), f"A compiler of their programs is missing {here}"),
        (dict(_without_baseline(run_dir, indexes)), "The baseline lacks answers to compare with"),
    ):
        for name, reason in reasons.items():
            _files.write(run_dir.dataset_error(name), f"{reason}\n")
        if reasons:
            events.append(f"not run: {', '.join(reasons)}. {why}; results.json says what to do")
            indexes = {name: index for name, index in indexes.items() if name not in reasons}
    unanswered = {span.dataset for span in unfinished(run_dir, run, Pullers.JUDGE)}
    judged = {name: index for name, index in indexes.items() if name in unanswered}
    if judged:
        events += _ask_the_judge(run_dir, run, judged)
    return events


def _ask_the_judge(
    run_dir: RunDir, run: Run, judged: Mapping[str, DatasetRequests]
) -> Iterator[str]:
    """Ask the judge whether it can be asked. Give up the datasets for which it cannot.

    It is asked a question of each dataset, with the parameters of its rubric.
    """
    settings = run.settings.judge
    if settings.checkpoint:
        return  # it is no server
    rubrics = {d.name: d.rubric for d in run.suite.datasets if d.rubric and d.name in judged}
    asked = {name: _example(judged[name], rubric) for name, rubric in rubrics.items()}
    try:
        access = Access.of(
            settings.base_url or "", settings.model or "", settings.api_key_env, os.environ
        )
        context, tried = asyncio.run(_try_out(access, asked))
    except ServerSilent as error:
        yield (
            f"the judge of {', '.join(judged)} does not answer: {error}. Their answers are "
            "collected, and it is asked again when they are there"
        )
        return
    except (ServerRefuses, UserError) as error:
        context, tried = None, dict.fromkeys(judged, error)
    refused: dict[str, list[str]] = {}
    for name in judged:
        found, rubric = tried.get(name), rubrics.get(name)
        why = _without_room(rubric, context, settings.model or "") if rubric else ""
        if not why and isinstance(found, BaseException):
            why = str(found)
        if why:
            _files.write(run_dir.dataset_error(name), f"{why}\n")
            refused.setdefault(why, []).append(name)
        elif isinstance(found, Completion) and rubric:
            yield from _odd(name, rubric, found)
    yield from (f"not run: {', '.join(names)}. {why}" for why, names in refused.items())


def _example(index: DatasetRequests, rubric: Rubric) -> dict[str, Any]:
    """Return a question to the judge: of the dataset, or a short one if its index has none."""
    short = {"messages": [{"role": "user", "content": "Say OK."}]}
    sampling = {"temperature": rubric.temperature, "max_tokens": rubric.max_tokens}
    return {**(json.loads(index.judge_example) if index.judge_example else short), **sampling}


def _without_room(rubric: Rubric, context: int | None, model: str) -> str:
    """Return why a judge with this context would refuse every question; empty if it would not."""
    if context is None or context > rubric.max_tokens:
        return ""
    return (
        f"judge {model} has a context of {context:,} tokens, and its answers alone may take "
        f"{rubric.max_tokens:,} (max_tokens of rubric {rubric.name}): serve it with a longer "
        "context and resume the run, or start one with a rubric of your own"
    )


_LACKS = {
    "empty": "has no words: if it thinks, raise max_tokens of the rubric, or see how the server "
    "parses its thinking",
    "thinking_unended": "is thinking without an end: raise max_tokens of the rubric",
    "out_of_range": "has a rating that the rubric does not allow",
    "no_match": "has no verdict",
}


def _odd(name: str, rubric: Rubric, found: Completion) -> Iterator[str]:
    """Yield what is odd about the answer to a test question."""
    from coordinate_eval.evaluators.judged.verdicts import look_for_verdict

    if found.without:
        yield (
            f"the judge of {name} is asked without {' and '.join(found.without)}, which its server "
            "does not support"
        )
    lack = look_for_verdict(found.words, rubric).lack
    if lack is not None:
        words = f": {brief(found.words, MOST_WORDS)!r}" if found.words.strip() else ""
        yield f"the answer of the judge of {name} to a test question {_LACKS[lack]}{words}"


async def _try_out(
    access: Access, asked: Mapping[str, Mapping[str, Any]]
) -> tuple[int | None, dict[str, Completion | BaseException | None]]:
    """Return the judge's context, and by dataset its answer, or why there will be none.

    Raises:
        ServerRefuses, ServerSilent: it answers nothing at all.
    """
    async with Endpoint(access) as judge:
        context = await judge.check()
        tries = (judge.try_out(each) for each in asked.values())
        found = await asyncio.gather(*tries, return_exceptions=True)
    tried = dict(zip(asked, found, strict=True))
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, ServerRefuses):
            raise each
    return context, tried


def _unconfined(run: Run, indexes: dict[str, DatasetRequests]) -> Iterator[tuple[str, str]]:
    """Yield the datasets with generated answers, with the reason, if nothing confines scoring."""
    generated = [name for name, index in indexes.items() if index.generate_requests]
    level, why = find_level(run.settings.metrics.allow_unsafe_code) if generated else (None, "")
    if level is None:
        for name in generated:
            yield name, refusal(name, why)


def _without_baseline(
    run_dir: RunDir, indexes: dict[str, DatasetRequests]
) -> Iterator[tuple[str, str]]:
    """Yield the datasets with questions that the baseline has not answered, with the reason."""
    for name, index in indexes.items():
        name_by_item(run_dir, name, index.question_ids)
        if why := why_incomplete(run_dir, name, index.question_ids):
            yield name, why


def _without_compiler(indexes: dict[str, DatasetRequests]) -> Iterator[tuple[str, str]]:
    """Yield the datasets with programs in a language that is not installed, with the reason."""
    for name, index in indexes.items():
        missing = missing_packages(index.languages)
        if missing:
            yield name, f"dataset {name!r}: {toolchains.refusal(missing, 'its')}"


_MOST_SECONDS = 600.0
"""Time for a child that imports torch from a slow file system. Then the run goes on without it."""


class Guard:
    """The child process of one supervisor, which looks at the tensors of its checkpoint."""

    def __init__(self, run_dir: RunDir, run: Run, tell: Callable[[str], None]) -> None:
        self._argv = [*jobs.program(run.python), "_guard", str(run_dir.root)]
        self._tell = tell
        self._child: subprocess.Popen[str] | None = None
        self._end = 0.0
        self.why = ""
        """The reason why the checkpoint is refused; empty if it is not."""

    def start(self) -> None:
        """Start the child."""
        self._end = time.monotonic() + _MOST_SECONDS
        self._child = subprocess.Popen(
            self._argv,
            env=os.environ | ENDS_WITH_PARENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def is_over(self) -> bool:
        """Return whether the child has answered, or no child is there."""
        if self._child is None:
            return True
        if self._child.poll() is None:
            if time.monotonic() < self._end:
                return False
            self._child.kill()
        said, _ = self._child.communicate()
        status, self._child = self._child.returncode, None
        try:
            found = json.loads(said)
            self.why = found if isinstance(found, str) else ""
        except ValueError:
            self._tell(
                "the tensors of the checkpoint are not compared with its architecture: the process "
                f"that does it ended with {status}"
            )
        return True
