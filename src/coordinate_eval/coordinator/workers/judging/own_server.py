"""A checkpoint that judges: the server of its engine, a child process of the job that asks it.

The server listens on a socket file that only this user reaches. It answers only requests with its
key, which is new each time and known to nobody else. It ends with the job.
"""

import asyncio
import contextlib
import math
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from coordinate_eval.clusters.protocol import NODE_VARIABLE
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    begins_thinking,
    context_of,
    longest_answer,
    revision,
)
from coordinate_eval.coordinator.planning.places import degrees
from coordinate_eval.coordinator.run.jobs import program
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import ServerSilent, UserError
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.process import LOOK_SECONDS, Process, ServerEnded
from coordinate_eval.records import Checkpoint

CONCURRENCY: Final = 256
"""Questions that the server is asked at the same time, so that its engine is full."""

START_SECONDS: Final = 3600.0
"""Longest start of the server of a checkpoint whose weights are in memory."""

_KEY = "COORDINATE_EVAL_JUDGE_SERVER_KEY"
"""Environment variable of the server with its key."""


class OwnServer(NamedTuple):
    """The server of a run's judge, as the job that asks it sees it."""

    process: Process
    endpoint: Endpoint

    async def answers(self) -> None:
        """Wait until the server answers.

        Raises:
            ServerEnded: it has ended, or does not answer in time.
            ServerRefuses: it has no such model.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while True:
                    with contextlib.suppress(ServerSilent):
                        await self.process.while_it_runs(self.endpoint.check())
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        raise ServerEnded(f"the judge's server does not answer within {START_SECONDS:g} s")


def this_node() -> str:
    """Return the name of this node, as the scheduler knows it."""
    return os.environ.get(NODE_VARIABLE) or os.uname().nodename


@contextlib.asynccontextmanager
async def own_server(run_dir: RunDir, run: Run) -> AsyncIterator[OwnServer]:
    """Copy the judge's weights to this node, and start its server. Both are gone after the block.

    Raises:
        UserError: the checkpoint has changed since the run was made, or cannot be used.
    """
    settings = run.settings
    judge = checkpoints.inspect(Path(settings.judge.checkpoint or ""))
    if revision(judge) != settings.judge.revision:
        raise UserError(
            f"the judge {settings.judge.checkpoint} has changed since this run began, so its "
            "answers would not be of one judge: start a new run"
        )
    weights = StagedWeights(settings.stage.folder, f"{run.id}-judge", this_node())
    with weights.hold(), tempfile.TemporaryDirectory(prefix="coordinate-eval-") as folder:
        await _copied(run_dir, run, weights, judge)
        socket, key = Path(folder) / "judge", secrets.token_urlsafe(32)
        process = Process(
            "the judge's server",
            (
                *program(sys.executable),
                "_serve",
                str(run_dir.root),
                str(weights.link()),
                str(socket),
            ),
            os.environ | {_KEY: key},
        )
        access = Access("http://localhost/v1", settings.judge.model or "", key, socket=str(socket))
        endpoint = Endpoint(
            access,
            concurrency=max(CONCURRENCY, settings.judge.concurrency),
            patience_seconds=settings.supervisor.patience_seconds,
            most_tokens=longest_answer(context_of(judge)),
            # Some of them mark the end of its thinking.
            extra={"skip_special_tokens": False},
            begins_thinking=begins_thinking(judge),
        )
        try:
            async with endpoint:
                yield OwnServer(process, endpoint)
        finally:
            await asyncio.to_thread(process.end)


async def _copied(run_dir: RunDir, run: Run, weights: StagedWeights, judge: Checkpoint) -> None:
    most = 0.0 if run.settings.stage.where == "none" else math.inf
    while not await asyncio.to_thread(weights.copy, judge, most_bytes=most):
        check_there(run_dir)  # another job of this run's judge is ending on this node
        await asyncio.sleep(LOOK_SECONDS)


def serve(run_dir: RunDir, model: Path, socket: Path) -> None:
    """Serve the run's judge until a signal ends this process: the command `_serve`."""
    run = read_run(run_dir)
    judge = checkpoints.inspect(Path(run.settings.judge.checkpoint or ""))
    engine, gpus = run.settings.engine.name, run.judge_place.gpus
    args = degrees.engine_args(judge, engine, gpus) | run.settings.judge.engine_args
    engines.by_name(engine).serve(
        engines.Loading(model, gpus, context_of(judge), args),
        name=run.settings.judge.model or "",
        socket=socket,
        key=os.environ.pop(_KEY),
    )
