"""Alarms: what a training's past does not explain is said once, and nothing else is said."""

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.trainings import call, row, run_of

from coordinate_eval.coordinator.history.alarms import Alarm, alarms
from coordinate_eval.coordinator.history.columns import Score
from coordinate_eval.coordinator.history.measured import Measured, keep
from coordinate_eval.coordinator.history.series import Series
from coordinate_eval.errors import UserError

DATASETS = [f"d{number}" for number in range(20)]


def share(value: float, items: int = 1000) -> Score:
    """A share of right items, with its standard error."""
    return Score(value, math.sqrt(value * (1 - value) / items), items, "acc", True, "x")


def training(
    change: Callable[[int, str], float] = lambda step, name: 0.0, seed: int = 0, count: int = 40
) -> Series:
    """A training whose scores rise with noise, and what a change adds to them."""
    noise = random.Random(seed)

    def score(step: int, name: str) -> Score:
        p = 0.3 + 0.01 * DATASETS.index(name) + 0.2 * (1 - math.exp(-step / 15))
        p = min(0.99, max(0.01, p + change(step, name)))
        return share(sum(noise.random() < p for _ in range(1000)) / 1000)

    rows = [row(step, {name: score(step, name) for name in DATASETS}) for step in range(count)]
    return Series(rows, DATASETS, {}, [])


def told(found: Sequence[Alarm]) -> list[tuple[str, str, int | None]]:
    return [(alarm.kind, alarm.what, alarm.row.step) for alarm in found]


def test_a_healthy_training_raises_no_alarm() -> None:
    raised = [alarm for seed in range(5) for alarm in alarms(training(seed=seed))]

    assert len(raised) <= 2, told(raised)  # of 200 checkpoints; less than one in a hundred


def test_a_drop_is_told_from_a_step_that_came_sooner() -> None:
    noise = random.Random(1)
    steps = [0]
    for n in range(30):
        steps.append(steps[-1] + (100, 900)[n % 2])

    def raised(drop: float) -> list[tuple[str, str, int | None]]:
        rows = []
        for step in steps:
            level = 0.2 + 3e-5 * step - drop * (step >= steps[-2])
            scores = {name: share(level + noise.gauss(0, 0.0005)) for name in DATASETS}
            rows.append(row(step, scores))
        return told(alarms(Series(rows, DATASETS, {}, [])))

    assert raised(0.0) == []
    assert ("drop", "mean", steps[-2]) in raised(0.01)  # a usual step is 0.015


def test_a_small_drop_of_everything_is_found_in_the_mean_within_two_checkpoints() -> None:
    for seed in range(5):
        raised = alarms(training(lambda step, _: -0.03 * (step >= 30), seed))

        (first,) = [alarm for alarm in raised if alarm.what == "mean"]
        assert first.kind == "drop"
        assert first.row.step in (30, 31)
        assert first.good is not None
        assert first.good.step in (29, 30)
        assert "was expected" in first.words


def test_a_collapse_of_one_dataset_is_found_at_once_and_said_once() -> None:
    raised = alarms(training(lambda step, name: -1 * (name == "d7" and step >= 3)))

    assert told(raised)[0] == ("collapse", "d7", 3)
    assert [alarm.what for alarm in raised].count("d7") == 1
    assert raised[0].last.step == 39  # the newest: it goes on


def test_a_dataset_that_falls_twice_is_told_twice() -> None:
    raised = alarms(training(lambda step, name: -0.3 * (name == "d7" and step in (10, 30))))

    assert [each for each in told(raised) if each[1] == "d7"] == [
        ("collapse", "d7", 10), ("collapse", "d7", 30),
    ]  # fmt: skip


def test_a_perplexity_that_explodes_is_a_collapse() -> None:
    values = [20.0, 19.0, 18.5, 1e14]
    rows = [
        row(step, {"ppl": Score(value, 0.2, 100, "word_perplexity", False, "x")})
        for step, value in enumerate(values)
    ]

    assert told(alarms(Series(rows, ["ppl"], {}, []))) == [("collapse", "ppl", 3)]


def test_what_scores_say_of_themselves_is_told_once_each() -> None:
    good = row(1, {"a": share(0.5)})
    empty = {"a": "a: 30 of 100 answers are empty"}
    rows = [
        good,
        row(2, {"a": Score(math.nan, None, 1000, "acc", True, "x")}),
        row(3, {"a": share(0.5)}, missing=["b"]),
        row(4, {"a": share(0.5)}, warnings=empty),
        row(5, {"a": share(0.5)}, warnings=empty),
        row(6, {}, missing=["a", "b"], ended=False),
    ]

    raised = alarms(Series(rows, ["a"], {}, []))

    assert told(raised) == [("not a number", "a", 2), ("missing", "b", 3), ("degenerate", "a", 4)]
    assert raised[0].good == good
    assert raised[2].words == "30 of 100 answers are empty"
    assert [alarm.last.step for alarm in raised] == [2, 3, 5]


@given(
    st.lists(
        st.lists(st.tuples(st.floats(), st.none() | st.floats(0, 1), st.booleans()), max_size=3),
        max_size=12,
    )
)
def test_any_scores_are_judged(table: list[list[tuple[float, float | None, bool]]]) -> None:
    rows = [
        row(
            step,
            {
                f"d{place}": Score(value, stderr, 1, "m", higher, "x")
                for place, (value, stderr, higher) in enumerate(values)
            },
        )
        for step, values in enumerate(table)
    ]
    names = list(dict.fromkeys(name for each in rows for name in each.scores))

    for alarm in alarms(Series(rows, names, {}, [])):
        assert alarm.row in rows


def test_the_exit_status_tells_whether_the_newest_checkpoint_is_well(tmp_path: Path) -> None:
    for step, value in ((100, 0.5), (200, 0.1), (300, 0.1)):
        run_of(tmp_path, step, {"a": value, "b": 0.5})
    broken = call(tmp_path, "alarms")
    run_of(tmp_path, 400, {"a": 0.52, "b": 0.5})
    well = call(tmp_path, "alarms", "--json")
    (tmp_path / "step-400-x" / "run.json").write_text("{")
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{of: a, at_least: 0.1}]")
    unreadable = call(tmp_path, "gate", "step-400-x", "--policy", str(policy))

    assert (broken.exit_code, well.exit_code) == (1, 0)
    assert "a: collapse" in broken.stdout
    assert ", until step 300" in broken.stdout
    assert [each["until"] for each in json.loads(well.stdout)["alarms"]] == [
        "/ckpts/seven/step-300"
    ]
    assert isinstance(unreadable.exception, UserError)  # 2; 1 would be NO-GO


def test_one_item_that_turns_wrong_is_no_alarm() -> None:
    one = [Score(float(step % 2), None, 1, "acc", True, "x") for step in range(10)]
    rows = [row(step, {"a": each, "b": share(0.5)}) for step, each in enumerate(one)]
    assert alarms(Series(rows, ["a", "b"], {}, [])) == []


def test_trainings_that_were_asked_differently_have_their_own_alarms(tmp_path: Path) -> None:
    for step, value in ((100, 0.5), (200, 0.1)):
        run_of(tmp_path, step, {"a": value, "b": 0.5})
    kept = Measured(
        run="other-1", dir="/none", checkpoint="/ckpts/other/step-1", training="/ckpts/other",
        identity="1", step=1, suite="s", created=1e10, ended=1e10, complete=True,
        scores={"a": (0.5, 0.01, 100, "acc", True, "otherwise")},
    )  # fmt: skip
    keep(str(tmp_path), kept)

    assert call(tmp_path, "alarms").exit_code == 1
