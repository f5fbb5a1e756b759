"""A plan in a terminal: it fits the window, and says what could go wrong."""

import io
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from tests import observed
from tests.plans import CHECKPOINT, capacity, offer, planned, reviewed
from tests.random_examples import examples

from coordinate_eval.clusters.protocol import Busy, JobLimits, Node, Window
from coordinate_eval.coordinator.display import gantt, plan_terminal
from coordinate_eval.coordinator.display.gantt import Phase
from coordinate_eval.coordinator.display.risks import risks
from coordinate_eval.coordinator.display.summary import dataset_table, review, summary
from coordinate_eval.coordinator.inputs.settings import Settings, TrialSettings
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.plan import Cost, Plan, PlanEngine, PlanSuite
from coordinate_eval.coordinator.planning.simulate import Timeline
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Dataset


def shown(drawn: Timeline, width: int, *, height: int = 50, encoding: str = "utf-8") -> list[str]:
    """The chart's lines on a terminal of this size that has no colours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        width=width,
        height=height,
        force_terminal=True,
        no_color=True,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(plan_terminal.Chart(drawn, 64))
    return [_without_styles(line) for line in captured.get().splitlines()]


def _without_styles(line: str) -> str:
    from rich.text import Text

    return Text.from_ansi(line).plain


def drawn(nodes: int, trials: int, datasets: int = 30) -> Timeline:
    return reviewed(nodes=nodes, trials=trials, datasets=datasets).timeline


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(("nodes", "trials"), [(1, 1), (1, 8), (4, 8), (40, 4), (256, 8)])
def test_the_chart_fits_its_window(width: int, nodes: int, trials: int) -> None:
    lines = shown(drawn(nodes, trials), width)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) < 50
    rows = [line for line in lines if line.startswith(("node", "metric"))]
    assert min(map(cell_len, rows)) >= width - 1  # it uses what there is
    first = next(line for line in lines if line.startswith("node1"))
    label = first.split(" ")[0]
    assert label == ("node1-0" if nodes * trials <= 40 else "node1")
    assert "A big0 " in "\n".join(lines)


@given(width=st.integers(20, 300), height=st.integers(5, 100), datasets=st.integers(1, 80))
@examples(40)
def test_no_line_of_the_chart_wraps(width: int, height: int, datasets: int) -> None:
    lines = shown(drawn(3, 8, datasets), width, height=height)
    assert max(map(cell_len, lines)) <= width


def test_a_terminal_of_ascii_is_enough() -> None:
    lines = shown(drawn(2, 4), 80, encoding="ascii")
    assert "\n".join(lines).isascii()
    row = next(line for line in lines if line.startswith("node1-0"))
    assert ":" in row
    assert ": engine start" in "\n".join(lines)


def test_a_row_tells_what_runs() -> None:
    done = drawn(1, 1, datasets=1)
    (row,) = gantt.rows(gantt.lanes(done), 10)
    ready, end = done.trials[0].ready, done.gpus_end
    begin = gantt.cells(row, 100, 2 * ready)
    staged = round(50 * done.trials[0].trial.start_seconds / ready)
    assert set(begin[: staged - 1]) == {Phase.STAGE}
    assert set(begin[staged + 1 : 49]) == {Phase.START}
    assert set(begin[50:]) == {"big0"}
    late = gantt.cells(row, 100, 2 * end)
    assert late[-1] is None


def test_many_trials_share_rows() -> None:
    done = drawn(10, 4)
    assert [r.label for r in gantt.rows(gantt.lanes(done), 40)][:5] == [
        "node1-0", "node1-1", "node1-2", "node1-3", "node2-0",
    ]  # fmt: skip
    assert [r.label for r in gantt.rows(gantt.lanes(done), 10)][:2] == ["node1 ×4", "node2 ×4"]
    grouped = gantt.rows(gantt.lanes(done), 3)
    assert [r.label for r in grouped] == ["node1 … node3", "node4 … node6", "node7 … node10"]
    assert sum(len(r.lanes) for r in grouped) == 40


@pytest.mark.parametrize(
    ("end", "most", "step"), [(0.5, 8, 1), (50, 10, 5), (374, 8, 60), (1e6, 5, 259200)]
)
def test_an_axis_counts_in_round_times(end: float, most: int, step: int) -> None:
    assert gantt.tick_seconds(end, most) == step
    assert end / step <= most


def test_moments_as_people_read_them() -> None:
    assert [gantt.clock(s) for s in (0, 45, 150, 3600, 3900)] == [
        "0",
        "45s",
        "2:30",
        "1h00",
        "1h05",
    ]


@pytest.mark.parametrize("width", [68, 80, 200])
def test_a_narrow_window_cuts_names_only(width: int) -> None:
    file = io.StringIO()
    review = reviewed(name="a-node-of-a-long-name", dataset="a-dataset-of-a-long-name")
    Console(file=file, width=width).print(plan_terminal.render(review))
    text = file.getvalue()
    least = plan_terminal.LEAST_NAME - 1  # and an ellipsis
    for first, last, name in (
        ("node", "last", "a-node-of-a-long-name1"),
        ("dataset", "metric CPU", "a-dataset-of-a-long-name"),
    ):
        header = next(line for line in text.splitlines() if line.startswith(f"┃ {first} "))
        assert cell_len(header) <= width
        assert "…" not in header
        assert f" {last} " in header
        assert f"│ {name[:least]}" in text


# What could go wrong.

NODES = [
    Node(name="node1", gpus=8, free_gpus=8, gpu_type="h200", cpus=128, memory_gib=1000),
]


def found(
    made: list[Cost], nodes: list[Node], busy: list[Busy] | None = None, **more: object
) -> str:
    """All risks of a plan on 8 trials of one node, joined."""
    settings_ = more.pop("settings", Settings())
    guessed = more.pop("guessed", ())
    limits = more.pop("limits", JobLimits())
    cpus = int(str(more.pop("metric_cpus", 64)))
    assert isinstance(settings_, Settings)
    assert isinstance(guessed, tuple)
    ready = planned(
        plan_of(made, cpus), capacity(1, 8), settings_, [Dataset(name=name) for name in guessed]
    )
    run = ready.run.model_copy(update={"limits": limits})
    lines = risks(review(replace(ready, run=run), offer(nodes, busy or [], cpus), []))
    assert all("\n" not in line for line in lines)
    return "\n".join(lines)


def plan_of(made: list[Cost], cpus: int, *, first_signal: bool = False) -> Plan:
    """On one node of eight trials."""
    place = capacity(1, 8).model_copy(update={"metric_cpus": cpus})
    suite, engine = PlanSuite(name="s", digest="d"), PlanEngine(name="vllm", args={})
    return planner.plan_on_capacity(
        CHECKPOINT, suite, engine, made, place, first_signal=first_signal
    )


EVEN = [Cost(name=f"d{i}", items=1000, gpu_seconds=100) for i in range(8)]


def test_nothing_wrong_says_nothing() -> None:
    assert found(EVEN, NODES) == ""


def test_a_node_with_little_memory_is_named() -> None:
    tight = NODES[0].model_copy(update={"memory_gib": 8 * 16 + 14.75})
    assert "memory" in found(EVEN, [tight])
    assert "node1 (0.5 of 142.8 GiB left)" in found(EVEN, [tight])


def test_it_is_said_how_few_gpus_are_free() -> None:
    few = NODES[0].model_copy(update={"free_gpus": 3})
    assert "3 of 8 are free" in found(EVEN, [few])
    busy = [Busy(name=f"b{i}", why="8 of 8 GPUs in use") for i in range(5)]
    text = found(EVEN, NODES, busy)
    assert "b0 (8 of 8 GPUs in use)" in text
    assert "and 2 more" in text


def test_a_first_signal_that_is_missing() -> None:
    wanted = Settings(first_signal=True)
    text = found(EVEN, NODES, settings=wanted)
    assert "no first signal" in text
    assert "first signal" not in found(EVEN, NODES)
    few = Cost(name="few", items=3, gpu_seconds=100, splittable=False)
    ready = planned(plan_of([few, *EVEN], 64, first_signal=True), capacity(1, 8), wanted)
    lines = risks(review(ready, offer(NODES), []))
    assert any(line.startswith("first signal: none of few,") for line in lines)


def test_when_the_first_signal_is_there() -> None:
    ready = planned(plan_of(EVEN, 64, first_signal=True), capacity(1, 8))
    made = review(ready, offer(NODES), [])
    assert dict(summary(made))["first signal"] == "of 8 of 8 datasets by 34.5 s"


def test_prompts_that_are_not_built_yet() -> None:
    plan = plan_of(EVEN, 64).model_copy(update={"build_seconds": 240.0})
    ready = planned(plan, capacity(1, 8))
    assert "prompts" not in dict(summary(review(ready, offer(NODES), [])))
    made = review(replace(ready, unbuilt=["d0", "d1"]), offer(NODES), [])
    assert dict(summary(made))["prompts"] == (
        "6 of 8 datasets are in the cache; "
        "building the others takes about 4 min 00 s on 8 cores first"
    )


def test_a_plan_without_nodes_says_that_no_gpu_is_free() -> None:
    assert "no GPU is free now" in found(EVEN, [])


def test_unsure_times_count_where_they_are_long() -> None:
    wide = EVEN[0].model_copy(update={"spread": 0.7})
    assert "d0 (12% of the GPU time, within a factor of 2.0)" in found([wide, *EVEN[1:]], NODES)
    short = Cost(name="short", items=10, gpu_seconds=1, spread=0.7)
    assert found([short, *EVEN], NODES) == ""


def test_a_longest_item_decides() -> None:
    slow = Cost(name="slow", items=100, gpu_seconds=50, floor_seconds=400)
    assert "longest item: slow" in found([slow, *EVEN], NODES)
    assert "6 min 40 s" in found([slow, *EVEN], NODES)


def test_what_cannot_be_split_decides() -> None:
    whole = Cost(name="whole", items=100, gpu_seconds=900, splittable=False)
    assert "not splittable: whole takes 15 min 00 s" in found([whole, *EVEN], NODES)
    small = Cost(name="small", items=100, gpu_seconds=20, splittable=False)
    assert "not splittable" not in found([small, *EVEN], NODES)


def test_metrics_that_end_last_are_named() -> None:
    code = Cost(name="code", items=100, gpu_seconds=10, metric_cpu_seconds=9000)
    text = found([code, *EVEN], NODES, metric_cpus=4)
    assert "metrics: those of code decide the end" in text
    assert "at most 4 of 4 cores; [metrics] cpus allows more" in text


def test_metrics_that_occupy_all_cores_until_another_dataset_is_scored() -> None:
    code = Cost(name="code", items=100, gpu_seconds=10, metric_cpu_seconds=9000)
    scored = Cost(name="scored", items=100, gpu_seconds=200, score_seconds=30)
    assert "metrics: those of code decide" in found([code, scored, *EVEN], NODES, metric_cpus=4)


def test_scoring_that_ends_last_is_named_and_drawn() -> None:
    long = Cost(name="long", items=100, gpu_seconds=10, score_seconds=400)
    assert "scoring: that of long ends" in found([long, *EVEN], NODES)
    assert "it takes 6 min 40 s on one core" in found([long, *EVEN], NODES)
    made = review(planned(plan_of([long, *EVEN], 64), capacity(1, 8)), offer(NODES), [])
    assert "with the last response after" in dict(summary(made))["makespan"]
    # The cores are drawn where only scoring uses them.
    lines = shown(made.timeline, 100)
    assert any(line.startswith("metric CPUs") and "▁" in line for line in lines)
    table = dataset_table(made)
    assert table.header[-1] == "scoring"
    assert {row[0]: row[-1] for row in table.rows} == {
        "long": "6 min 40 s",
        **{f"d{i}": "" for i in range(8)},
    }


def test_a_time_limit_that_is_cut() -> None:
    cut = Settings(trial=TrialSettings(max_minutes=1))
    text = found(EVEN, NODES, settings=cut)
    assert "max_minutes cuts it to 60.0 s" in text
    assert "further rounds" in text
    sites = JobLimits(gpu_minutes=1, gpu_why="MaxWall of QOS tiny")
    assert "time limit: MaxWall of QOS tiny cuts it to 60.0 s" in found(EVEN, NODES, limits=sites)
    assert found(EVEN, NODES, limits=JobLimits(gpu_minutes=600, gpu_why="x")) == ""
    window = Window(start=time.time() + 3600, why="reservation maint (tonight)")
    text = found(EVEN, NODES, limits=JobLimits(gpu_window=window))
    assert text.startswith("maintenance: reservation maint (tonight) takes all nodes: jobs ask for")
    window = Window(start=time.time() + 600, why="reservation maint (tonight)")
    text = found(EVEN, NODES, limits=JobLimits(gpu_window=window))
    assert text.endswith("jobs that do not end before it wait until it is over")
    whole = [EVEN[0].model_copy(update={"gpu_seconds": 900.0, "splittable": False}), *EVEN[1:]]
    text = found(whole, NODES, limits=sites)
    assert "no job has time for d0 as a whole; several do it in turn" in text


def test_datasets_without_a_prior_are_said_to_be_guessed() -> None:
    guesses = [c.model_copy(update={"spread": 0.7}) for c in EVEN[1:3]]
    costs_ = [EVEN[0], *guesses, *EVEN[3:]]
    assert "guessed: d1, d2 (25% of the GPU time)" in found(costs_, NODES, guessed=("d1", "d2"))
    # Predicted like others that runs have measured, it is not guessed either.
    assert found(EVEN, NODES, guessed=("d1", "d2")) == ""


def test_a_dataset_whose_measured_figure_is_used_is_not_guessed() -> None:
    once = [c.model_copy(update={"spread": 0.7}) for c in EVEN]  # a single run is not sure
    measured = observed.seen("short-text", observed.on()).model_copy(
        update={"subject": subject(Dataset(name="d1"))}
    )
    ready = planned(
        plan_of(once, 64), capacity(1, 8), None, [Dataset(name="d1"), Dataset(name="d2")]
    )
    lines = risks(review(ready, offer(NODES, priors=Priors([measured], observed.NOW)), []))
    (line,) = (line for line in lines if line.startswith("guessed"))
    assert line.startswith("guessed: d2 (")
    assert "because no run has measured it yet" in line


def test_few_shot_examples_that_are_evaluated_items_are_a_risk() -> None:
    ready = replace(planned(plan_of(EVEN, 64), capacity(1, 8)), own_answers=["d1: 3 of 4 items"])
    lines = risks(review(ready, offer(NODES), []))
    assert lines == ["few-shot examples: d1: 3 of 4 items"]
