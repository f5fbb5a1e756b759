"""A process of the harness: it holds the evaluator, and answers commands.

`process.py` starts it. It answers commands itself to build prompts. To score, it is the mother of
processes that answer. The output of tasks goes to standard error.

To score, it writes no file of the run. It may be confined so that it cannot: then the caches of the
libraries are read-only, and it works on folders of links to them in its own memory.
"""

import contextlib
import gc
import logging
import os
import resource
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from coordinate_eval._engines import kind_of
from coordinate_eval.errors import CoordinateError, DataMissing
from coordinate_eval.evaluators.confined.messages import (
    MOST_ERROR_CHARACTERS,
    Command,
    Reply,
    Setup,
    Work,
)
from coordinate_eval.evaluators.confined.mother import fork_for_each
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.evaluators.harness.prompts.tokenizer import tokenizers_alone
from coordinate_eval.evaluators.pulse import Pulse
from coordinate_eval.evaluators.sandbox.inside import end_with_parent
from coordinate_eval.records import Dataset, DatasetRequests, ItemRequests, Request

if TYPE_CHECKING:
    from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator

STACKS_BYTES = 4 << 30
"""Bytes of address space in addition to the memory, for stacks of threads: most stay untouched."""

MOST_THREADS = 4096
"""Most threads of all processes: libraries start some for each core of a large node."""

NEW_OBJECTS = 100_000
"""New objects after which Python looks for cycles among them. It looks after 700 by itself, and
again and again at modules, prompts and responses, which have none: that took a third of the CPU
time."""


def main() -> None:
    """Build, or score: `build COMMANDS REPLIES NOTE` or `score CONTROL`, descriptors all of them.

    In the file NOTE, calls of the tokenizer are noted.
    """
    end_with_parent()
    gc.set_threshold(NEW_OBJECTS)
    what, *descriptors = sys.argv[1], *map(int, sys.argv[2:])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not (asked := sys.stdin.buffer.readline()):
        return  # The job was killed before it could ask.
    setup = Setup.model_validate_json(asked)
    _leave_no_channel()
    _log_as_asked()
    if setup.memory_bytes:
        _limit(setup.memory_bytes)
    if not setup.models:
        tokenizers_alone()
    with contextlib.suppress(FileNotFoundError, PermissionError):  # no data of a task is there
        os.chdir(setup.folder)
    evaluator = _evaluator(setup, Pulse(descriptors[2]) if what == "build" else None)
    if what == "score":
        evaluator.prepare()
    gc.freeze()
    if what == "build":
        commands, replies, _ = descriptors
        _answer(evaluator, commands, replies, ResponseFiles(), AnswerFiles())
        return

    def score(files: list[int]) -> None:
        commands, replies, responses, answers = files
        _mirror_all(setup.mirrors)
        _answer(
            evaluator,
            commands,
            replies,
            ResponseFiles(copy=responses),
            AnswerFiles(copy=answers),
        )

    fork_for_each(socket.socket(fileno=descriptors[0]), score)


def _evaluator(setup: Setup, pulse: Pulse | None) -> "HarnessEvaluator":
    """Return the evaluator of all datasets. Its import takes seconds."""
    from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
    from coordinate_eval.evaluators.harness.tasks.judged_task import Panel

    return HarnessEvaluator(
        tokenizer=Path(setup.tokenizer),
        max_length=setup.max_length,
        include_path=setup.include_path,
        backend=kind_of(setup.engine).model_class,
        pulse=pulse,
        kept_tasks=Path(setup.kept_tasks) if setup.kept_tasks else None,
        panel=Panel(
            setup.judge_model,
            setup.judge_revision,
            Path(setup.baselines) if setup.baselines else None,
        ),
    )


def _answer(
    evaluator: "HarnessEvaluator",
    commands: int,
    replies: int,
    responses: ResponseFiles,
    answers: AnswerFiles,
) -> None:
    """Answer commands until there are no more."""
    own, before = os.getpid(), 0.0
    with os.fdopen(commands, "rb") as asked, os.fdopen(replies, "wb") as said:
        for line in asked:
            command = Command.model_validate_json(line)
            reply = _reply(evaluator, command, responses, answers)
            used = sum(os.times()[:4])  # in this process and those that it has waited for
            reply = reply.model_copy(update={"cpu_seconds": used - before})
            before = used
            if os.getpid() != own:  # what the model wrote has forked
                os._exit(1)
            said.write(reply.line().encode())
            said.flush()


