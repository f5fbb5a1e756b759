"""Engines that run out of memory: the next ones compute less at once."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.incidents import ended

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.incident import read_incidents, write_incident
from coordinate_eval.coordinator.incidents.observe import of_trial
from coordinate_eval.coordinator.incidents.remedies import (
    IdleRounds,
    Load,
    count_idle_rounds,
    lighter_load,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.jobs import trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, TrialProgress
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor.decide_rounds import MAX_IDLE_ROUNDS


def run_of(engine: str, **args: Any) -> Run:
    return make_run(
        settings=Settings.model_validate(
            {"engine": {"name": engine, "args": args}}, extra="forbid"
        ),
        gpu_type="h200",
    )


def tell(run_dir: RunDir, trial: str, sequences: int, **fields: Any) -> None:
    record = TrialProgress.model_validate(
        {"trial": trial, "task": "1.0", "node": "n", "state": "failed", "started": 0, "updated": 0,
         "sequences": sequences, **fields}, extra="forbid"
    )  # fmt: skip
    _files.write_record(run_dir.trial(trial), record)
    if record.state == "failed":
        run_dir.incident(trial).unlink(missing_ok=True)
        write_incident(run_dir, of_trial(record, "error", "it failed", 0, 0))


def test_each_engine_that_runs_out_of_memory_halves_the_load(tmp_path: Path) -> None:
    run_dir, run = RunDir(tmp_path), run_of("vllm", dtype="auto")
    seen = []
    for number in range(5):
        load = lighter_load(run, read_incidents(run_dir))
        seen.append((load.sequences, load.lighter, load.can_shrink))
        for index in range(4):  # all of a round at once
            tell(run_dir, f"n-{index}-r{number}", load.sequences, cause="out of memory")
    assert seen == [
        (1024, 1, True), (512, 2, True), (256, 4, True), (128, 8, False), (128, 8, False)
    ]  # fmt: skip
    assert load.engine_args(run.settings.engine) == {"dtype": "auto", "max_num_seqs": 128}
    _files.write(run_dir.resumed, "")
    os.utime(run_dir.resumed, (time.time() + 1,) * 2)
    assert lighter_load(run, read_incidents(run_dir)) == Load(1024, 1024)


def rounds_of(run_dir: RunDir, run: Run, count: int, **fields: Any) -> list[IdleRounds]:
    """What is counted after each of these rounds, whose four trials all run out of memory."""
    rounds, counted = [], []
    for number in range(count):
        node = RoundNode(name="n", gpu_type="h200", trials=4)
        made = Round(number=number, created=0, nodes=[node], minutes=9)
        _files.write_record(run_dir.round(number), made)
        load = lighter_load(run, read_incidents(run_dir)).sequences
        for trial, _ in trials_of(made):
            tell(run_dir, trial, **{"sequences": load, "cause": "out of memory", **fields})
        rounds.append(made)
        counted.append(count_idle_rounds(run_dir, run, rounds, 0.0))
    return counted


def test_the_least_load_is_tried_before_a_run_is_given_up(tmp_path: Path) -> None:
    counted = rounds_of(RunDir(tmp_path), run_of("vllm"), 4)
    assert counted == [(0, 0), (0, 0), (0, 0), (4, 0)]
    assert counted[-1].rounds >= MAX_IDLE_ROUNDS


def test_rounds_that_try_no_lighter_load_are_not_passed_over_for_ever(tmp_path: Path) -> None:
    counted = rounds_of(RunDir(tmp_path), run_of("vllm"), 6, sequences=1024)
    assert [each.rounds for each in counted] == [0, 0, 0, 1, 2, 3]


def test_a_round_in_which_one_trial_failed_otherwise_counts(tmp_path: Path) -> None:
    run_dir, run = RunDir(tmp_path), run_of("vllm")
    rounds_of(run_dir, run, 1)
    (round_,) = read_rounds(run_dir)
    (first, _), *_ = trials_of(round_)
    tell(run_dir, first, 1024, cause="other")
    assert count_idle_rounds(run_dir, run, [round_], 0.0) == (1, 0)


def test_other_failures_change_no_load(tmp_path: Path) -> None:
    run_dir, run = RunDir(tmp_path), run_of("vllm", max_num_seqs=64)
    tell(run_dir, "n-0", 64, cause="other")
    tell(run_dir, "n-1", 64, cause="node")
    load = lighter_load(run, read_incidents(run_dir))
    assert load == Load(64, 64)
    assert load.engine_args(run.settings.engine) == {"max_num_seqs": 64}


@pytest.mark.parametrize(
    ("engine", "args"), [("vllm", {"max_num_seqs": 32}), ("transformers", {"batch_size": 32})]
)
def test_a_trial_that_slurm_killed_for_its_memory_counts(
    tmp_path: Path, engine: str, args: dict[str, int]
) -> None:
    run_dir, run = RunDir(tmp_path), run_of(engine, **args)
    tell(run_dir, "n-0", 32, state="running")
    ended(run_dir, "n-0", End.OUT_OF_MEMORY, sequences=32)
    load = lighter_load(run, read_incidents(run_dir))
    assert load.engine_args(run.settings.engine) == dict.fromkeys(args, 16)


def test_a_load_of_one_cannot_shrink() -> None:
    assert not Load(1, 1).can_shrink
    assert not Load(1, 4).can_shrink
    assert Load(2, 4).can_shrink
