"""What a guard shows, tells, and passes on: goodput, messages, bad nodes, its own successor."""

import http.server
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import SetClock
from tests.runs import until

from coordinate_eval.clusters.protocol import End, Hold, JobLimits, State, TaskStatus
from coordinate_eval.coordinator.cli.inquire.guards import curves
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.guarding import testing_nodes
from coordinate_eval.coordinator.training.guarding.attempts import (
    Attempt,
    Begun,
    Ended,
    GuardDir,
    Guarded,
    JobOf,
    Logs,
    What,
)
from coordinate_eval.coordinator.training.guarding.decide import decide
from coordinate_eval.coordinator.training.guarding.guard_job import handover_of, leaves, prefix
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.shown import status
from coordinate_eval.coordinator.training.guarding.tell import MOST_TRIES, Notifier
from coordinate_eval.coordinator.training.guarding.vitals import Vitals
from coordinate_eval.coordinator.training.guarding.watching import MOST_KEPT_BYTES, Watching
from coordinate_eval.coordinator.training.guarding.why import cause_of, named_nodes
from coordinate_eval.diagnosis.cause import Cause
from coordinate_eval.records import Record
from coordinate_eval.slurm.batch import Described


def guarded(folder: Path, **policy: Any) -> tuple[GuardDir, Guarded]:
    (folder / "attempts").mkdir()
    (folder / "told").mkdir()
    made = Guarded(
        name="t", nonce="0", created=0, script="/t.sbatch", folder=str(folder), checkpoints="/c",
        policy=Policy(**policy), settings=Settings(), python="python",
    )  # fmt: skip
    return GuardDir(folder), made


def write(guard_dir: GuardDir, number: int, **records: Record) -> None:
    for name, record in records.items():
        what = "" if name == "attempt" else name
        guard_dir.of_attempt(number, what).write_text(record.model_dump_json())


