"""Decisions on jobs that take what there is: metric and scoring jobs, and judges."""

from collections import Counter
from dataclasses import replace

from tests.decisions import (
    DIR,
    KEEP,
    NOTHING,
    RUN,
    SPANS,
    TRIAL,
    all_submits,
    claimed,
    facts,
    make_run,
    submits,
    submitted,
    tasks,
    waiting_for,
)

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.run.claiming.claims import LedgerName, OpenClaim, whole
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name, useful_pullers
from coordinate_eval.coordinator.run.records import JudgePlace, JudgeProgress, portion_seconds
from coordinate_eval.coordinator.supervisor import decide_jobs
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.records import Dataset, Shard, Span, Suite


def test_metric_pullers_while_there_are_questions_and_none_before() -> None:
    run = make_run(asks=["b"])
    asked = facts(submitted=submitted(*KEEP, *TRIAL), tasks=tasks(TRIAL[0], State.RUNNING))
    assert submits(decide(run, DIR, asked)) == []
    asked = replace(asked, claimable=waiting_for(answers=[SPANS[2]]))
    assert submits(decide(run, DIR, asked)) == [pullers_name(run, Pullers.METRIC, 0)]
    first = pullers_name(run, Pullers.METRIC, 0)
    alive = replace(
        asked,
        submitted={**asked.submitted, **submitted(first)},
        tasks=[*asked.tasks, *tasks(first, State.PENDING)],
    )
    assert submits(decide(run, DIR, alive)) == []
    gone = replace(alive, tasks=asked.tasks)
    assert submits(decide(run, DIR, gone)) == [pullers_name(run, Pullers.METRIC, 1)]
    hopeless = replace(gone, idle_arrays=Counter({Pullers.METRIC: decide_jobs.MAX_IDLE_ARRAYS}))
    assert submits(decide(run, DIR, hopeless)) == []


def test_all_responses_there_scores_are_waited_for() -> None:
    scorable: dict[LedgerName, list[Span]] = {**NOTHING, "results": [whole("a")]}
    done = facts(submitted=submitted(*KEEP, *TRIAL), unpublished=[], claimable=scorable)
    assert not any(isinstance(a, d.Finish | d.NewRound) for a in decide(RUN, DIR, done))
    held = replace(done, claimable=NOTHING, open_claims=[("results", claimed(whole("a")))])
    assert not any(isinstance(a, d.Finish | d.NewRound) for a in decide(RUN, DIR, held))
    stuck = replace(done, claimable=NOTHING)
    assert any(isinstance(a, d.Finish) for a in decide(RUN, DIR, stuck))
    hopeless = replace(done, idle_arrays=Counter({Pullers.SCORE: decide_jobs.MAX_IDLE_ARRAYS}))
    (finish,) = (a for a in decide(RUN, DIR, hopeless) if isinstance(a, d.Finish))
    assert finish.why == "3 arrays of score jobs in a row did nothing"
    scored = replace(done, unscored=0, claimable=NOTHING)
    assert d.Finish() in decide(RUN, DIR, scored)


def scoring_jobs(found: d.Facts) -> list[tuple[str, int]]:
    """Names and counts of the arrays of scoring jobs that are submitted."""
    jobs_ = all_submits(decide(RUN, DIR, found))
    return [(job.name, job.count) for job in jobs_ if "score" in job.name]


FIRST, SECOND = (pullers_name(RUN, Pullers.SCORE, n) for n in range(2))


def test_a_scoring_job_starts_while_engines_do_and_not_while_weights_are_copied() -> None:
    """Beside a keeper it might get the last job that may run, in the place of a trial."""
    copying = facts(submitted=submitted(*KEEP), tasks=tasks(KEEP[0], State.RUNNING))
    assert scoring_jobs(copying) == []
    waiting = facts(submitted=submitted(*KEEP, *TRIAL), tasks=tasks(TRIAL[0], State.PENDING))
    assert scoring_jobs(waiting) == []
    starting = replace(waiting, tasks=tasks(TRIAL[0], State.RUNNING))
    assert scoring_jobs(starting) == [(FIRST, 1)]
    assert scoring_jobs(replace(starting, unscored=0)) == []
    crashed = replace(starting, submitted={**starting.submitted, **submitted(FIRST, when=90)})
    assert scoring_jobs(crashed) == []
    assert scoring_jobs(replace(crashed, now=90 + decide_jobs.ARRAY_PAUSE_SECONDS)) == [(SECOND, 1)]


