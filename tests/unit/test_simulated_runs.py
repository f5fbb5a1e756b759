"""Benchmarks of many runs, of a day and of replacements, small: real supervisors, virtual time."""

import threading
import time

import pytest
from benchmarks import day_of_checkpoints, many_runs, replacements
from benchmarks._virtual_time import Alarm, VirtualTime


def test_time_passes_when_all_processes_sleep() -> None:
    heard: list[tuple[str, float]] = []
    real, threads = time.time(), threading.active_count()
    with VirtualTime() as clock:
        began, alarm = time.monotonic(), Alarm()

        def sleeps(name: str, seconds: float) -> None:
            for _ in range(2):
                time.sleep(seconds)
                heard.append((name, time.monotonic() - began))

        def waits() -> None:
            clock.sleep(1e9, alarm)
            heard.append(("woken", time.monotonic() - began))

        clock.process(lambda: sleeps("a", 3000))
        clock.process(lambda: sleeps("b", 2000))
        clock.process(waits)
        clock.after(5000, lambda: alarm.ring())
        clock.process(lambda: time.sleep(1e12))
        clock.run(lambda: len(heard) == 5)
    expected = [("b", 2000.0), ("a", 3000.0), ("b", 4000.0), ("woken", 5000.0), ("a", 6000.0)]
    assert [(name, round(seconds, 3)) for name, seconds in heard] == expected
    assert time.time() - real < 2000
    assert threading.active_count() == threads


def test_an_error_of_a_process_is_one_of_the_simulation() -> None:
    def fails() -> None:
        raise RuntimeError("no such node")

    with VirtualTime() as clock, pytest.raises(RuntimeError, match="no such node"):
        clock.process(fails)
        clock.run(lambda: False)


def test_runs_at_once_end_with_all_scores() -> None:
    found = many_runs.measured(16, runs=3, parts=4)
    assert found.complete
    assert 0 < found.first_trial <= found.last_first_trial
    assert found.calls > 0
    assert 0 <= found.reaction <= found.worst_reaction
    assert found.cpu_seconds > 0


def test_answers_of_a_large_cluster_are_read() -> None:
    nodes, tasks = many_runs.read(10, 100)
    assert nodes[0] == "10 nodes, text"
    assert tasks[0] == "100 tasks, text"


def test_a_day_of_checkpoints_ends_with_all_scores() -> None:
    found = day_of_checkpoints.day(4, checkpoints=2, load=0.5, parts=3)
    assert found.complete
    assert len(found.seconds) == 2
    assert found.gpu_hours > 0
    assert 0 < found.idle < 1
    assert 0 < found.load < 1


def test_a_run_whose_trials_are_preempted_ends_sooner_with_replacements() -> None:
    without = replacements.makespan(2, parts=4, replaces=False)
    assert replacements.makespan(2, parts=4) < without
