"""What a supervisor does about the causes of dead jobs: each log is read once, and not believed."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import ROUND, RUN, make_run
from tests.incidents import ECC, ended, incident, judge, trial
from tests.plans import changed

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents import causes
from coordinate_eval.coordinator.incidents.bad_nodes import avoid, broken_nodes, suspected_nodes
from coordinate_eval.coordinator.incidents.incident import (
    Incident,
    read_incidents,
    write_incident,
)
from coordinate_eval.coordinator.incidents.remedies import (
    MOST_SECONDS,
    count_idle_rounds,
    lighter_load,
)
from coordinate_eval.coordinator.incidents.shown import diagnose_run, report_failures
from coordinate_eval.coordinator.run.jobs import trial_id
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, StageProgress
from coordinate_eval.diagnosis.cause import Remedy
from coordinate_eval.diagnosis.rules import shipped

IMPORT = "ModuleNotFoundError: No module named 'torch'\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
OCCUPIED = (
    "ValueError: Free memory on device (20.1/139.8 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 125.8 GiB). Decrease GPU memory utilization.\n"
)
AWAY = "requests.exceptions.ConnectionError: Connection refused by storage\n"
REFUSED = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
    "  Value error, the chunk size 4096 is above the most that the model takes [type=value_error]\n"
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run with a round of two nodes, of which the second answers."""
    made = RunDir(tmp_path / "run")
    settings = RUN.settings.model_copy(update={"cache_dir": str(tmp_path / "cache")})
    _files.write_record(made.run, make_run(settings=settings, gpu_type="h200"))
    _files.write_record(made.round(0), ROUND)
    _files.write_record(made.trial("n2-0"), trial("n2-0", "n2", "running", responses=1))
    return made


def die(run_dir: RunDir, job: str, log: str, **fields: Any) -> None:
    """A trial on n1 dies with this log."""
    path = run_dir.logs / f"{job}.log"
    _files.write(path, log)
    made = trial(job, "n1", message="EngineError: no", log=str(path), sequences=64, **fields)
    _files.write_record(run_dir.trial(job), made)


def look(run_dir: RunDir, told: list[str] | None = None, **settings: Any) -> dict[str, Incident]:
    """Have the causes found that are not known yet, as a supervisor does; return all."""
    given = changed(make_run(**_run(run_dir)).settings, **settings)
    events = told if told is not None else []
    return {each.job: each for each in judge(run_dir, settings=given, tell=events.append)}


def _run(run_dir: RunDir) -> dict[str, Any]:
    return {"settings": _files.read_json(run_dir.run)["settings"]}


def test_each_log_is_read_once(run_dir: RunDir) -> None:
    die(run_dir, "n1-0", IMPORT)
    assert look(run_dir)["n1-0"].reason == "Import Error"
    (run_dir.logs / "n1-0.log").write_text(OOM)
    assert look(run_dir)["n1-0"].reason == "Import Error"
    stage = StageProgress(
        state="failed", done_bytes=0, total_bytes=1, started=0, updated=0, message="no room"
    )
    _files.write_record(run_dir.stage(0, "n1"), stage)
    assert look(run_dir).keys() == {"n1-0", "keeper-0-n1"}


def test_a_run_that_is_resumed_has_met_nothing_yet(run_dir: RunDir) -> None:
    die(run_dir, "n1-0", IMPORT)
    assert look(run_dir)["n1-0"].stops
    _files.write(run_dir.resumed, "")
    os.utime(run_dir.resumed, (time.time() + 1,) * 2)
    assert read_incidents(run_dir) == []


def test_once_an_engine_has_started_no_words_of_a_log_end_a_run(run_dir: RunDir) -> None:
    die(run_dir, "n1-0", IMPORT, running=5.0)
    found = look(run_dir)["n1-0"]
    assert (found.reason, found.stops) == ("Import Error", False)


