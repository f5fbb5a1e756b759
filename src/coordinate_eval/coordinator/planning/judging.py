"""Beginning and end of judging in a simulated plan.

A server answers while trials go on: a shard's questions are asked when its responses are complete,
in the order in which that happens. A checkpoint answers in a job of its own. This begins when the
responses of all judged datasets are there, and as many GPUs as its engine needs: GPUs that the plan
does not use, GPUs of another type, and GPUs of trials that have ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from coordinate_eval.coordinator.planning.plan import Cost, JudgeWork, PlanJudge
from coordinate_eval.coordinator.planning.simulate import Timeline


@dataclass(frozen=True)
class Judging:
    """The predicted cost of a run's judge."""

    work: JudgeWork
    seconds: Mapping[str, float]
    """`judge_seconds` of the costs of judged datasets."""
    gpu_type: str = ""
    """Type of the free GPUs for its job; empty if the job needs none, or if none is free."""

    def beside(self, gpu_type: str) -> int:
        """Return how many GPUs it may have that no run on GPUs of this type uses."""
        return 0 if self.gpu_type in ("", gpu_type) else self.work.gpus


def judged(
    work: JudgeWork, costs: Sequence[Cost], timeline: Timeline, spare_gpus: int = 0
) -> PlanJudge:
    """Return when a judge begins, and when its last answer is scored.

    Args:
        costs: of all datasets. Their `judge_seconds` are a server's for the questions of this
            dataset alone, and those of its whole job where a checkpoint judges.
        spare_gpus: GPUs that the plan does not use, and the judge may.
    """
    asked = {cost.name: cost for cost in costs if cost.judge_seconds > 0}
    shards = [
        bar for trial in timeline.trials for bar in trial.shards if bar.shard.dataset in asked
    ]
    begin = end = 0.0
    if work.gpus:
        seconds = max((cost.judge_seconds for cost in asked.values()), default=0.0)
        begin = max((bar.complete for bar in shards), default=0.0)
        begin = max(begin, _free(timeline, work.gpus - spare_gpus))
        end = begin + seconds
    elif shards:
        each = [
            (bar.complete, cost.judge_seconds * (bar.shard.stop - bar.shard.start) / cost.items)
            for bar in shards
            for cost in (asked[bar.shard.dataset],)
        ]
        begin = min(each)[0]
        for complete, seconds in sorted(each, key=itemgetter(0)):
            end = max(end, complete) + seconds
    scoring = max((cost.score_seconds for cost in asked.values()), default=0.0)
    return PlanJudge(**work.model_dump(), begin_seconds=begin, end_seconds=end + scoring)


def _free(timeline: Timeline, gpus: int) -> float:
    """Return when trials with so many GPUs together have ended; all of them, if they have fewer."""
    when = 0.0
    for bar in sorted(timeline.trials, key=lambda bar: bar.end):
        if gpus <= 0:
            break
        when, gpus = bar.end, gpus - bar.trial.gpus
    return when