def test_scoring_jobs_that_end_at_once_come_ever_less_often_while_nothing_waits() -> None:
    working = facts(tasks=tasks(TRIAL[0], State.RUNNING), submitted=submitted(*KEEP, *TRIAL))
    times: list[float] = []
    for now in range(100, 4000, 5):
        known = replace(working, now=now)
        for job, _ in scoring_jobs(known):
            times.append(now)
            working = replace(working, submitted={**working.submitted, **submitted(job, when=now)})
    assert len(times) < 20
    failed = replace(working, now=times[-1] + 5, claimable=waiting_for(results=[whole("a")]))
    assert len(scoring_jobs(failed)) == 1


def test_more_scoring_jobs_come_when_datasets_wait_for_one() -> None:
    busy = facts(
        submitted={**submitted(*KEEP, *TRIAL), **submitted(FIRST, when=0, count=1)},
        tasks=[*tasks(TRIAL[0], State.RUNNING), *tasks(FIRST, State.RUNNING)],
        open_claims=[("results", claimed(whole("a"), f"{FIRST}.0"))],
    )
    assert scoring_jobs(busy) == []
    one_waits = replace(busy, claimable=waiting_for(results=[whole("b")]))
    assert scoring_jobs(one_waits) == [(SECOND, 1)]
    assert scoring_jobs(replace(one_waits, cores=2)) == []
    free = replace(one_waits, open_claims=[])
    assert scoring_jobs(free) == []
    many = replace(one_waits, claimable=waiting_for(results=[whole(str(n)) for n in range(99)]))
    assert scoring_jobs(many) == [(SECOND, RUN.settings.harness.jobs - 1)]


def test_as_many_scoring_jobs_as_pay_come_at_once() -> None:
    def count(seconds: list[float], cores: int | None = None) -> int:
        names = [f"d{n}" for n in range(len(seconds))]
        run = make_run(
            suite=Suite(name="s", digest="d", datasets=[Dataset(name=n, task=n) for n in names]),
            shards=[],
            score_seconds=dict(zip(names, seconds, strict=True)),
        )
        return useful_pullers(run, Pullers.SCORE, cores)

    assert count([0.1] * 63) == 2
    assert count([0.01] * 63) == 1
    assert count([100.0, 0.1]) == 2
    assert count([5.0] * 63) == RUN.settings.harness.jobs
    assert count([5.0] * 63, cores=2) == 1
    assert count([5.0] * 63, cores=8) == 4


def test_a_metrics_questions_are_answered_by_as_many_cores_as_there_are() -> None:
    long = Shard(dataset="b", start=3, stop=103, gpu_seconds=1, metric_cpu_seconds=800)
    run = make_run(asks=["b"], shards=[long])
    portions = run.portions(long)
    assert len(portions) == 100
    assert [p.start for p in portions] == [3, *(p.stop for p in portions[:-1])]
    assert portions[-1].stop == 103
    many = [long.model_copy(update={"metric_cpu_seconds": 1e6, "stop": 100_000})] * 3
    huge = make_run(asks=["b"], shards=many, portion_seconds=portion_seconds(3e6))
    assert sum(len(huge.portions(shard)) for shard in many) <= 2_003
    actions = decide(run, DIR, facts(claimable=waiting_for(answers=portions)))
    jobs_asked = [a.job for a in actions if isinstance(a, d.Submit) and "metric" in a.job.name]
    assert [job.count for job in jobs_asked] == [run.settings.metrics.cpus]


def test_pullers_that_have_left_are_replaced_while_others_still_work() -> None:
    run = make_run(asks=["b"])
    first = pullers_name(run, Pullers.METRIC, 0)
    some = [Span("b", n, n + 1) for n in range(6)]
    known = facts(
        submitted={**submitted(*KEEP, *TRIAL), **submitted(first, when=0)},
        tasks=tasks(first, State.RUNNING),
        open_claims=[("answers", claimed(Span("b", 9, 10), f"{first}_0.0"))],
        claimable=waiting_for(answers=some),
    )
    (another,) = [
        a.job for a in decide(run, DIR, known) if isinstance(a, d.Submit) and "metric" in a.job.name
    ]
    assert (another.name, another.count) == (pullers_name(run, Pullers.METRIC, 1), 6)
    for quiet in (
        replace(known, open_claims=[], claimable=waiting_for(answers=some[:2])),
        replace(known, submitted={**known.submitted, **submitted(first, when=99)}),
    ):
        assert submits(decide(run, DIR, quiet)) == []


JUDGED = make_run(asks=["a", "b"], judged=["b"])
JUDGE_JOB = pullers_name(JUDGED, Pullers.JUDGE, 0)