def test_a_site_says_what_follows(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rules = tmp_path / "coordinate-eval" / "diagnosis.yaml"
    rules.parent.mkdir()
    rules.write_text(
        "reasons:\n  Purged: {category: infrastructure, then: stop, cure: stage it again}\n"
        "rules:\n- {name: purged, reason: Purged, pattern: 'scratch is gone'}\n"
    )
    die(run_dir, "n1-0", "the scratch is gone\n")
    found = look(run_dir)["n1-0"]
    assert found.stops
    assert found.words == "Purged (infrastructure): stage it again"
    rules.write_text("rules: {")
    die(run_dir, "n1-1", IMPORT)
    told: list[str] = []
    assert look(run_dir, told)["n1-1"].reason == "Import Error"
    assert "by the shipped rules alone" in told[0]


@pytest.mark.parametrize("what", ["pipe", "missing", "binary", "long"])
def test_a_log_that_is_none_is_no_burden(run_dir: RunDir, what: str) -> None:
    die(run_dir, "n1-0", "")
    log = run_dir.logs / "n1-0.log"
    log.unlink()
    if what == "pipe":
        os.mkfifo(log)
    elif what == "binary":
        log.write_bytes(bytes(range(256)) * 4096)
    elif what == "long":
        log.write_bytes(b"a line without an end " * (1 << 18))
    found = look(run_dir)["n1-0"]
    assert not found.known
    assert found.cause and len(found.cause.line) <= causes.MOST_LINE + 3


def test_a_node_whose_hardware_fails_is_avoided_also_where_others_on_it_answer(
    run_dir: RunDir,
) -> None:
    _files.write_record(run_dir.trial("n1-1"), trial("n1-1", "n1", "running", responses=1))
    die(run_dir, "n1-0", ECC)
    look(run_dir)
    (broken,) = broken_nodes(run_dir)
    assert (broken.node, broken.why) == ("n1", "a job died of ECC Error")
    _files.write_record(run_dir.trial("n2-0"), trial("n2-0", "n2", "running"))
    assert [each.node for each in broken_nodes(run_dir)] == ["n1"], "also where no other answers"
    _files.write_record(run_dir.trial("n2-0"), trial("n2-0", "n2", "running", responses=1))
    # Words that come up on several nodes may be an item's, which went from one to the next.
    ended(run_dir, "n2-1", End.FAILED, category="infrastructure", reason="ECC Error")
    _files.write_record(run_dir.trial("n2-1"), trial("n2-1", "n2"))
    assert broken_nodes(run_dir) == []


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (IMPORT, "a job died of Import Error"),
        ("RuntimeError: CUDA error: unspecified launch failure\n", "a job died of CUDA Error"),
        ("ValueError: x\n", ""),
        ("frobnicated\n", ""),
    ],
)
def test_what_only_one_node_meets_lies_in_the_node(run_dir: RunDir, log: str, why: str) -> None:
    die(run_dir, "n1-0", log)
    look(run_dir)
    assert [each.why for each in broken_nodes(run_dir)] == ([why] if why else [])


def test_an_engine_that_refuses_its_arguments_blames_no_node(run_dir: RunDir) -> None:
    run_dir.trial("n2-0").unlink()
    die(run_dir, "n1-0", REFUSED, cause="engine start")
    found = look(run_dir)["n1-0"]
    assert (found.reason, found.stops, found.of_input) == ("Value Error", True, True)
    assert found.cause
    assert "chunk size" in found.cause.line
    assert broken_nodes(run_dir) == []
    assert suspected_nodes(run_dir, time.time()) == {}


def test_a_gpu_that_others_fill_is_its_nodes_fault_and_lowers_no_load(run_dir: RunDir) -> None:
    run = make_run(**_run(run_dir), gpu_type="h200")
    full = lighter_load(run, read_incidents(run_dir)).full
    die(run_dir, "n1-0", OCCUPIED, cause="engine start")
    assert look(run_dir)["n1-0"].remedy is Remedy.ANOTHER_NODE
    assert [each.node for each in broken_nodes(run_dir)] == ["n1"]
    assert lighter_load(run, read_incidents(run_dir)).sequences == full


