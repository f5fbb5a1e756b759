"""A reviewed plan is what is run, or nothing is."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.runs import TASKS, Workspace
from tests.tiny import tiny_model
from tests.unit.test_plan import CAPACITIES, COSTS, make

from coordinate_eval.coordinator import launch, plan_file
from coordinate_eval.coordinator.arrange import Order
from coordinate_eval.coordinator.cluster import Busy, Job, Node, State, TaskStatus
from coordinate_eval.coordinator.config import (
    MetricSettings,
    Settings,
    SupervisorSettings,
    TrialSettings,
)
from coordinate_eval.coordinator.plan import Capacity, Cost
from coordinate_eval.errors import SubmitRefused, UserError
from coordinate_eval.records import EngineSettings

NODES = [
    Node(
        name=f"n{i}", gpus=4, free_gpus=4, gpu_type="h200", gpu_memory_gib=141, cpus=64,
        memory_gib=200,
    )
    for i in (1, 2)
]  # fmt: skip


LONG = f"""\
include_path: ['{TASKS}']
datasets:
- {{name: tiny_choice, task: tiny_choice, prior: {{gpu_seconds: 9000}}}}
- {{name: tiny_code, task: tiny_code, prior: {{gpu_seconds: 3000, cpu_seconds: 60}}}}
"""
"""Work enough for every GPU there is."""


SLICED = f"""\
include_path: ['{TASKS}']
datasets:
- {{name: tiny_choice, task: tiny_choice, prior: {{gpu_seconds: 5}}}}
- {{name: tiny_code, task: tiny_code, prior: {{gpu_seconds: 1, chunk_overhead_seconds: 1}}}}
- {{name: tiny_cloze, task: tiny_cloze, prior: {{gpu_seconds: 100}}}}
"""
"""Two datasets have a slice, short beside the third."""


class FakeCluster:
    """A scheduler that takes what it is given."""

    def __init__(self) -> None:
        self.free, self.busy = list(NODES), list[Busy]()
        self.submitted: list[Job] = []
        self.calls: Mapping[str, int] = {}
        self.refuses = False

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        return self.free, self.busy

    def submit(self, job: Job) -> str:
        if self.refuses:
            raise SubmitRefused("no")
        self.submitted.append(job)
        return str(len(self.submitted))

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=job.name, job_id="1", state=State.RUNNING)
            for job in self.submitted
            if job.name.startswith(prefix)
        ]

    def cancel(self, job_ids: list[str]) -> None:
        raise AssertionError("nothing is to be cancelled")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One cache of requests for all tests."""
    return Workspace(tmp_path_factory.mktemp("user"))


