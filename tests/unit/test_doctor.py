"""What the doctor's checks find, of places that are well and places that are not."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.plans import changed
from tests.reviewer import FakeCluster, OnCluster
from tests.slurm_nodes import task_of

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Busy, Job, Node, State, TaskStatus
from coordinate_eval.coordinator.doctor import examine, folders, in_jobs, scheduler
from coordinate_eval.coordinator.doctor.findings import Answer, Finding, Role, fails, ok
from coordinate_eval.coordinator.inputs.folders import Tried
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings, StageSettings
from coordinate_eval.errors import ClusterError, ClusterSilent, UserError
from coordinate_eval.slurm.settings import SlurmSettings

GIB = 1 << 30


def state(finding: Finding) -> str:
    """The state, after a look at whether it says what to do just where that helps."""
    assert bool(finding.do) == (finding.state.value != "ok"), finding
    return finding.state.value


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({}, "ok", "free"),
        ({"broken": {"make a hard link": "Not supported"}}, "failure", "hard link (Not supported)"),
        ({"free_bytes": 1}, "warning", "1 B are free"),
        ({"ahead_seconds": 90.0}, "warning", "90 s ahead of"),
        ({"ahead_seconds": -90.0}, "warning", "90 s behind"),
        ({"locks": "Not supported"}, "warning", "cannot be locked"),
    ],
)
def test_a_folder_is_found_well_or_why_it_is_not(
    changes: dict[str, Any], expected: str, words: str
) -> None:
    tried = replace(Tried(Path("/x"), free_bytes=9 * GIB), **changes)
    found = folders.finding_of("cache_dir", Path("/x/y"), tried)
    assert state(found) == expected
    assert words in found.found
    assert "/x/y" in found.found


def test_a_folder_that_cannot_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(
        runs_dir=str(tmp_path / "file" / "runs"),
        cache_dir=str(tmp_path / "cache"),
        priors_dir=str(tmp_path / "priors"),
    )
    found = {each.check: state(each) for each in folders.of_settings(settings)}
    assert found == {"cache_dir": "ok", "runs_dir": "failure", "priors_dir": "ok"}


def test_the_place_for_weights_has_to_be_there_where_jobs_run(tmp_path: Path) -> None:
    def states(root: Path, role: Role) -> list[str]:
        settings = Settings(stage=StageSettings(root=str(root)))
        return [state(each) for each in folders.stage(settings, role)]

    assert states(tmp_path, Role.LOGIN)[0] == "ok"
    assert states(tmp_path / "missing", Role.GPU_JOB) == ["failure"]
    (tmp_path / f"coordinate-eval-{os.getuid()}").mkdir(mode=0o755)
    assert states(tmp_path, Role.GPU_JOB) == ["failure"]


def test_a_cache_of_the_hub_that_is_not_there_yet_is_no_trouble(tmp_path: Path) -> None:
    assert state(folders.hub_cache({"HF_HOME": str(tmp_path / "missing")})) == "ok"


def test_imports_happen_in_a_child() -> None:
    assert examine.imported("said = {'version': '1'}").said == {"version": "1"}
    assert examine.imported("print('a banner')\nsaid = {'version': '1'}").said == {"version": "1"}
    assert examine.imported("import no_such_thing").missing == "no_such_thing"
    assert examine.imported("raise OSError('libcuda.so.1')").error == "OSError: libcuda.so.1"
    for reply in ("not JSON", "[]", "7"):
        late = f"said = {{}}\nimport atexit\natexit.register(print, {reply!r})"
        assert repr(reply) in examine.imported(late).error
    assert "exit status" in examine.imported("import os; os._exit(3)").error
    assert "did not end" in examine.imported("while True: pass", seconds=0.01).error


def test_an_engine_that_cannot_be_imported_is_worse_where_it_has_to_run() -> None:
    fine = examine.Imported({"version": "1"})
    assert state(examine.finding_of("engine vllm", fine, Role.GPU_JOB)) == "ok"
    missing = examine.finding_of("engine", examine.Imported({}, "No module", "vllm"), Role.LOGIN)
    assert state(missing) == "failure"
    assert "coordinate-eval[vllm]" in missing.do
    broken = examine.Imported({}, "libcuda.so.1")
    assert state(examine.finding_of("engine vllm", broken, Role.LOGIN)) == "warning"
    assert state(examine.finding_of("engine vllm", broken, Role.GPU_JOB)) == "failure"


def test_gpus_that_an_engine_sees() -> None:
    two = examine.gpus({"gpus": ["H100", "H100"], "for_gpus": True})
    assert (state(two), two.found) == ("ok", "2 × H100")
    assert state(examine.gpus({"gpus": [], "for_gpus": True})) == "failure"
    assert state(examine.gpus({"gpus": [], "for_gpus": False})) == "warning"


def test_servers_that_do_not_answer_are_warned_of_without_their_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    nobody = "http://127.0.0.1:9"
    settings = Settings(judge=JudgeSettings(base_url=f"{nobody}/v1", model="judge"))
    found = {e.check: e for e in examine.network(settings, {"HF_ENDPOINT": nobody})}
    assert {name: state(each) for name, each in found.items()} == {
        "hub": "warning",
        "judge": "warning",
    }
    assert "prefetch" in found["hub"].do
    secret = {"HF_ENDPOINT": "http://me:pass/word@127.0.0.1:9/hub"}
    (hub, _) = examine.network(settings, secret)
    assert hub.found.startswith("http://127.0.0.1:9/hub ")
    assert "word" not in hub.found
    offline = list(examine.network(Settings(), {"HF_HUB_OFFLINE": "1"}))
    assert [state(each) for each in offline] == ["ok"]


def test_no_sandbox_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinate_eval.evaluators.sandbox.sandbox import Sandbox

    def none() -> None:
        raise UserError("let users create user namespaces")

    monkeypatch.setattr(Sandbox, "probe", none)
    assert state(examine.sandbox()) == "warning"


def test_compilers_that_are_missing_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from coordinate_eval.evaluators.sandbox import toolchains

    monkeypatch.setattr(toolchains, "_found", lambda path: "rustc" not in path)
    lacking = examine.compilers()
    assert state(lacking) == "warning"
    assert "Rust" in lacking.found
    assert "C++" not in lacking.found
    assert "rustc" in lacking.do
    monkeypatch.setattr(toolchains, "_found", lambda path: True)
    assert state(examine.compilers()) == "ok"


class Jobs(FakeCluster):
    """A scheduler whose jobs answer, die or wait, by their names."""

    def __init__(self, fates: Mapping[str, str]) -> None:
        super().__init__()
        self.fates, self.cancelled = fates, list[str]()
        self.late = list[tuple[Path, str]]()

    def submit(self, job: Job) -> str:
        folder, name, role = job.argv[-3:]
        fate = self.fates[name]
        if fate == "refused":
            raise ClusterError("no such account")
        if fate == "answers":
            found = Answer(where=name, host="n7", findings=(ok("program", role),))
            _files.write_record(Path(folder, f"{name}.answer.json"), found)
        elif fate == "dies":
            Path(f"{job.log}.5.log").write_text("python: not found\n")
        elif fate == "finds no runtime":
            text = "env: 'apptainer': No such file or directory\n"
            Path(f"{job.log}.5.log").write_text(text)
        elif fate == "dies on Ray":
            Path(f"{job.log}.log").write_text("its worker's last words\n")
        elif fate == "answers late":
            self.late.append((Path(folder, f"{name}.answer.json"), name))
        return super().submit(job)

    def poll(self, prefix: str) -> list[TaskStatus]:
        for path, name in self.late:  # just before the job ends
            _files.write_record(path, Answer(where=name, host="n8", findings=()))
        waits = [job for job in self.submitted if self.fates[job.argv[-2]] == "waits"]
        return [
            TaskStatus(name=job.name, job_id="1", state=State.PENDING, reason="Resources")
            for job in waits
            if job.name.startswith(prefix)
        ]

    def cancel(self, job_ids: list[str]) -> None:
        self.cancelled += job_ids


Asked = Callable[..., list[Answer]]


@pytest.fixture
def asked(tmp_path: Path, on_cluster: OnCluster, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Ask jobs of a scheduler with these settings, and return the answers."""
    monkeypatch.setattr(in_jobs, "HIDDEN_SECONDS", 0.0)

    def ask(cluster: Jobs, **settings: Any) -> list[Answer]:
        on_cluster(cluster)
        given = Settings.model_validate({"runs_dir": str(tmp_path / "runs"), **settings})
        found = list(in_jobs.ask(given, cluster.name, lambda _: None))
        assert list((tmp_path / "runs").iterdir()) == []
        return found

    return ask


