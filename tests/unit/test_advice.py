"""A training goes back to the newest checkpoint that is healthy, or a person is asked."""

from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from tests.trainings import row

from coordinate_eval.coordinator.history.alarms import Alarm, Kind
from coordinate_eval.coordinator.training.advice import Save, advise, next_to_evaluate
from coordinate_eval.coordinator.training.spikes import Spike

SPIKE = Spike(
    onset=1205, before=1200, last=1260, kind="divergence", level=2.0, peak=9.0, noise=0.01
).model_copy(update={"decided": 1260})


def saves(
    *steps: int, scores: Literal["healthy", "fallen"] | None = None, **more: str
) -> list[Save]:
    known = {int(name.removeprefix("s")): value for name, value in more.items()}
    return [Save(n, Path(f"/t/step-{n}"), known.get(n, scores)) for n in steps]  # type: ignore[arg-type]


def alarm(kind: Kind, what: str, good: int, since: int) -> Alarm:
    return Alarm(kind, what, row(since), "0.1, and 0.5 was expected", row(good), row(since))


def test_it_goes_back_to_the_newest_healthy_save_before_the_onset_and_skips_the_data() -> None:
    found = advise(SPIKE, saves(500, 1000, 1200, 1210, 1500, scores="healthy"))

    assert (found.onset, found.checkpoint) == (1205, Path("/t/step-1200"))
    assert found.skip == (1201, 1260)
    assert "step 1,205" in found.evidence[0] and found.evaluate is None


def test_gradients_without_a_norm_rose_to_nothing() -> None:
    spike = SPIKE.model_copy(update={"kind": "not a number", "gradient": 0.0})
    assert not any("gradients" in each for each in advise(spike, saves(1200)).evidence)


def test_without_anything_wrong_it_goes_on() -> None:
    rising = SPIKE.model_copy(update={"decided": None, "kind": "spike"})

    assert advise(None, saves(1000)).onset is None
    assert advise(rising, saves(1000)).checkpoint is None
    assert "not clear yet" in advise(rising, saves(1000)).evidence[0]


def test_a_save_whose_scores_fell_or_whose_tensors_are_unfit_is_passed_over() -> None:
    fallen = advise(SPIKE, saves(800, 1000, 1200, s800="healthy", s1200="fallen"))
    unfit = advise(
        SPIKE,
        saves(1000, 1200, scores="healthy"),
        unfit=lambda path: "NaN in lm_head" if path.name == "step-1200" else "",
    )

    assert fallen.checkpoint == Path("/t/step-800")
    assert fallen.evaluate == Path("/t/step-1000")
    assert unfit.checkpoint == Path("/t/step-1000")
    assert any("NaN in lm_head" in each for each in unfit.evidence)


def test_a_save_without_scores_is_taken_and_said_to_have_none() -> None:
    found = advise(SPIKE, saves(1000, 1200))

    assert found.checkpoint == found.evaluate == Path("/t/step-1200")
    assert any("has not been evaluated" in each for each in found.evidence)


def test_never_further_than_the_limit_and_never_twice_for_a_cause() -> None:
    far = advise(SPIKE, saves(100, scores="healthy"), most_back=500)
    again = advise(
        SPIKE.model_copy(update={"onset": 1230, "before": 1220}),
        saves(1000, 1200, scores="healthy"),
        already=[advise(SPIKE, saves(1000, 1200)).cause],
    )

    assert far.checkpoint is None and "500 steps" in far.evidence[-1]
    assert again.checkpoint is None and "a person" in again.evidence[-1]
    assert advise(SPIKE, []).checkpoint is None


def test_scores_that_fell_are_a_reason_to_go_back_without_skipping_data() -> None:
    of_all = advise(
        None, saves(1000, 2000, 3000, scores="healthy"), [alarm("drop", "mean", 2000, 3000)]
    )
    of_one = advise(None, saves(1000, 2000, 3000), [alarm("drop", "mmlu", 2000, 3000)])

    assert (of_all.onset, of_all.checkpoint) == (2001, Path("/t/step-2000"))
    assert of_all.skip is None and "0.5 was expected" in of_all.evidence[0]
    assert of_one.onset is None


@given(st.integers(0, 200), st.integers(1, 200))
def test_the_newest_healthy_save_is_found_by_few_evaluations(healthy: int, count: int) -> None:
    healthy = min(healthy, count)
    known = [Save(n, Path(str(n))) for n in range(count)]
    asked = 0
    while (ask := next_to_evaluate(known)) is not None:
        known[ask.step] = Save(ask.step, ask.path, "healthy" if ask.step < healthy else "fallen")
        asked += 1

    good = [each.step for each in known if each.scores == "healthy"]
    assert max(good, default=-1) == healthy - 1
    assert asked <= 2 + count.bit_length()