class User:
    """Someone who plans, reviews and submits."""

    def __init__(self, shared: Workspace, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = FakeCluster()
        self.folder, self.capsys = folder, capsys
        self.file = folder / "plan.json"
        (folder / "long.yaml").write_text(LONG)
        self.settings = Settings(
            suite=str(folder / "long.yaml"),
            cluster="slurm",
            runs_dir=str(folder / "runs"),
            cache_dir=str(shared.folder / "cache"),
            engine=EngineSettings(name="simulated"),
        )

    def plan(self) -> dict[str, Any]:
        """A dry run, its document kept in `file`."""
        order = Order(checkpoint=tiny_model(), dry_run=True, as_json=True)
        assert launch.run(order, self.settings) == 0
        self.file.write_text(self.capsys.readouterr().out)
        tree: dict[str, Any] = json.loads(self.file.read_text())
        return tree

    def wants(self, suite: str, **settings: Any) -> None:
        """From now on this suite, with these settings."""
        (self.folder / "other.yaml").write_text(suite)
        changes = {"suite": str(self.folder / "other.yaml"), **settings}
        self.settings = self.settings.model_copy(update=changes)

    def submit(self, **more: Any) -> Path:
        """The run of the plan in `file`."""
        assert launch.run(Order(plan=self.file, **more), self.settings) == 0
        return Path(self.capsys.readouterr().out.strip())

    def refused(self, *words: str, **more: Any) -> None:
        """Nothing is submitted or written, and these words say why."""
        before = len(self.cluster.submitted)
        with pytest.raises(UserError) as caught:
            launch.run(Order(plan=self.file, **more), self.settings)
        for word in words:
            assert word in str(caught.value)
        assert len(str(caught.value).splitlines()) < 6
        assert len(self.cluster.submitted) == before
        if not before:
            assert not (self.folder / "runs").exists()


@pytest.fixture
def user(
    shared: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> User:
    made = User(shared, tmp_path, capsys)

    @contextlib.contextmanager
    def opened(kind: str, settings: Settings) -> Iterator[FakeCluster]:
        yield made.cluster

    monkeypatch.setattr(launch, "opened", opened)
    monkeypatch.chdir(TASKS)
    return made


def test_what_was_reviewed_is_what_runs(user: User) -> None:
    planned = user.plan()
    user.cluster.free = NODES[::-1]  # which would be planned otherwise
    run = user.submit()
    assert (run / "plan.json").read_text() == user.file.read_text()
    frozen = json.loads((run / "run.json").read_text())
    asked = [shard for trial in planned["trials"] for shard in trial["shards"]]
    assert sorted(map(str, frozen["shards"])) == sorted(map(str, asked))
    shares = json.loads((run / "rounds" / "0.json").read_text())["shares"]
    assert {s["node"]: s["trials"] for s in shares} == {
        node["name"]: sum(t["node"] == node["name"] for t in planned["trials"])
        for node in planned["nodes"]
    }
    assert [job.name.rpartition("-")[2] for job in user.cluster.submitted] == ["super1"]


def test_the_first_signal_of_a_plan_is_that_of_its_run(user: User) -> None:
    user.wants(SLICED, first_signal=True, max_gpus=1)
    plan = user.plan()
    asked = [shard for trial in plan["trials"] for shard in trial["shards"]]
    assert {shard["dataset"] for shard in asked if shard["signal"]} == {"tiny_choice", "tiny_code"}
    run = user.submit()
    frozen = json.loads((run / "run.json").read_text())["shards"]
    assert sorted(map(str, frozen)) == sorted(map(str, asked))
    first = [shard["signal"] for shard in frozen]  # whoever takes free ones takes these first
    assert first == sorted(first, reverse=True)


def test_reviewed_nodes_are_asked_for_where_jobs_take_whole_ones(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_exclusive", lambda cluster, settings: True)
    usual = user.settings.slurm.model_copy(update={"cpu_partition": "cpu"})
    user.settings = user.settings.model_copy(update={"slurm": usual})
    planned = user.plan()
    run = user.submit()
    shares = json.loads((run / "rounds" / "0.json").read_text())["shares"]
    assert [s["node"] for s in shares] == [n["name"] for n in planned["nodes"]]


def test_what_cannot_be_run_is_in_neither_plan_nor_run(user: User) -> None:
    suite = user.folder / "long.yaml"
    more = "- {name: later, items: 500, prior: {gpu_seconds: 900}}\n"
    suite.write_text(suite.read_text() + more)
    assert [d["name"] for d in user.plan()["datasets"]] == ["tiny_choice", "tiny_code"]
    run = user.submit()
    assert (run / "plan.json").read_text() == user.file.read_text()
    user.submit()
    assert len(user.cluster.submitted) == 1
    planned = json.loads(user.file.read_text())
    planned["datasets"].append(planned["datasets"][0] | {"name": "later"})
    shard = planned["trials"][0]["shards"][0]
    whole = shard | {"dataset": "later", "start": 0, "stop": planned["datasets"][0]["items"]}
    planned["trials"][0]["shards"].append(whole)
    user.file.write_text(json.dumps(planned))
    user.refused("dataset later is none that the suite can run", run_dir=user.folder / "other")


def test_a_part_of_a_suite_is_asked_for_again(user: User) -> None:
    order = Order(checkpoint=tiny_model(), dry_run=True, as_json=True, only=("tiny_code",))
    assert launch.run(order, user.settings) == 0
    user.file.write_text(user.capsys.readouterr().out)
    user.refused("--suite and what narrows it")
    run = user.submit(only=("tiny_code",))
    assert (run / "plan.json").read_text() == user.file.read_text()


def test_a_plan_that_no_planner_would_make_is_run_as_it_is(user: User) -> None:
    planned = user.plan()
    cost = planned["datasets"][0]
    template = planned["trials"][0]["shards"][0] | {"dataset": cost["name"]}
    mine = [template | {"start": i, "stop": i + 1} for i in range(cost["items"])]
    for trial in planned["trials"]:
        trial["shards"] = [s for s in trial["shards"] if s["dataset"] != cost["name"]]
    planned["trials"][0]["shards"] += mine
    user.file.write_text(json.dumps(planned))
    run = user.submit()
    shards = json.loads((run / "run.json").read_text())["shards"]
    assert sum(s["dataset"] == cost["name"] for s in shards) == cost["items"]


def test_the_counts_of_a_live_dry_run_are_real(user: User) -> None:
    assert {d["name"]: d["items"] for d in user.plan()["datasets"]} == {
        "tiny_choice": 12,
        "tiny_code": 5,
    }


def test_asking_twice_runs_once(user: User) -> None:
    user.plan()
    user.submit()
    user.submit()
    assert len(user.cluster.submitted) == 1
    user.settings = user.settings.model_copy(update={"max_gpus": 1})
    user.plan()
    user.refused("is there already, of another plan", "--run-dir")
    assert user.submit(run_dir=user.folder / "elsewhere") == user.folder / "elsewhere"


def test_a_refused_submission_leaves_nothing(user: User) -> None:
    user.plan()
    user.cluster.refuses = True
    with pytest.raises(SubmitRefused):
        user.submit()
    assert not list((user.folder / "runs").iterdir())


def test_a_reviewed_plan_can_be_shown_again(user: User) -> None:
    user.plan()
    text = user.file.read_text()
    assert launch.run(Order(plan=user.file, dry_run=True, as_json=True), user.settings) == 0
    assert user.capsys.readouterr().out == text
    user.cluster.free = NODES[:1]
    user.refused("n2", dry_run=True)


def test_the_checkpoint_must_be_the_same(user: User, tmp_path: Path) -> None:
    planned = user.plan()
    user.submit(checkpoint=tiny_model(), run_dir=tmp_path / "both")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tiny_model().iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    user.refused(str(tiny_model()), str(copy), checkpoint=copy)
    planned["checkpoint"]["path"] = str(copy)
    user.file.write_text(json.dumps(planned))
    user.refused(str(copy), "has changed")
    planned["checkpoint"]["path"] = str(tmp_path / "gone")
    user.file.write_text(json.dumps(planned))
    user.refused("gone does not exist")


def test_the_suite_must_be_the_same(user: User, shared: Workspace) -> None:
    user.plan()
    other = str(shared.suite("tiny_choice"))
    user.settings = user.settings.model_copy(update={"suite": other})
    user.refused("of suite long ", "not of suite-tiny_choice ", "--suite")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": EngineSettings(name="vllm")}, ("engine", '"simulated"', '"vllm"')),
        (
            {"engine": EngineSettings(name="simulated", args={"a": 1})},
            ("engine.args {}", '{"a": 1}'),
        ),
        ({"trial": TrialSettings(max_length=512)}, ("trial.max_length", "1024", "512")),
        ({"trial": TrialSettings(tensor_parallel=2)}, ("trial.tensor_parallel", "1", "2")),
        ({"metrics": MetricSettings(cpus=3)}, ("metrics.cpus", "8", "3")),
        ({"nodes": "n1"}, ("--nodes 'n1'", "n2")),
        ({"nodes": "1"}, ("--nodes '1'",)),
        ({"max_gpus": 2}, ("--max-gpus 2",)),
        ({"cluster": "some.yaml"}, ("some.yaml", "--dry-run")),
    ],
)
def test_the_settings_must_agree(
    user: User, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    user.plan()
    user.settings = user.settings.model_copy(update=change)
    user.refused(*words)


def test_a_plan_of_another_program_may_lack_what_was_added(user: User) -> None:
    planned = user.plan()
    del planned["metric_cpus"], planned["max_length"]
    planned["metric_jobs"][0]["cpus"] = 2
    user.file.write_text(json.dumps(planned))
    usual = user.settings
    user.settings = usual.model_copy(update={"metrics": MetricSettings(cpus=1)})
    user.refused("metric jobs of", "metrics.cpus is 1")
    user.settings = usual
    user.submit()


def test_settings_that_change_nothing_of_it_may_differ(user: User) -> None:
    user.plan()
    change = {"supervisor": SupervisorSettings(minutes=600), "nodes": "n[1-2]", "max_gpus": 8}
    user.settings = user.settings.model_copy(update=change)
    user.submit()


@pytest.mark.parametrize(
    ("free", "busy", "words"),
    [
        ([NODES[0]], [], ("n2: there is no such node",)),
        ([NODES[0]], [Busy(name="n2", why="4 of 4 GPUs in use")], ("n2: 4 of 4 GPUs in use",)),
        ([], [], ("n1: ", "n2: ")),
        (
            [NODES[0], NODES[1].model_copy(update={"free_gpus": 3})],
            [],
            ("n2: 3 GPUs, 64 cores and 200.0 GiB are free; 4 trials", "4 GPUs"),
        ),
        (
            [NODES[0], NODES[1].model_copy(update={"memory_gib": 40})],
            [],
            ("n2: 4 GPUs, 64 cores and 40.0 GiB are free", "65.0 GiB"),
        ),
        (
            [NODES[0], NODES[1].model_copy(update={"cpus": 16})],
            [],
            ("n2: 4 GPUs, 16 cores", "17 cores"),
        ),
        (
            [NODES[0], NODES[1].model_copy(update={"gpu_type": "a100"})],
            [],
            ("n2: its GPUs are a100, not h200",),
        ),
    ],
)
def test_its_nodes_must_have_room(
    user: User, free: list[Node], busy: list[Busy], words: tuple[str, ...]
) -> None:
    user.plan()
    user.cluster.free, user.cluster.busy = free, busy
    user.refused("cannot start as it is", *words)


def test_a_plan_for_unknown_nodes_is_none_to_submit(user: User) -> None:
    user.cluster.free, user.cluster.busy = [], [Busy(name="n1", why="4 of 4 GPUs in use")]
    user.settings = user.settings.model_copy(update={"queue": True})
    user.plan()
    user.refused("--queue")


def test_the_items_must_be_those_that_are_built(user: User) -> None:
    planned = user.plan()
    cost = planned["datasets"][0]
    cost["items"] += 1
    (last,) = [
        shard
        for trial in planned["trials"]
        for shard in trial["shards"]
        if (shard["dataset"], shard["stop"]) == (cost["name"], cost["items"] - 1)
    ]
    last["stop"] += 1
    user.file.write_text(json.dumps(planned))
    user.refused(f"13 items of dataset {cost['name']}", "12 were built")


def _of_a_node(tree: dict[str, Any]) -> Any:
    return tree["trials"][0]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.pop("trials"), "trials: Field required"),
        (lambda t: t.update(schema="coordinate-eval/run@1"), "schema is 'coordinate-eval/run@1'"),
        (lambda t: t.pop("schema"), "it has no schema"),
        (lambda t: t.update(datasets=[]), "has no dataset"),
        (lambda t: t["nodes"].append(t["nodes"][0]), "node n1 stands twice"),
        (lambda t: t["datasets"].append(t["datasets"][0]), "stands twice"),
        (lambda t: t["trials"].append(t["trials"][0]), "trial n1-0 stands twice"),
        (lambda t: t["nodes"].pop(), "no node n2"),
        (lambda t: t["trials"][0].update(gpus=2), "trial n1-0 has 2 GPUs, of 1"),
        (lambda t: t["trials"][0]["shards"].pop(), "in no shard"),
        (lambda t: t["trials"][1]["shards"].append(t["trials"][0]["shards"][0]), "more than one"),
        (lambda t: t["trials"][0]["shards"][0].update(stop=99), "none of its"),
        (lambda t: t["trials"][0]["shards"][0].update(start=-1), "-1"),
        (lambda t: t["trials"][0]["shards"][0].update(dataset="x"), "dataset x"),
        (lambda t: t["trials"][0]["shards"][0].update(gpu_seconds="nan"), "nan is no time"),
        (lambda t: t["stages"][0].update(seconds=-2), "-2.0 is no time"),
        (lambda t: t["stages"].pop(), "node n2 has no stage"),
        (lambda t: t["estimate"].update(lower_bound_seconds=0), "of no time at all"),
        (lambda t: t["metric_jobs"].append(
            {"dataset": "tiny_code", "start": 0, "stop": 6, "cpus": 1, "seconds": 1}),
         "tiny_code 0-6"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be(
    user: User, spoil: Callable[[dict[str, Any]], object], words: str
) -> None:
    planned = user.plan()
    spoil(planned)
    user.file.write_text(json.dumps(planned))
    user.refused("plan.json", words, "--dry-run --json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON"),
        (b'{"schema": "coordinate-eval/plan@1", "trials": [', "is no JSON"),
        (b"\xff\xfe\x00", "line 1 is not UTF-8"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1, 2]", "it has no schema"),
        (b"null", "it has no schema"),
        (b'{"schema": "coordinate-eval/plan@2"}', "plan@2"),
        (b'{"schema": "coordinate-eval/plan@1"}', "Field required"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words):
        plan_file.read(file)
    with pytest.raises(UserError, match="cannot be read"):
        plan_file.read(tmp_path / "absent.json")


def test_options_that_go_together() -> None:
    usual = Settings(cluster="slurm")
    for order in (Order(), Order(dry_run=True)):
        with pytest.raises(UserError, match="CKPT, or --plan"):
            launch.run(order, usual)
    for order in (Order(html=Path("x")), Order(scripts=Path("x"))):
        with pytest.raises(UserError, match="add --dry-run"):
            launch.run(order, usual)


@given(COSTS, CAPACITIES)
@settings(max_examples=60, deadline=None)
def test_what_the_planner_makes_is_sound_and_is_read_as_written(
    costs: list[Cost], capacity: Capacity
) -> None:
    made = plan_file.PlanFile.of(make(costs, capacity), metric_cpus=8, max_length=64)
    assert list(plan_file.contradictions(made)) == []
    again = plan_file.PlanFile.model_validate_json(made.model_dump_json(by_alias=True))
    assert again == made
    one = made.trials[0]
    fewer = one.model_copy(update={"shards": one.shards[1:]})
    without = made.model_copy(update={"trials": [fewer, *made.trials[1:]]})
    assert any("in no shard" in problem for problem in plan_file.contradictions(without))