IMPATIENT = {"supervisor": {"patience_seconds": 1e-9}}


def node(**changes: object) -> Node:
    """A node with free GPUs."""
    values = {"gpu_type": "h200", "gpu_memory_gib": 141, "gpus": 8, "free_gpus": 3, "cpus": 8}
    return Node.model_validate({"name": "n", "memory_gib": 99} | values | changes, extra="forbid")


def test_free_and_unusable_nodes_are_counted_by_kind() -> None:
    drained = Busy(name="n3", why="drained")
    found = list(scheduler.of_nodes([node(), node()], [drained]))
    assert [state(each) for each in found] == ["ok", "ok"]
    assert [each.found for each in found] == ["6 free on 2 nodes, 141 GiB each", "1 node drained"]
    (untyped,) = scheduler.of_nodes([node(gpu_type="", gpu_memory_gib=0)], [])
    assert state(untyped) == "warning"
    assert [state(each) for each in scheduler.of_nodes([], [drained])] == ["ok", "ok"]
    away = Busy(name="n4", why="not in partition gpu", excluded=True)
    (never,) = scheduler.of_nodes([], [away])
    assert state(never) == "failure"
    assert "not in partition gpu" in never.found


def test_a_silent_or_refusing_scheduler_fails() -> None:
    class Silent(FakeCluster):
        error: Exception = ClusterSilent("no answer")

        def about(self) -> Mapping[str, str]:
            raise self.error

    for error in (ClusterSilent("no answer"), ClusterError("what"), UserError("no partition x")):
        cluster = Silent()
        cluster.error = error
        (found,) = scheduler.of_cluster(cluster)
        assert state(found) == "failure"
        assert str(error) in found.found
    assert state(next(scheduler.of_cluster(FakeCluster()))) == "ok"


