"""Who is told of alarms: each once, whatever is killed, hangs or fails meanwhile."""

import http.server
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trainings import TRAINING, call, keep

from coordinate_eval import _files, _notices
from coordinate_eval.coordinator.cli.inquire.alarms import tell_alarms
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.telling import last_turn, take_turn
from coordinate_eval.coordinator.inputs.settings import Settings

HEAR = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


class Team:
    """A training's history, and a file of what a command was told."""

    def __init__(self, home: Path) -> None:
        self.home, self.heard = home / "runs", home / "heard"
        self.command = [sys.executable, "-c", HEAR, str(self.heard)]

    def settings(self, **more: Any) -> Settings:
        return Settings(runs_dir=str(self.home), **{"on_alarm": self.command, **more})

    def measures(self, *values: float, first: int = 1, **more: Any) -> None:
        for step, value in enumerate(values, first):
            keep(self.home, step, {"a": (value, 0.01, 2000, "acc", True, "x")}, **more)

    def tell(self, **more: Any) -> list[str]:
        return tell_alarms(self.settings(**more), "/ckpts", patience=0)

    @property
    def told(self) -> list[tuple[str, int]]:
        lines = self.heard.read_text().splitlines() if self.heard.exists() else []
        return [
            (each["kind"], each["step"]) for text in lines for each in json.loads(text)["alarms"]
        ]


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


def test_an_alarm_is_told_once_with_its_evidence_and_the_last_good_checkpoint(team: Team) -> None:
    team.measures(0.5, 0.5)
    assert team.tell() == []
    assert team.told == []  # nothing is wrong
    team.measures(0.1, 0.1, first=3)
    for _ in range(2):
        assert team.tell() == []

    (line,) = team.heard.read_text().splitlines()
    said = json.loads(line)
    assert said["schema"] == "coordinate-eval/alarms@1"
    assert said["text"] == (
        "/ckpts/seven/step-3: a: collapse: 0.1000 ±0.0100, and 0.5000 was expected, until step 4; "
        "the last good one is /ckpts/seven/step-2"
    )
    (alarm,) = said["alarms"]
    assert (alarm["training"], alarm["step"], alarm["last_good_step"]) == (TRAINING, 3, 2)
    assert alarm["words"] == "0.1000 ±0.0100, and 0.5000 was expected"


def test_an_alarm_that_goes_on_is_not_told_again_and_one_after_a_rollback_is(team: Team) -> None:
    team.measures(0.5, 0.5, 0.1)
    team.tell()
    team.measures(0.1, first=4)
    team.tell()
    assert team.told == [("collapse", 3)]
    for step in (3, 4):  # written again, under the same paths
        keep(team.home, step, {"a": (0.1, 0.01, 2000, "acc", True, "x")}, created=100 + step,
             run=f"again-{step}", identity=f"again-{step}")  # fmt: skip
    team.tell()
    assert team.told == [("collapse", 3), ("collapse", 3)]


def test_a_checkpoint_that_is_scored_late_moves_an_alarm_and_tells_it_no_second_time(
    team: Team,
) -> None:
    team.measures(0.5, 0.5)
    team.measures(0.1, first=4)
    team.tell()
    team.measures(0.1, first=3)
    team.tell()
    assert team.told == [("collapse", 4)]


