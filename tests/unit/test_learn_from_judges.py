"""What judges took, from the answers of a run to the plans of later ones."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.judged_runs import OTHER, RATED, RUBRIC, SERVER, checkpoint_judged, judged_run
from tests.observed import DAY, NOW, on
from tests.plans import offer
from tests.reviewer import NODES

from coordinate_eval import _files
from coordinate_eval.coordinator.planning.costs import read_priors
from coordinate_eval.coordinator.planning.judge_plan import (
    GUESS,
    plan_judge,
)
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.plan_run import (
    PlannedRun,
    nodes_for,
    plan_run,
)
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.learn_from_run import (
    collect_observations,
    store_observations,
)
from coordinate_eval.priors.observations import JudgeSeen, subject
from coordinate_eval.priors.predict import PerQuestion, Priors
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Answer, Dataset


def answer(name: str, seconds: float = 60.0, tokens: int = 5000, **more: Any) -> Answer:
    return Answer.model_validate(
        {"id": name, "passed": True, "result": "[[5]]", "seconds": seconds, "tokens": tokens}
        | more,
        extra="forbid",
    )


def answered(run_dir: RunDir, run: Run, rated: Sequence[Answer], other: Sequence[Answer]) -> None:
    for portion, answers in zip(all_portions(run), (rated, other), strict=True):
        _files.write(
            run_dir.published("answers", portion), "".join(each.line() for each in answers)
        )


def judged(run_dir: RunDir, run: Run) -> list[JudgeSeen]:
    return [seen for seen in collect_observations(run_dir, run) if isinstance(seen, JudgeSeen)]


def saw(
    dataset: Dataset = RATED, judge: str = "gpt@2026", engine: str = "vllm", days_ago: float = 0.0,
    questions: int = 10, seconds: float = 60.0, tokens: int = 5000, settings: str | None = None,
) -> JudgeSeen:  # fmt: skip
    """So many seconds and tokens of each question."""
    of = subject(dataset)
    return JudgeSeen(
        run="r", time=NOW - days_ago * DAY, conditions=on(engine=engine), judge=judge,
        dataset=dataset.name, questions=questions, seconds=seconds * questions,
        subject=of if settings is None else of.model_copy(update={"settings": settings}),
        tokens=tokens * questions,
    )  # fmt: skip


def expected(*seen: JudgeSeen, dataset: Dataset = RATED, engine: str = "vllm") -> PerQuestion:
    return Priors(seen, NOW).per_question("gpt@2026", subject(dataset), engine, GUESS)


def judging(run: Run, priors: Priors) -> Judging:
    found = plan_judge(run, offer(NODES, metric_cpus=8, priors=priors), {})
    assert found is not None
    return found


def planned(run: Run, priors: Priors) -> PlannedRun:
    there = offer(NODES, metric_cpus=8, priors=priors)
    return plan_run(run, there, nodes_for(run, there), {}, judging=judging(run, priors))


def test_the_second_run_of_a_slow_judge_is_predicted_to_end_later(tmp_path: Path) -> None:
    run, run_dir = judged_run(tmp_path), RunDir(tmp_path / "run")
    answered(run_dir, run, [answer(f"q{n}") for n in range(9)], [])
    assert store_observations(run_dir, run) == 1
    first, second = (
        planned(run, Priors()).plan,
        planned(run, read_priors(run.settings, time.time())).plan,
    )
    assert first.judge is not None
    assert second.judge is not None
    assert second.judge.end_seconds > first.judge.end_seconds
    assert second.estimate == first.estimate
    taken = second.judge.end_seconds - second.judge.begin_seconds
    assert taken >= 0.9 * 100 * 60 / run.settings.judge.concurrency


def test_what_was_really_asked_is_observed_for_each_dataset(tmp_path: Path) -> None:
    run, run_dir = judged_run(tmp_path), RunDir(tmp_path)
    kept = answer("kept", kept=True, seconds=0, tokens=0)
    refused = answer("refused", passed=False, result="refused: too long")
    answered(run_dir, run, [answer("a", 3, 100), answer("b", 5, 300), kept, refused], [kept])
    (seen,) = judged(run_dir, run)
    assert (seen.judge, seen.dataset, seen.subject) == ("gpt@2026", "rated", subject(RATED))
    assert (seen.questions, seen.seconds, seen.tokens) == (2, 8, 400)
    assert time.time() - seen.time < DAY
    assert "http" not in seen.model_dump_json()


def test_what_several_attempts_have_of_a_question_counts_once(tmp_path: Path) -> None:
    run, run_dir = judged_run(tmp_path), RunDir(tmp_path)
    answered(run_dir, run, [answer("a")], [answer("a")])
    portion = all_portions(run)[0]
    _files.write(run_dir.unpublished("answers", portion, 1), answer("a").line() + '{"torn')
    assert [(seen.dataset, seen.questions) for seen in judged(run_dir, run)] == [
        ("rated", 1),
        ("other", 1),
    ]


def test_a_resumed_run_that_asked_more_replaces_what_it_said(tmp_path: Path) -> None:
    run, run_dir = judged_run(tmp_path), RunDir(tmp_path / "run")
    for count in (2, 9):
        answered(run_dir, run, [answer(f"q{n}") for n in range(count)], [])
        assert store_observations(run_dir, run) == 1
    assert store_observations(run_dir, run) == 0
    seen = Store(Path(run.settings.priors_dir)).read()
    assert [one.questions for one in seen if isinstance(one, JudgeSeen)] == [9]


def test_a_server_may_count_any_number_of_tokens(tmp_path: Path) -> None:
    run, run_dir = judged_run(tmp_path), RunDir(tmp_path)
    answered(run_dir, run, [answer(f"q{n}", tokens=2 << 40) for n in range(1000)], [])
    assert judged(run_dir, run)[0].tokens == 1000 * (2 << 40)


def test_a_judge_that_was_never_asked_is_guessed() -> None:
    assert expected() == pytest.approx(GUESS)
    assert expected(saw(judge="gpt@2025")) == pytest.approx(GUESS)
    run = judged_run(Path("/nowhere"))
    assert judging(run, Priors()).seconds == {
        "rated": pytest.approx(100 * 10 / 32),
        "other": pytest.approx(50 * 10 / 32),
    }


def test_a_dataset_that_was_seen_counts_before_others() -> None:
    seen = saw(seconds=60, tokens=5000), saw(OTHER, questions=1000, seconds=2, tokens=300)
    assert expected(*seen) == pytest.approx((60, 5000), rel=0.01)
    assert expected(*seen, dataset=OTHER) == pytest.approx((2, 300), rel=0.01)
    new = Dataset(name="new", task="new", rubric=RUBRIC)
    assert expected(seen[0], dataset=new) == pytest.approx((60, 5000), rel=0.01)
    assert 2 < expected(*seen, dataset=new).seconds < 60


def test_what_is_old_or_of_other_settings_counts_less() -> None:
    for far in (saw(seconds=2, days_ago=600), saw(seconds=2, settings="others")):
        assert 50 < expected(saw(seconds=60), far).seconds < 60
        assert expected(far).seconds == pytest.approx(2, rel=0.5)


def test_ratings_of_made_up_responses_teach_nothing_about_others() -> None:
    assert expected(saw(engine="simulated")) == pytest.approx(GUESS)
    assert expected(saw(engine="simulated"), engine="simulated").seconds > 59
    assert expected(saw(engine="transformers")).seconds > 59


def test_a_server_that_is_asked_much_at_once_takes_less_for_each(tmp_path: Path) -> None:
    quick = Priors([saw(seconds=0.1)], NOW)
    for given, each in (
        ({"concurrency": 1}, 0.1),
        ({"concurrency": 10}, 0.01),
    ):
        found = judging(judged_run(tmp_path, **SERVER, **given), quick)
        assert found.seconds["rated"] == pytest.approx(100 * each, rel=0.2)


def test_a_checkpoint_is_planned_with_the_tokens_of_its_questions(
    tmp_path: Path,
) -> None:
    run = checkpoint_judged(tmp_path)
    long = saw(judge=run.settings.judge.name, seconds=0, tokens=100_000)
    short = saw(judge=run.settings.judge.name, seconds=0, tokens=100)
    seconds = [judging(run, Priors(seen, NOW)).seconds["rated"] for seen in ([short], [], [long])]
    assert seconds == sorted(set(seconds))


def test_seconds_that_were_not_measured_teach_nothing() -> None:
    found = expected(saw(seconds=0, tokens=5000))
    assert found.seconds == pytest.approx(GUESS.seconds)
    assert found.tokens == pytest.approx(5000, rel=0.01)
