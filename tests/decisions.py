"""A made-up run, facts about it, and what a supervisor decides on them, for tests."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from coordinate_eval.clusters.protocol import Job, State, TaskStatus
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import LEDGERS, Claim, LedgerName, OpenClaim
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, StageProgress, Submitted
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.records import Dataset, Shard, Span, Suite
from tests.plans import CHECKPOINT

DIR = RunDir(Path("/runs/r"))
ActionT = TypeVar("ActionT", bound=d.Action)
SPANS = [Span("a", 0, 5), Span("a", 5, 10), Span("b", 0, 3)]
NODES = ["n1", "n2"]


def make_run(**changes: Any) -> Run:
    values: dict[str, Any] = {
        "id": "r",
        "nonce": "0",
        "created": 0,
        "cluster": "slurm",
        "python": "python",
        "folder": "/",
        "checkpoint": CHECKPOINT,
        "suite": Suite(
            name="s",
            digest="d",
            datasets=[Dataset(name="a", task="a"), Dataset(name="b", task="b")],
        ),
        "settings": Settings(),
        "tensor_parallel": 1,
        "gpu_type": "h200",
        "max_length": 64,
        "staged_bytes": 1,
        "exclusive": False,
        "asks": [],
        "shards": [
            Shard(
                dataset=s.dataset, start=s.start, stop=s.stop, gpu_seconds=1, metric_cpu_seconds=0
            )
            for s in SPANS
        ],
    }
    return Run.model_validate(values | changes, extra="forbid")


RUN = make_run()
NOTHING: dict[LedgerName, list[Span]] = {name: [] for name in LEDGERS}
ROUND = Round(
    number=0,
    created=0,
    nodes=[RoundNode(name=n, gpu_type="h200", trials=2) for n in NODES],
    minutes=30,
)


def facts(**changes: Any) -> d.Facts:
    base = d.Facts(
        now=100,
        tasks=[],
        rounds=[ROUND],
        unpublished=list(SPANS),
        claimable=waiting_for(),
        unscored=2,
        idle_arrays=Counter(),
        most_trials=4,
    )
    return replace(base, **changes)


def claimed(span: Span, task: str = "7_0.0", owner: str = "o") -> OpenClaim:
    """The first attempt at a span."""
    return OpenClaim(span, 1, Claim(owner=owner, task=task, host="h", pid=1, time=0, token="t"))


def submitted(*names: str, when: float = 90, count: int = 2, refusal: str = "") -> dict[str, Any]:
    return {
        name: Submitted(
            job=Job(name=name, argv=("x",), minutes=1, log="/l", count=count),
            job_id=None if refusal else name,
            refusal=refusal,
            time=when,
        )
        for name in names
    }


def waiting_for(**spans: list[Span]) -> dict[LedgerName, list[Span]]:
    """Spans that can be claimed: all shards, and these."""
    return {**NOTHING, "outputs": list(SPANS), **{n: spans[n] for n in LEDGERS if n in spans}}


def tasks(name: str, *states: State) -> list[TaskStatus]:
    return [TaskStatus(name=name, job_id=name, index=i, state=s) for i, s in enumerate(states)]


def shards(*seconds: float) -> list[Shard]:
    """Shards of an item each, which take so long."""
    return [
        Shard(dataset="a", start=n, stop=n + 1, gpu_seconds=s, metric_cpu_seconds=0)
        for n, s in enumerate(seconds)
    ]


def nodes(trials: int) -> list[RoundNode]:
    """A single node of so many trials."""
    return [RoundNode(name="n1", gpu_type="h200", trials=trials)]


def stage(done: int, total: int, seconds: float, state: str = "copying") -> StageProgress:
    return StageProgress.model_validate(
        {"state": state, "done_bytes": done, "total_bytes": total, "started": 0, "updated": seconds}
    )


def submits(actions: list[d.Action]) -> list[str]:
    """Jobs that are submitted, without those that score: they come beside all others."""
    return [job.name for job in all_submits(actions) if "score" not in job.name]


def asks_again(found: d.Facts) -> bool:
    return any(isinstance(action, d.NewRound) for action in decide(RUN, DIR, found))


def all_submits(actions: list[d.Action]) -> list[Job]:
    return [action.job for action in those(d.Submit, actions)]


def those(kind: type[ActionT], actions: list[d.Action]) -> list[ActionT]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


KEEP = [jobs.keeper_name(RUN, 0, n) for n in NODES]
TRIAL = [jobs.trials_name(RUN, 0, n) for n in NODES]
