"""Names and messages that steer a terminal, wherever they come from, reach none."""

import io
import json
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from rich.markup import escape
from rich.table import Table
from tests.decisions import make_run
from tests.plans import CHECKPOINT, reviewed
from tests.reviewer import OnCluster
from tests.shown_runs import Scheduler
from tests.steering import HOSTILE, steering
from tests.trainings import call

from coordinate_eval import _files
from coordinate_eval._format import brief, plain, visible, visible_json
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.cli import app, output
from coordinate_eval.coordinator.display import plan_terminal, show
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError
from coordinate_eval.records import DatasetResults


def test_texts_of_all_kinds_steer_no_terminal() -> None:
    assert plain("Köln 東京 a\tb") == "Köln 東京 a\N{REPLACEMENT CHARACTER}b"
    assert visible("a\tb\nc d\n") == "a\tb\nc d\n"
    assert not steering(visible(HOSTILE))
    assert len(visible(HOSTILE)) == len(HOSTILE)
    value = {HOSTILE: [HOSTILE, "\U0001f642", "\udc80", "\U000e0001"]}
    text = visible_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert not steering(text)
    assert json.loads(text) == value
    assert brief("a  b\n c") == "a b c"
    assert len(brief("x" * 10**6)) < 600


@pytest.mark.parametrize("terminal", [False, True])
def test_consoles_show_and_do_not_obey(terminal: bool) -> None:
    file = io.StringIO()
    console = output.SafeConsole(file=file, width=200, force_terminal=terminal)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE, style="red")
    console.print(table)
    console.print(HOSTILE)
    console.print(HOSTILE, markup=False, highlight=False, soft_wrap=True)
    with console.status(escape(HOSTILE)):
        console.print("x")
    own = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b]*\x1b\\|\r", "", file.getvalue())
    assert not steering(own)
    assert "owned" in own
    assert "\x1b[2J" not in file.getvalue()
    if terminal:
        assert "\x1b[31m" in file.getvalue()


def test_what_libraries_print_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        with output.quiet_libraries(verbose=verbose):
            sys.stdout.write(HOSTILE)
            print(HOSTILE, file=sys.stderr)
            handler = logging.StreamHandler()
            handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, HOSTILE, (), None))
            sys.stderr.writelines([HOSTILE])
            assert not sys.stderr.isatty()
            assert sys.stderr.encoding
    said = capfd.readouterr()
    assert "owned" in said.out
    assert said.err.count("owned") == 6
    assert not steering(said.out + said.err)


# -- the command ---------------------------------------------------------------------------------


def main(monkeypatch: pytest.MonkeyPatch, *args: str) -> object:
    monkeypatch.setattr(sys, "argv", ["coordinate-eval", *args])
    # A command changes the variables of its process, which is the tests' own.
    with patch.dict(os.environ), pytest.raises(SystemExit) as ended:
        app.main()
    return ended.value.code


@pytest.mark.parametrize(
    "args",
    [
        (f"no/such{HOSTILE}".replace("\x00", ""),),
        ("status", HOSTILE),
        ("status", "x", f"y{HOSTILE}"),
        ("suites", HOSTILE),
        ("runs", "--limit", HOSTILE),
        ("status", f"--{HOSTILE}"),
    ],
)
def test_words_of_a_command_line_are_shown_and_steer_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    assert main(monkeypatch, *args) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert not steering(said.err)


def test_a_long_message_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{{{'x' * 10**6}: 1}}")
    assert main(monkeypatch, "suites", str(suite)) == 2
    assert len(capsys.readouterr().err) < 5000


@pytest.fixture
def planted(tmp_path: Path) -> RunDir:
    """A run directory whose records hold such texts wherever texts are allowed."""
    made = RunDir(tmp_path / "runs" / "r")
    run = make_run(created=time.time() - 60)
    suite = run.suite.model_copy(
        update={
            "name": HOSTILE,
            "datasets": [d.model_copy(update={"group": HOSTILE}) for d in run.suite.datasets],
        }
    )
    checkpoint = CHECKPOINT.model_copy(update={"path": f"/{HOSTILE}", "dtype": HOSTILE})
    _files.write_record(
        made.run,
        run.model_copy(
            update={
                "suite": suite, "checkpoint": checkpoint, "gpu_type": HOSTILE,
                "left_out": {HOSTILE: HOSTILE},
            }
        ),
    )  # fmt: skip
    scores: dict[str, Any] = {HOSTILE: {f"{HOSTILE},none": 0.5, "alias": HOSTILE}}
    for dataset in run.suite.datasets:
        found = DatasetResults(dataset=dataset.name, items=1, results=scores)
        _files.write_record(made.dataset_results(dataset.name), found)
        _files.write(made.dataset_error(dataset.name), HOSTILE)
    return made


@pytest.mark.parametrize(
    "args",
    [("status",), ("runs",), ("runs", "--dataset", "a"), ("scores",), ("scores", "--csv"),
     ("scores", "--markdown"), ("status", "--json"), ("runs", "--json"),
     ("runs", "--dataset", "a", "--json"), ("scores", "--json")],
)  # fmt: skip
def test_what_run_directories_hold_steers_no_terminal(
    planted: RunDir, on_cluster: OnCluster, args: tuple[str, ...]
) -> None:
    task = TaskStatus(
        name=jobs.prefix(read_run(planted)) + HOSTILE, job_id=HOSTILE,
        state=State.PENDING, reason=HOSTILE, node=HOSTILE,
    )  # fmt: skip
    on_cluster(Scheduler([task]))
    ran = call(planted.root.parent, *args)
    assert isinstance(ran.exception, SystemExit | None), repr(ran.exception)
    assert ran.stdout
    assert not steering(ran.output)
    if "--json" in args:
        json.loads(ran.stdout)


@pytest.mark.parametrize("as_json", [False, True])
def test_results_steer_no_terminal(
    planted: RunDir, on_cluster: OnCluster, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    on_cluster(Scheduler([]))
    from coordinate_eval.coordinator.cli.launch.foreground import show_results

    results = {
        "run": HOSTILE, "complete": False, "missing": {HOSTILE: HOSTILE},
        "results": {HOSTILE: {f"{HOSTILE},none": 0.5}}, "left_out": {HOSTILE: HOSTILE},
        "n_samples": {}, "failures": [HOSTILE],
    }  # fmt: skip
    _files.write(planted.results, json.dumps(results, ensure_ascii=False))
    assert show_results(planted, as_json=as_json) == 1
    assert not steering(capsys.readouterr().out)


def test_an_errors_text_has_no_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(args: list[str]) -> None:
        raise UserError(f"Slurm says {HOSTILE}")

    monkeypatch.setattr(app, "app", fails)
    assert main(monkeypatch) == 2
    assert not steering(capsys.readouterr().err)


def test_a_page_and_a_summary() -> None:
    review = reviewed(name=HOSTILE, dataset=HOSTILE, datasets=3)
    text = show.render(review)
    assert not steering(text)
    assert "&#65533;" in text
    assert not re.search(r"&#(8238|8294|8207|8203|133|155);", text)
    file = io.StringIO()
    output.SafeConsole(file=file, width=100).print(plan_terminal.render(review))
    assert "owned" in file.getvalue()
    assert not steering(file.getvalue())