def test_what_fails_is_shown_and_told_at_the_next_look(team: Team, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/with-a-secret")
    team.measures(0.5, 0.5, 0.1)
    bad = {"on_alarm": ["/no/such/program"], "alarm_webhook_env": "HOOK"}

    assert team.tell(**bad) == [
        "on_alarm: cannot be called: No such file or directory",
        "alarm_webhook_env: it cannot be reached",
    ]

    config = team.home.parent / "config.toml"
    config.write_text('on_alarm = ["/no/such/program"]\nalarm_webhook_env = "HOOK"\n')
    shown = call(team.home, "alarms", "--settings", str(config))
    assert "1 alarm not told by on_alarm: cannot be called: No such" in shown.output
    assert "1 alarm not told by alarm_webhook_env: it cannot be reached" in shown.output
    assert "secret" not in shown.output
    assert team.tell() == []
    assert team.told == [("collapse", 3)]


def test_who_is_killed_while_telling_leaves_it_to_the_next(team: Team) -> None:
    """The command was called, and nothing is noted: rather twice than never."""
    team.measures(0.5, 0.5, 0.1)
    with pytest.raises(KeyboardInterrupt):
        _killed_in_between(team)
    team.tell()
    assert ("collapse", 3) in team.told


def _killed_in_between(team: Team) -> None:
    from coordinate_eval.coordinator.cli.inquire.alarms import alarms_of
    from coordinate_eval.coordinator.history import telling
    from coordinate_eval.coordinator.history.series import series

    known, _ = measured.read(str(team.home))
    found = series(known)

    def killed(text: str) -> str:
        raise KeyboardInterrupt

    for each, raised in alarms_of(known, found, None)[0]:
        telling.tell(str(team.home), each, raised, {"on_alarm": killed})


def test_two_at_a_time_tell_once(team: Team) -> None:
    slow = f"cat >> {shlex.quote(str(team.heard))}; sleep 1"
    team.measures(0.5, 0.5, 0.1)
    every = [
        threading.Thread(
            target=tell_alarms,
            args=(team.settings(on_alarm=["sh", "-c", slow]), "/ckpts"),
            kwargs={"patience": 60},
        )
        for _ in range(2)
    ]
    for each in every:
        each.start()
    for each in every:
        each.join()
    assert team.told == [("collapse", 3)]


@pytest.mark.parametrize("left", ["12345.0 token\n", "", "torn"])
def test_the_turn_of_one_that_was_killed_is_taken_over_at_once(team: Team, left: str) -> None:
    team.measures(0.5, 0.5, 0.1)
    team.tell(on_alarm=["false"])
    (path,) = measured.folder(str(team.home)).glob("alarms-*.json")
    path.with_suffix(".turn").write_text(left)
    assert team.tell() == []
    assert team.told == [("collapse", 3)]


def test_of_two_that_find_the_same_turn_over_one_gets_the_next(tmp_path: Path) -> None:
    notes = tmp_path / "alarms-1.json"
    notes.with_suffix(".turn").write_text("12345.0 token\n")
    seen = last_turn(notes)
    first = take_turn(notes, seen)
    assert first is not None
    assert take_turn(notes, seen) is None  # it has looked before, and is late
    assert take_turn(notes, last_turn(notes)) is None
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    first.write_text("0.0 token\n")
    late = first.with_name("alarms-1.turn")
    assert take_turn(notes, last_turn(notes)) is not None
    late.write_text("12345.0 token\n")  # of one that was slow, and has ended since
    assert take_turn(notes, 1) is None


def test_the_turn_of_one_that_tells_now_is_left_to_it(team: Team) -> None:
    team.measures(0.5, 0.5, 0.1)
    team.tell(on_alarm=["false"])
    (path,) = measured.folder(str(team.home)).glob("alarms-*.json")
    path.with_suffix(".turn").write_text(f"{time.time()} token\n")
    assert team.tell() == []
    assert team.told == []


def test_a_torn_note_hurts_nobody(team: Team) -> None:
    team.measures(0.5, 0.5, 0.1)
    team.tell()
    (path,) = measured.folder(str(team.home)).glob("alarms-*.json")
    path.write_text(path.read_text()[:20])
    assert team.tell() == []
    assert team.told == 2 * [("collapse", 3)]


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    got: list[str] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", got
        server.shutdown()


def test_a_webhook_gets_what_a_command_gets(
    team: Team, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, got = webhook
    monkeypatch.setenv("HOOK", address)
    team.measures(0.5, 0.5, 0.1)
    for _ in range(2):
        assert team.tell(alarm_webhook_env="HOOK") == []
    assert got == team.heard.read_text().splitlines(keepends=True)


def test_one_that_hangs_is_left_within_its_time(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert _notices.post(address, "x", 0.2) in ("ReadTimeout", "no answer within 0.2 s")
    said = _notices.call(["sh", "-c", "sleep 1000 & sleep 1000"], "x", os.environ, 0.2)
    assert said == "did not end within 0.2 s and was killed"
    assert _notices.call(["true"], "x" * 1_000_000, os.environ) == ""  # it reads nothing
    assert "begin with http://" in _notices.post("no address", "x")
    assert _notices.post("http://127.0.0.1:1/secret", "x") == "it cannot be reached"


def test_a_run_whose_results_are_there_tells_and_keeps_what_failed(tmp_path: Path) -> None:
    from tests.decisions import make_run

    from coordinate_eval.coordinator.run.paths import RunDir
    from coordinate_eval.coordinator.run.records import hook_ends
    from coordinate_eval.coordinator.supervisor.after_run import AfterRun

    home = tmp_path / "runs"
    for step, value in ((1, 0.5), (2, 0.5), (3, 0.1)):
        keep(home, step, {"a": (value, 0.01, 2000, "acc", True, "x")}, training="/ckpts")
    run_dir = RunDir(home / "r")
    heard = tmp_path / "heard"
    for command in ([sys.executable, "-c", HEAR, str(heard)], ["false"]):
        settings = Settings(runs_dir=str(home), on_alarm=command)
        run = make_run(settings=settings)
        path = f"{'/ckpts' if command != ['false'] else '/other'}/step-3"
        run = run.model_copy(
            update={"checkpoint": run.checkpoint.model_copy(update={"path": path})}
        )
        if command == ["false"]:
            for step, value in ((1, 0.5), (2, 0.5), (3, 0.1)):
                keep(home, step, {"a": (value, 0.01, 2000, "acc", True, "x")}, training="/other")
        _files.write_record(run_dir.run, run)
        with AfterRun(run_dir, run) as after_run:
            after_run.begin()
            said = after_run.wait()
        end = hook_ends(run_dir)["on_alarm"]
        assert said == end.words
    assert json.loads(heard.read_text())["alarms"][0]["step"] == 3
    assert end.last_line == "on_alarm: ended with 1"