def _log_as_asked() -> None:
    """Log what the harness would log, by the variable that its own command reads."""
    if level := os.environ.get("LMEVAL_LOG_LEVEL"):
        with contextlib.suppress(ValueError):  # no level, which its command passes over, too
            logging.getLogger("lm_eval").setLevel(level.upper())


def _leave_no_channel() -> None:
    """Leave tasks no standard input, and one output."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)


def _limit(memory_bytes: int) -> None:
    """Limit the memory of this process alone; the one who asks watches that of all together."""
    for kind, limit in (
        (resource.RLIMIT_DATA, memory_bytes + STACKS_BYTES),
        # It counts a user's threads on the whole machine before Linux 5.14, and never root's.
        (resource.RLIMIT_NPROC, MOST_THREADS),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _mirror_all(mirrors: dict[str, str]) -> None:
    for source, target in mirrors.items():
        _mirror(Path(source), Path(target))


def _mirror(source: Path, target: Path) -> None:
    """Fill a new folder with the folders of `source`, and with links to its files.

    The libraries take locks in their caches and add to them, and find here what the caches have.
    """
    target.mkdir(parents=True, exist_ok=True)
    for folder, folders, files in os.walk(source):
        made = target / Path(folder).relative_to(source)
        for name in folders:
            (made / name).mkdir(exist_ok=True)
        for name in files:
            if not name.endswith(".lock"):
                (made / name).symlink_to(Path(folder, name))


def _reply(
    evaluator: "HarnessEvaluator", command: Command, responses: ResponseFiles, answers: AnswerFiles
) -> Reply:
    try:
        return _call(evaluator, command, responses, answers)
    except Exception as error:  # a task's own code may raise anything
        message = str(error) if isinstance(error, CoordinateError) else traceback.format_exc()
        shown = message.strip()[-MOST_ERROR_CHARACTERS:].encode("utf-8", "backslashreplace")
        return Reply(
            number=command.number,
            error=shown.decode() or type(error).__name__,
            offline=isinstance(error, DataMissing),
        )


def _call(
    evaluator: "HarnessEvaluator", command: Command, responses: ResponseFiles, answers: AnswerFiles
) -> Reply:
    number, dataset = command.number, command.dataset
    if command.work is Work.BUILD:
        return Reply(number=number, built=_build(evaluator, dataset, Path(command.requests)))
    if command.work is Work.LOAD:
        assert command.index is not None  # it has one
        before = set(sys.modules)
        names = evaluator.load(dataset, command.index)
        modules = [name for name in sys.modules if name not in before]
        return Reply(number=number, names=names, modules=modules)
    if command.work is Work.QUESTIONS:
        return Reply(number=number, questions=evaluator.questions(dataset, responses))
    if command.work in (Work.VERDICTS, Work.SAMPLES):
        noted = evaluator.noted(dataset, responses, answers, part=command.part)
        if command.work is Work.VERDICTS:
            return Reply(number=number, verdicts=[each.verdict() for each in noted])
        return Reply(number=number, samples=[noted[n].logged() for n in command.positions])
    if command.work is Work.ITEM_SCORES:
        return Reply(number=number, item_scores=evaluator.item_scores())
    results = evaluator.finish(dataset, responses, answers, part=command.part)
    return Reply(number=number, results=results)


def _build(evaluator: "HarnessEvaluator", dataset: Dataset, path: Path) -> DatasetRequests:
    """Write the requests of a dataset to a new file, and return their index with its offsets."""
    offsets: list[int] = []
    of_item: list[Request] = []
    with path.open("xb") as file:

        def close_item() -> None:
            if of_item:
                # Items without a request, such as empty documents, have no line.
                offsets.extend([file.tell()] * (of_item[0].item + 1 - len(offsets)))
                file.write(ItemRequests.of(of_item).line().encode())
                of_item.clear()

        def write(request: Request) -> None:
            if of_item and request.item != of_item[0].item:
                close_item()
            of_item.append(request)

        built = evaluator.build(dataset, write)
        close_item()
        offsets += [file.tell()] * (built.items + 1 - len(offsets))
    return built.model_copy(update={"offsets": offsets})