def test_a_cluster_file_has_to_be_readable(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    assert state(scheduler.of_file(file)) == "failure"
    file.write_text("nodes: [{name: n, gpus: 1}]\n")
    assert state(scheduler.of_file(file)) == "ok"


def test_each_queue_of_the_settings_gets_a_job() -> None:
    slurm = SlurmSettings(partition="a,b", cpu_partition="c", account="x")
    settings = Settings(slurm=slurm, judge=JudgeSettings(api_key_env="KEY"))
    found = in_jobs.places(settings, FakeCluster())
    assert [each.settings.slurm.partition for each in found] == ["a", "b", "c"]
    assert {each.settings.slurm.account for each in found} == {"x"}
    made = [in_jobs.job(each, Path("/r"), "t") for each in found]
    assert [each.gpus for each in made] == [1, 1, 0]
    assert [each.gpu_work for each in made] == [True, True, False]
    assert {each.without for each in made} == {("KEY",)}
    assert len({each.name for each in made}) == 3


def test_jobs_run_in_the_images_that_runs_use(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"container": {"runtime": "podman", "image": "vllm:1", "images": {"judge": ""}}}
    )
    gpu, cpu = in_jobs.places(settings, FakeCluster())
    assert gpu.title == "in a job with a GPU, image vllm:1, partition by default"
    assert cpu.title == "in a job without a GPU, partition by default"
    made = in_jobs.job(gpu, tmp_path, "t").container
    assert made is not None
    assert str(tmp_path) in {mount.target for mount in made.mounts}
    assert in_jobs.job(cpu, tmp_path, "t").container is None
    here = {each.check: each for each in examine.examine(settings, Role.LOGIN)}
    assert here["engine vllm"].found == "in image vllm:1, which --submit looks into"
    # A machine that runs all jobs itself has two kinds of places then, else one.
    local = FakeCluster()
    local.local = True
    assert len(in_jobs.places(settings, local)) == 2
    (only,) = in_jobs.places(Settings(), local)
    assert in_jobs.job(only, tmp_path, "t").container is None


