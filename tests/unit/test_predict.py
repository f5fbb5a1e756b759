"""Learning finds the truth where it was seen, and the roofline where it was not."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observed import (
    DATASETS,
    DAY,
    NOW,
    SLOWER,
    on,
    run_of,
    seen,
    subject,
    true_seconds,
    work_of,
)

from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.priors import gpus, likeness, predict
from coordinate_eval.priors import roofline as model
from coordinate_eval.priors.observations import (
    DatasetSeen,
    MetricSeen,
    ScoreSeen,
    StageSeen,
    TrialSeen,
)
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.roofline import Conditions


def errors(observed: Sequence[DatasetSeen], conditions: Conditions) -> list[float]:
    priors = Priors(observed, NOW)
    return [
        abs(
            priors.predict(subject(n), work_of(n), conditions).gpu_seconds
            / true_seconds(n, conditions)
            - 1
        )
        for n in DATASETS
    ]


def test_with_nothing_seen_it_is_the_roofline_and_says_so() -> None:
    for gpu, spread in (("h100", predict.SHIPPED_SPREAD), ("brand new", predict.UNKNOWN_SPREAD)):
        conditions = on(gpu=gpu)
        for name in DATASETS:
            predicted = Priors().predict(subject(name), work_of(name), conditions)
            rates = gpus.lookup(gpu)
            assert predicted.gpu_seconds == model.gpu_seconds(
                work_of(name), conditions.model, rates
            )
            assert predicted.spread == pytest.approx(spread)
            assert predicted.observations == 0


def test_the_second_checkpoint_of_a_model_is_predicted_from_the_first() -> None:
    assert max(errors(run_of(on()), on())) < 0.03
    first = Priors(run_of(on()), NOW).predict(subject("thinking"), work_of("thinking"), on())
    assert first.spread <= 0.15
    assert first.observations == 1


def test_a_size_that_never_ran_is_predicted_from_two_others() -> None:
    observed = [*run_of(on(1.0), run="a"), *run_of(on(30.0), run="b")]
    found = errors(observed, on(7.0))
    assert sorted(found)[len(found) // 2] < 0.15
    assert max(found) < 0.3
    spread = Priors(observed, NOW).predict(subject("thinking"), work_of("thinking"), on(7)).spread
    assert 0.12 < spread < predict.SHIPPED_SPREAD


def test_more_runs_make_it_surer() -> None:
    dice = random.Random(1)
    observed: list[DatasetSeen] = []
    spreads = []
    for number in range(20):
        observed += run_of(on(), run=str(number), noise=math.exp(dice.gauss(0, 0.03)))
        spreads.append(
            Priors(observed, NOW).predict(subject("long-text"), work_of("long-text"), on()).spread
        )
    assert spreads[-1] < spreads[0]
    assert spreads[-1] >= predict.LEAST_SPREAD


def test_noisy_runs_are_said_to_be_noisy() -> None:
    observed = [
        one
        for number, noise in enumerate((0.5, 2.0, 0.6, 1.8))
        for one in run_of(on(), run=str(number), noise=noise)
    ]
    predicted = Priors(observed, NOW).predict(subject("long-text"), work_of("long-text"), on())
    assert predicted.spread > 0.3


def test_what_is_newer_counts_more() -> None:
    old = run_of(on(), run="old", noise=2.0, days_ago=6 * likeness.HALF_LIFE_DAYS)
    assert max(errors([*old, *run_of(on(), run="new")], on())) < 0.05


def test_what_is_more_like_it_counts_more() -> None:
    far = [one for n in range(5) for one in run_of(on(70.0), run=f"far{n}", noise=2.0)]
    assert max(errors([*far, *run_of(on(), run="same")], on())) < 0.1


def test_other_settings_of_a_task_count_less_than_its_own() -> None:
    other = [seen("long-text", on(), run=f"o{n}", noise=3.0, settings="5 shots") for n in range(2)]
    own = seen("long-text", on(), run="own")
    predicted = Priors([*other, own], NOW).predict(subject("long-text"), work_of("long-text"), on())
    assert predicted.gpu_seconds < 1.5 * true_seconds("long-text", on())


def test_a_gpu_that_never_ran_stays_at_the_roofline_of_its_own() -> None:
    observed = run_of(on(gpu="a100"))
    for name in DATASETS:
        asked = on(gpu="h200")
        predicted = Priors(observed, NOW).predict(subject(name), work_of(name), asked)
        roofline = model.gpu_seconds(work_of(name), asked.model, gpus.lookup("h200"))
        assert roofline / 2 < predicted.gpu_seconds < 2 * roofline
        assert predicted.spread >= predict.SHIPPED_SPREAD


def test_how_much_a_model_writes_is_learned() -> None:
    guess = work_of("long-text", outputs=3.0)
    before = Priors().predict(subject("long-text"), guess, on())
    after = Priors(run_of(on()), NOW).predict(subject("long-text"), guess, on())
    assert after.gpu_seconds == pytest.approx(true_seconds("long-text", on()), rel=0.1)
    # Steps are slower than the roofline has them, and the longest text is a third as long.
    assert after.floor_seconds < before.floor_seconds * SLOWER


def test_prompts_that_were_not_counted_are_recalled() -> None:
    guess = work_of("short-choice").model_copy(update={"prompt_tokens": 1e7, "requests": 100.0})
    priors = Priors(run_of(on()), NOW)
    recalled = priors.predict(subject("short-choice"), guess, on(), built=False)
    assert recalled.gpu_seconds == pytest.approx(true_seconds("short-choice", on()), rel=0.2)


def test_made_up_answers_teach_nothing_about_a_model() -> None:
    fake = run_of(on(engine="simulated"), noise=50.0)
    for name in DATASETS:
        predicted = Priors(fake, NOW).predict(subject(name), work_of(name), on())
        assert predicted.gpu_seconds == pytest.approx(
            Priors().predict(subject(name), work_of(name), on()).gpu_seconds
        )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(DATASETS)),
            st.sampled_from([0.1, 1.0, 7.0, 400.0]),
            st.sampled_from(["h100", "cpu/x", "brand new"]),
            st.floats(1e-3, 1e3),
            st.floats(-10, 900),
        ),
        max_size=25,
    )
)
def test_predictions_are_sane_whatever_was_seen(
    rows: list[tuple[str, float, str, float, float]],
) -> None:
    observed = [
        seen(name, on(size, gpu=gpu), run=str(i), noise=noise, days_ago=days)
        for i, (name, size, gpu, noise, days) in enumerate(rows)
    ]
    priors = Priors(observed, NOW)
    for name in DATASETS:
        predicted = priors.predict(subject(name), work_of(name), on())
        assert math.isfinite(predicted.gpu_seconds)
        assert predicted.gpu_seconds > 0
        # The largest ratio of seconds is that of the limits, 10¹² and 10⁻⁶.
        assert predict.LEAST_SPREAD <= predicted.spread < 42
        assert predicted.floor_seconds >= 0


def test_starts_and_metrics_are_learned() -> None:
    def started(seconds: float, conditions: Conditions) -> TrialSeen:
        return TrialSeen(
            run="r", time=NOW, conditions=conditions, trial="n-0", start_seconds=seconds
        )

    metric = MetricSeen(
        run="r", time=NOW, conditions=on(), dataset="d", subject=subject("short-text"), items=100,
        cpu_seconds=300.0,
    )  # fmt: skip
    starts = [started(s, on()) for s in (20.0, 30.0, 90.0)]
    priors = Priors([*starts, started(5.0, on(1.0)), metric], NOW)
    assert priors.start_seconds(on()) == 30.0
    assert priors.start_seconds(on(3.0)) == 25.0
    assert priors.start_seconds(on(gpu="a100")) is None
    work = work_of("short-text").model_copy(update={"metric_cpu_seconds": 10.0})
    predicted = priors.predict(subject("short-text"), work, on())
    assert predicted.metric_cpu_seconds == pytest.approx(3000, rel=0.05)


def test_scoring_is_learned_from_any_number_of_items() -> None:
    work = model.Work(
        items=1000, requests=4000, prompt_tokens=1, output_tokens=0, longest_output_tokens=0
    )

    def predicted(*seen: ScoreSeen) -> float:
        return Priors(seen, NOW).predict(subject("mmlu"), work, on()).score_seconds

    def scored(items: int, seconds: float, settings: str = "as is") -> ScoreSeen:
        return ScoreSeen(
            run="r", time=NOW, conditions=on(), dataset="d", subject=subject("mmlu", settings),
            items=items, requests=4 * items, seconds=seconds,
        )  # fmt: skip

    shipped = predicted()
    assert shipped == pytest.approx(model.score_seconds(1000, 4000))
    # A tenth of the items took twice what was thought of them, loading included.
    tenth = scored(100, 2 * model.score_seconds(100, 400))
    assert predicted(tenth) == pytest.approx(2 * shipped, rel=0.02)
    # Other settings, such as the number of examples in the prompt, count less.
    other = scored(1000, 5 * shipped, settings="other")
    assert 2 * shipped < predicted(tenth, other) < 2.5 * shipped


def copied(seconds: float, *, days_ago: float = 0.0, **values: object) -> StageSeen:
    """A lone copy of the weights of `on()`."""
    given = {"storage": "/ckpts", "converted": False, "bytes": on().model.bytes, **values}
    when = NOW - days_ago * DAY
    return StageSeen.model_validate(
        {"run": "r", "time": when, "conditions": on(), "node": "n", "seconds": seconds}
        | {"at_once": 1, **given},
        extra="forbid",
    )


def staged(*seen: StageSeen, billions: float = 7.0, converted: bool = False) -> float:
    """Seconds that a plan would take for a lone copy."""
    asked = on(billions)
    link = Priors(seen, NOW).link(asked, "/ckpts", converted=converted, gigabits=25.0)
    return link.seconds(asked.model.bytes, 1)


def test_copies_are_learned() -> None:
    assert staged() == pytest.approx(14 * 8 / 25)
    assert staged(*[copied(60.0)] * 3) == pytest.approx(60, rel=0.1)
    # In proportion for a model not much larger.
    assert staged(*[copied(60.0)] * 3, billions=14.0) == pytest.approx(120, rel=0.15)


@pytest.mark.parametrize(
    "unlike",
    [
        {"days_ago": 6 * likeness.HALF_LIFE_DAYS},
        {"storage": "/home"},
        {"converted": True},
        {"bytes": 2_000_000, "seconds": 300.0 / 7000},
        {"conditions": on(gpu="a100")},
    ],
)
def test_copies_that_are_more_like_it_count_more(unlike: dict[str, object]) -> None:
    others = [copied(**({"seconds": 300.0} | unlike))] * 4  # type: ignore[arg-type]
    assert staged(*others, *[copied(30.0)] * 4) == pytest.approx(30, rel=0.6)


def test_what_is_left_out_is_predicted_from_the_rest() -> None:
    observed = [one for n in range(3) for one in run_of(on(), run=str(n))]
    found = predict.errors_left_out(observed, NOW, 10)
    assert found.keys() == DATASETS.keys()
    assert all(len(each) == 3 for each in found.values())
    assert max(abs(e) for each in found.values() for e in each) < 0.05


@pytest.mark.parametrize("off", [1e-9, 1e9])
def test_whatever_was_measured_a_prediction_is_a_cost(off: float) -> None:
    strange = [
        s.model_copy(update={"gpu_seconds": min(max(s.gpu_seconds * off, 1e-6), 9e9)})
        for s in run_of(on())
    ]
    for name in DATASETS:
        expected = Priors(strange, NOW).predict(subject(name), work_of(name), on())
        Cost(name=name, items=1, gpu_seconds=expected.gpu_seconds, spread=expected.spread)