def test_goodput_is_the_time_of_steps_that_are_kept(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    write(
        guard_dir,
        1,
        attempt=Attempt(number=1, decided=0),
        job=JobOf(job_id="7", time=1),
        begun=Begun(time=100, nodes="n[1-2]"),
        vitals=Vitals(first_step=0, last_step=100, stepped=200, seen=1200, loss=2.5),
        end=Ended(number=1, what=What.NODE_FAILED, time=1300, last_step=100),
    )
    write(
        guard_dir,
        2,
        attempt=Attempt(
            number=2, decided=1350, step=80, checkpoint="/c/step-80", why="lost a node"
        ),
        job=JobOf(job_id="8", time=1350),
        begun=Begun(time=1400, nodes="n[2-3]"),
        vitals=Vitals(first_step=80, last_step=100, stepped=1500, seen=1700, loss=2.4),
    )
    found = status(guard_dir, training, 2000)
    assert found["state"] == "running"
    assert found["lost_steps"] == 20
    assert found["restart_seconds"] == 200
    # 800 s of the first attempt, whose last 20 steps were repeated, and 200 s of the second.
    assert found["goodput"] == pytest.approx(1000 / 2000)
    first, second = found["attempts"]
    assert (first["what"], first["incident"], first["done"]) == ("lost a node", True, "lost a node")
    assert (second["what"], second["incident"], second["job"]) == ("", False, "8")


def test_where_no_step_is_read_there_is_no_goodput_and_the_log_is_named(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    write(
        guard_dir,
        1,
        attempt=Attempt(number=1, decided=0),
        begun=Begun(time=100, nodes="n1"),
        logs=Logs(own=("/l/train.log",)),
        end=Ended(number=1, what=What.FAILED, time=1300, last_step=100),
    )
    found = status(guard_dir, training.model_copy(update={"policy_file": "/my guard.toml"}), 2000)
    assert (found["goodput"], found["unread"]) == (None, ["/l/train.log"])
    assert found["command"].endswith("--checkpoints /c --policy '/my guard.toml'")


def test_a_guard_that_has_not_begun_shows_nothing(tmp_path: Path) -> None:
    found = status(*guarded(tmp_path), 100)
    assert (found["state"], found["goodput"], found["attempts"]) == ("between attempts", None, [])


def test_attempts_are_drawn_over_the_same_steps(tmp_path: Path) -> None:
    points = tmp_path / "points.jsonl"
    first = [(1, step, 2.0 if step < 61 else 200.0) for step in range(1, 121)]
    second = [(2, step, 2.0 if step < 91 else 0.02) for step in range(61, 121)]
    told = [{"attempt": a, "step": s, "loss": loss} for a, s, loss in first + second]
    told.insert(30, {"attempt": 1, "step": 30, "loss": float("nan")})
    lines = ["orn line", *map(json.dumps, told), '{"attempt": 3, "st']
    points.write_text("\n".join(lines))
    assert curves(points) == [
        "loss of steps 1 to 120, logarithmic",
        "attempt 1   " + "▅" * 30 + "█" * 30,
        "attempt 2   " + " " * 30 + "▅" * 15 + "▁" * 15,
    ]


def test_without_losses_nothing_is_drawn(tmp_path: Path) -> None:
    assert curves(tmp_path / "points.jsonl") == []


def test_a_message_reaches_command_and_webhook_once(tmp_path: Path) -> None:
    got: list[bytes] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
        guard_dir, training = guarded(
            tmp_path,
            command=[sys.executable, "-c", code, str(tmp_path / "heard")],
            webhook=f"http://127.0.0.1:{server.server_port}/",
        )
        for _ in range(2):  # the second is a guard that was started again
            notifier = Notifier(guard_dir, training.policy, {}, lambda words: None)
            notifier.go_on()
            notifier.tell("1", {"what": "hung"})
            notifier.wait()
        server.shutdown()
    assert [json.loads(each)["what"] for each in got] == ["hung"]
    (line,) = (tmp_path / "heard").read_text().splitlines()
    assert json.loads(line)["schema"] == "coordinate-eval/incident@1"


def test_what_cannot_be_told_is_noted_and_hurts_nobody(tmp_path: Path) -> None:
    noted: list[str] = []
    guard_dir, training = guarded(
        tmp_path, command=["/no/such/program"], webhook="http://127.0.0.1:1/"
    )
    notifier = Notifier(guard_dir, training.policy, {}, noted.append, pause=0.0)
    notifier.tell("1", {"words": "it hangs"})
    notifier.wait()
    assert sorted(words.split()[0] for words in noted) == ["`command`", "`webhook`"]
    assert "127.0.0.1" not in "".join(noted)  # an address with its token is a secret
    (shown,) = status(guard_dir, training, 100)["unsent"]
    assert (shown["words"], sorted(shown["left"]), shown["tries"]) == (
        "it hangs", ["command", "webhook"], MOST_TRIES,
    )  # fmt: skip


def test_what_a_killed_guard_has_not_told_the_next_one_tells(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; heard = pathlib.Path(sys.argv[1]); "
        "heard.parent.mkdir() if not heard.parent.exists() else heard.write_text('x') and exit(); "
        "exit(1)"
    )
    heard = tmp_path / "later" / "heard"
    guard_dir, training = guarded(tmp_path, command=[sys.executable, "-c", code, str(heard)])
    first = Notifier(guard_dir, training.policy, {}, lambda words: None, pause=3600.0)
    first.tell("1", {"words": "it hangs"})
    until(lambda: status(guard_dir, training, 100)["unsent"], "a try that failed")
    second = Notifier(guard_dir, training.policy, {}, lambda words: None)
    second.go_on()
    second.wait()
    assert heard.exists()
    assert status(guard_dir, training, 100)["unsent"] == []


def test_a_test_of_nodes_tells_the_bad_ones_or_why_there_is_none() -> None:
    nodes = [
        {"node": "n1", "verdict": "good", "why": ""},
        {"node": "n2", "verdict": "bad", "why": "it failed with n1: timeout"},
    ]
    said = json.dumps({"nodes": nodes, "drain": "scontrol update nodename=n2"})
    found = testing_nodes.read(said, "")
    assert found.bad == ("n2",)
    assert found.words == "tested in pairs: 1 good, 1 bad; n2: it failed with n1: timeout"
    assert found.drain == "scontrol update nodename=n2"
    failed = testing_nodes.read("", "x\ncoordinate-eval: --nodes runs torch, which is missing\n")
    assert failed.bad == ()
    assert failed.words.endswith("were not tested: --nodes runs torch, which is missing")


def test_the_verdicts_of_thousands_of_nodes_are_read(tmp_path: Path) -> None:
    program = tmp_path / "python"
    code = (
        "import json; good = {'verdict': 'good', 'why': ''}; "
        "print(json.dumps({'nodes': [good | {'node': f'n{n}'} for n in range(4000)]}))"
    )
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    program.chmod(0o700)
    test = testing_nodes.NodeTest(tmp_path, str(program))
    found = None
    for _ in range(2):  # a second one gets nothing of the first
        found = until(lambda: test.result(["n1", "n2"], "low"), "the verdicts")
        assert found is not None and found.words == "tested in pairs: 4000 good"


def test_the_cause_is_the_root_in_the_logs_of_all_ranks_and_of_this_attempt(tmp_path: Path) -> None:
    first, second = tmp_path / "rank-0.log", tmp_path / "rank-1.log"
    old = "ModuleNotFoundError: No module named 'x'\n"
    first.write_text(f"{old}[rank0]: torch.distributed.DistBackendError: NCCL timeout\n")
    second.write_text("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    failed = Described("FAILED", end=None, exit_code="1:0")  # type: ignore[arg-type]
    logs = [first, second, tmp_path / "missing"]
    found = cause_of(logs, {str(first): len(old)}, Settings(), failed)
    assert found is not None and found.reason == "ECC Error"
    assert found.log == str(second)
    before = cause_of([first], {}, Settings(), failed)
    assert before is not None and before.reason == "Import Error"


@pytest.mark.parametrize(
    ("state", "exit_code", "text", "reason"),
    [
        ("FAILED", "1:0", "srun: error: n3: task 2: Killed\n", "Killed"),
        ("FAILED", "0:9", "step 1 loss 2\n", "Killed"),
        ("OUT_OF_MEMORY", "0:125", "srun: error: n3: task 2: Killed\n", "Out of Memory"),
        ("FAILED", "1:0", "Memory cgroup out of memory: Killed process 7\n", "Out of Memory"),
    ],
)
def test_a_process_was_killed_for_its_memory_only_where_something_says_so(
    tmp_path: Path, state: str, exit_code: str, text: str, reason: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    said = Described(state, end=None, exit_code=exit_code)  # type: ignore[arg-type]
    found = cause_of([log], {}, Settings(), said)
    assert found is not None and found.reason == reason
    assert (found.category == "unknown") == (reason == "Killed")


@pytest.mark.parametrize(("text", "reason"), [("", "Node Failure"), ("step 1\n", "Killed")])
def test_a_script_that_was_killed_after_its_first_line_was_launched(
    tmp_path: Path, text: str, reason: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    said = Described("FAILED", End.FAILED, "JobLaunchFailure", "0:9")
    found = cause_of([log], {}, Settings(), said)
    assert found is not None and found.reason == reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "{log} is empty"),
        ("round 1 of mine\nround 2 of mine\n", "read the end of {log}"),
        ("round 1 of mine\nthe frobnicator is gone\n", "the frobnicator is gone"),
    ],
)
def test_of_an_unknown_cause_the_log_is_named_and_no_report_of_a_step(
    tmp_path: Path, text: str, said: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    failed = Described("FAILED", End.FAILED, "NonZeroExitCode", "3:0")
    cause = cause_of([log], {}, Settings(), failed)
    last = Ended(number=1, what=What.FAILED, time=0, cause=cause)
    words = decide([last], Policy()).why
    assert words.startswith("failed: the cause is unknown: ")
    assert said.format(log=log) in words
    assert "of mine" not in words


def test_nodes_that_a_hardware_cause_names_are_to_blame() -> None:
    ecc = Cause(
        reason="ECC Error", category="infrastructure", cure="", then="node",
        line="gpu12: uncorrectable ECC error on gpu-1", log="/logs/gpu7.log",
    )  # fmt: skip
    assert named_nodes(ecc, ["gpu1", "gpu12", "gpu", "gpu7"]) == ["gpu12", "gpu7"]
    assert named_nodes(ecc.model_copy(update={"category": "script"}), ["gpu12"]) == []


def test_lines_of_an_attempt_before_in_the_same_log_are_not_its_own(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    log = tmp_path / "train.log"
    log.write_text("step 90 loss 1.0\n")
    size = log.stat().st_size
    logs = Logs(own=(str(log),), sizes={str(log): size})
    guard_dir.of_attempt(1, "logs").write_text(logs.model_dump_json())
    watch = Watching(guard_dir, training, lambda words: None)
    assert watch.look(1, 1.0).last_step is None
    with log.open("a") as file:
        file.write("step 11 loss 2.5\nstep 12 loss 2.25\n")
    # Another guard goes on where this one was killed.
    found = Watching(guard_dir, training, lambda words: None).look(1, 2.0)
    assert (found.last_step, found.loss) == (12, 2.25)
    kept = [json.loads(line)["step"] for line in guard_dir.points.read_text().splitlines()]
    assert kept == [11, 12]


def test_what_is_kept_of_reports_has_a_bound(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    log = tmp_path / "train.log"
    logs = Logs(own=(str(log),))
    guard_dir.of_attempt(1, "logs").write_text(logs.model_dump_json())
    line = json.dumps({"step": 7}) + "\n"
    guard_dir.points.write_text(line * (MOST_KEPT_BYTES // len(line) + 2))
    log.write_text("step 8 loss 2.5\n")
    Watching(guard_dir, training, lambda words: None).look(1, 1.0)
    kept = [json.loads(each)["step"] for each in guard_dir.points.read_text().splitlines()]
    assert (kept[0], kept[-1]) == (7, 8)
    assert guard_dir.points.stat().st_size < 0.6 * MOST_KEPT_BYTES


def test_a_line_is_numbered_from_the_beginning_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 90 loss 1.0\n" * 7)
    begins = {str(log): log.stat().st_size}
    with log.open("a") as file:
        file.write("step 91 loss 1.0\nModuleNotFoundError: No module named 'x'\n")
    failed = Described("FAILED", end=None, exit_code="1:0")  # type: ignore[arg-type]
    found = cause_of([log], begins, Settings(), failed)
    assert found is not None and found.number == 9


class Jobs:
    """A cluster that has a guard's jobs."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self.held = Hold.NONE
        self.state = State.PENDING

    def cancel(self, job_ids: list[str]) -> None:
        raise AssertionError(job_ids)

    def limits(self) -> JobLimits:
        return JobLimits()

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=job.name, job_id=str(number), state=self.state, held=self.held)
            for number, job in enumerate(self.submitted, start=1)
            if job.name.startswith(prefix)
        ]

    def submit(self, job: Any) -> str:
        self.submitted.append(job)
        return str(len(self.submitted))


def test_a_guard_submits_its_successor_once_and_leaves_before_its_end(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    cluster: Any = Jobs()
    clock, left = SetClock(), []
    handover = handover_of(guard_dir, training, cluster, 240, lambda words: None, clock)
    assert not leaves(handover, guard_dir, training, cluster)
    assert not cluster.submitted
    clock.sleep(215 * 60)
    for _ in range(30):
        clock.sleep(60)
        left.append(leaves(handover, guard_dir, training, cluster))
    assert [job.name for job in cluster.submitted] == [f"{prefix(training)}super1"]
    assert cluster.submitted[0].requeue
    assert left.index(True) >= 20


def test_a_guard_submits_no_second_successor_while_the_first_one_starts(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    cluster: Any = Jobs()
    clock = SetClock()
    handover = handover_of(guard_dir, training, cluster, 240, lambda words: None, clock)
    clock.sleep(215 * 60)
    leaves(handover, guard_dir, training, cluster)
    cluster.state = State.RUNNING  # and has not taken over yet
    clock.sleep(61)
    leaves(handover, guard_dir, training, cluster)
    assert len(cluster.submitted) == 1


def test_a_guard_whose_successor_is_held_stays(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    cluster: Any = Jobs()
    clock, said = SetClock(), list[str]()
    handover = handover_of(guard_dir, training, cluster, 240, said.append, clock)
    clock.sleep(215 * 60)
    assert not leaves(handover, guard_dir, training, cluster)
    cluster.held = Hold.USER
    clock.sleep(24 * 60)
    assert not leaves(handover, guard_dir, training, cluster)
    assert "scontrol release 1" in said[-1]


def test_a_guard_that_is_warned_leaves_at_once(tmp_path: Path) -> None:
    guard_dir, training = guarded(tmp_path)
    cluster: Any = Jobs()
    handover = handover_of(guard_dir, training, cluster, 240, lambda words: None, SetClock())
    handover.ask()
    assert leaves(handover, guard_dir, training, cluster)
    assert len(cluster.submitted) == 1