def test_an_engine_whose_log_says_that_memory_was_used_up_halves_the_load(
    run_dir: RunDir,
) -> None:
    run = make_run(**_run(run_dir), gpu_type="h200")
    full = lighter_load(run, read_incidents(run_dir)).full
    die(run_dir, "n1-0", OOM)
    look(run_dir)
    assert lighter_load(run, read_incidents(run_dir)).sequences == max(32, full // 8)
    (line,) = report_failures(run_dir)
    assert "cause: Out of Memory Error (framework): use less GPU memory" in line
    assert (
        f"done: later engines run {lighter_load(run, read_incidents(run_dir)).sequences} sequences"
        in line
    )


def outage(run_dir: RunDir, count: int, log: str = AWAY) -> list[Round]:
    """Rounds, a minute from each to the next, whose trials died with this log."""
    run_dir.trial("n2-0").unlink(missing_ok=True)
    rounds = []
    for number in range(count):
        made = ROUND.model_copy(update={"number": number, "created": 60.0 * number})
        _files.write_record(run_dir.round(number), made)
        die(run_dir, trial_id("n1", 0, number), log)
        rounds.append(made)
    look(run_dir)
    return rounds


def test_an_outage_counts_against_no_run_for_an_hour(run_dir: RunDir) -> None:
    rounds, run = outage(run_dir, 5), make_run()
    assert count_idle_rounds(run_dir, run, rounds, 300) == (0, 5)
    later = MOST_SECONDS["wait"] + 120.0
    assert count_idle_rounds(run_dir, run, rounds, later) == (3, 2)
    assert diagnose_run(run_dir, shipped())[0].done == "tried again, ever less often"


def test_what_does_not_pass_by_itself_counts_at_once(run_dir: RunDir) -> None:
    rounds = outage(run_dir, 3, "KeyError: 'x'\n")
    assert count_idle_rounds(run_dir, make_run(), rounds, 300) == (3, 0)


def test_trials_that_the_scheduler_never_starts_are_not_tried_for_ever(tmp_path: Path) -> None:
    run_dir, run = RunDir(tmp_path), make_run()
    patience = run.settings.supervisor.patience_seconds
    rounds = [ROUND.model_copy(update={"number": n, "created": n * patience}) for n in range(5)]
    for each in rounds:
        _files.write_record(run_dir.round(each.number), each)
    now = 5 * patience
    assert count_idle_rounds(run_dir, run, rounds, now) == (0, 5)
    late = MOST_SECONDS["queue"] + 2 * patience
    assert count_idle_rounds(run_dir, run, rounds, late) == (3, 2)


def test_people_see_what_was_done(run_dir: RunDir) -> None:
    die(run_dir, "n1-0", ECC)
    die(run_dir, "n1-1", "frobnicated\n")
    look(run_dir)
    run = make_run(**_run(run_dir))
    avoid(run.settings, "n1", "a job died of ECC Error", f"{run.id}.{run.nonce}:n1-0", time.time())
    done = {job.name: job.done for job in diagnose_run(run_dir, shipped())}
    assert done["n1-0"] == "n1 was avoided"
    die(run_dir, "n1-1", IMPORT)
    stop = incident("n1-0")
    run_dir.incident("n1-0").unlink()
    write_incident(run_dir, stop)
    _files.write(run_dir.results, _files.pretty({"reason": f"every trial: {stop.words}"}))
    (folder,) = (run_dir.root.parent / "cache").iterdir()
    (folder / "n1.json").unlink()
    done = {job.name: job.done for job in diagnose_run(run_dir, shipped())}
    assert done["n1-0"] == "the run was ended"