def test_what_is_wrong_with_a_container_is_said_here_or_by_its_job(
    tmp_path: Path, asked: Asked
) -> None:
    image = {"container": {"runtime": "apptainer", "image": str(tmp_path / "x.sif")}}
    settings = Settings.model_validate(image)
    (here,) = examine.container_here(settings, "slurm")
    assert state(here) == "failure"
    assert "x.sif is not there" in here.found
    (tmp_path / "x.sif").touch()
    (here,) = examine.container_here(settings, "slurm")
    assert state(here) == "ok"
    jobs = Jobs({"gpu-job-0": "finds no runtime", "cpu-job-0": "answers"})
    (died,) = next(each.findings for each in asked(jobs, **image) if not each.host)
    assert "env: 'apptainer': No such file" in died.found
    assert "load its module in [slurm] setup" in died.do


def test_answers_of_jobs_are_collected(asked: Asked) -> None:
    fates = {
        "gpu-job-0": "answers", "gpu-job-1": "dies", "gpu-job-2": "waits", "cpu-job-0": "refused",
    }  # fmt: skip
    cluster, slurm = Jobs(fates), {"partition": "a,b,c", "cpu_partition": "d"}
    found = asked(cluster, slurm=slurm, **IMPATIENT)
    last = {each.where.split()[-1]: each.findings[-1] for each in found}
    states = {name: each.state.value for name, each in last.items()}
    assert states == {"a": "ok", "b": "failure", "c": "warning", "d": "failure"}
    assert "python: not found" in last["b"].found
    assert "Resources" in last["c"].found
    assert "no such account" in last["d"].found
    assert fails(found)
    assert len(cluster.cancelled) == 2  # those that ended, or wait, without an answer


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("Prolog", "warning"),
        ("BeginTime", "warning"),
        ("PartitionDown", "failure"),
        ("SomeReasonOfTheFuture", "failure"),
    ],
)
def test_what_ends_by_itself_is_no_failure_of_a_job_that_waits(
    asked: Asked, reason: str, state: str
) -> None:
    class Waiting(Jobs):
        def poll(self, prefix: str) -> list[TaskStatus]:
            shown = task_of("1", "PENDING", reason, "", "ce-a")
            return [changed(shown, name=each.name) for each in super().poll(prefix)]

    found = asked(Waiting({"gpu-job-0": "waits", "cpu-job-0": "answers"}), **IMPATIENT)
    [said] = next(each.findings for each in found if not each.host)
    assert said.state.value == state
    assert reason in said.found


def test_a_job_on_a_ray_cluster_that_dies_has_last_words(asked: Asked) -> None:
    cluster = Jobs({"gpu-job": "dies on Ray", "cpu-job": "answers"})
    cluster.name = "ray"
    found = {each.where: each for each in asked(cluster)}
    assert found.keys() == {"in a job with a GPU", "in a job without a GPU"}
    (died,) = found["in a job with a GPU"].findings
    assert died.found == "it ended without an answer: its worker's last words"


def test_an_answer_between_two_looks_counts(asked: Asked) -> None:
    found = asked(Jobs({"gpu-job-0": "answers late", "cpu-job-0": "answers"}))
    assert {each.host for each in found} == {"n7", "n8"}


def test_leaving_early_ends_the_jobs(tmp_path: Path, on_cluster: OnCluster) -> None:
    cluster = Jobs({"gpu-job-0": "waits", "cpu-job-0": "waits"})
    on_cluster(cluster)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(in_jobs.ask(Settings(runs_dir=str(tmp_path)), "slurm", interrupt))
    assert len(cluster.cancelled) == 2
    assert list(tmp_path.iterdir()) == []


def test_last_words_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert in_jobs.last_words(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(20_000)) + "\n\n")
    assert in_jobs.last_words(log).endswith("line 19998 | line 19999")
    assert "line 19990" not in in_jobs.last_words(log)
    log.write_text(
        "Timeout (0:02:00)!\n"
        'Thread 0x1 (most recent call first):\n  File "signal.py", line 82 in sigwait\n\n'
        'Thread 0x2 (most recent call first):\n  File "gather.py", line 9 in _all_gather\n'
    )
    assert in_jobs.last_words(log).startswith("it hung: File")
    assert "_all_gather" in in_jobs.last_words(log)
    assert "sigwait" not in in_jobs.last_words(log)
    log.write_text("DistNetworkError: lost\nframe #13: <unknown function> + 0xe6651e\n")
    assert in_jobs.last_words(log, 1) == "DistNetworkError: lost"
    log.unlink()
    log.symlink_to("/etc/hostname")
    assert in_jobs.last_words(log) == ""