def of_the_judge(state: str, said: str = "") -> JudgeProgress:
    return JudgeProgress.model_validate({"state": state, "said": said, "updated": 0})


def test_one_job_asks_the_judge_and_no_metric_job_does() -> None:
    working = facts(
        submitted=submitted(*KEEP, *TRIAL),
        tasks=tasks(TRIAL[0], State.RUNNING),
        claimable=waiting_for(answers=[SPANS[2]]),
    )
    (job,) = [a.job for a in decide(JUDGED, DIR, working) if isinstance(a, d.Submit)][:1]
    assert submits(decide(JUDGED, DIR, working)) == [JUDGE_JOB]
    assert (job.count, job.cpus, job.gpus) == (1, 1, 0)
    claim = claimed(SPANS[2], "j")
    there = replace(
        working,
        submitted=submitted(*KEEP, *TRIAL, JUDGE_JOB),
        tasks=[*working.tasks, TaskStatus(name=JUDGE_JOB, job_id="j", state=State.RUNNING)],
    )
    none_held: list[tuple[LedgerName, OpenClaim]] = []
    for held in (none_held, [*none_held, ("answers", claim), ("answers", claim)]):
        both = replace(there, open_claims=held, claimable=waiting_for(answers=[SPANS[0], SPANS[2]]))
        assert submits(decide(JUDGED, DIR, both)) == [pullers_name(JUDGED, Pullers.METRIC, 0)]
    died = replace(there, tasks=working.tasks)
    assert submits(decide(JUDGED, DIR, died)) == [pullers_name(JUDGED, Pullers.JUDGE, 1)]


def test_a_checkpoint_judges_on_gpus_when_all_questions_are_written() -> None:
    own = JUDGED.settings.model_copy(update={"judge": JudgeSettings(checkpoint="/judge")})
    place = JudgePlace(gpus=4, gpu_type="h200", weights_gib=100)
    run = JUDGED.model_copy(update={"settings": own, "judge_place": place})
    first = facts(
        submitted=submitted(*KEEP, *TRIAL),
        tasks=tasks(TRIAL[0], State.RUNNING),
        claimable=waiting_for(answers=[SPANS[2]]),
    )
    assert SPANS[2].dataset in {span.dataset for span in first.unpublished}
    assert JUDGE_JOB not in submits(decide(run, DIR, first))
    last = replace(first, unpublished=[s for s in first.unpublished if s.dataset == "a"])
    claim = claimed(SPANS[2], "j")
    held: list[tuple[LedgerName, OpenClaim]] = [("questions", claim)]
    assert JUDGE_JOB not in submits(decide(run, DIR, replace(last, open_claims=held)))
    (job,) = [
        a.job for a in decide(run, DIR, last) if isinstance(a, d.Submit) and a.job.name == JUDGE_JOB
    ]
    assert (job.count, job.gpus, job.gpu_type, job.gpu_work, job.submits) == (
        *(1, 4, "h200", True, False),
    )
    assert job.memory_mib > 100 * 1024
    assert job.needs == ()
    # A shard that is given up stays without responses for ever.
    given_up = replace(first, tasks=[], claimable={**NOTHING, "answers": [SPANS[2]]})
    assert JUDGE_JOB in submits(decide(run, DIR, given_up))


def test_a_judge_that_is_away_is_waited_for_only_while_other_work_goes_on() -> None:
    over = facts(
        submitted=submitted(*KEEP, *TRIAL, JUDGE_JOB),
        unpublished=[],
        claimable={**NOTHING, "answers": [SPANS[2]]},
        judge=of_the_judge("silent", "connection refused"),
        unscored=1,
    )
    ends = [a.why for a in decide(JUDGED, DIR, over) if isinstance(a, d.Finish)]
    assert ends == ["questions wait for their judge: connection refused"]
    starting = replace(over, tasks=tasks(JUDGE_JOB, State.PENDING))
    assert not any(isinstance(action, d.Finish) for action in decide(JUDGED, DIR, starting))
    again = pullers_name(JUDGED, Pullers.JUDGE, 1)
    trials = replace(over, unpublished=[SPANS[0]], tasks=tasks(TRIAL[0], State.RUNNING))
    metrics = replace(over, claimable={**NOTHING, "answers": SPANS})
    for going_on in (trials, metrics):
        assert again in submits(decide(JUDGED, DIR, going_on))
        for state in ("refuses", "spent"):
            no_more = replace(going_on, judge=of_the_judge(state, "why"))
            actions = decide(JUDGED, DIR, no_more)
            assert again not in submits(actions)
            assert not any(isinstance(action, d.Finish) for action in actions)
