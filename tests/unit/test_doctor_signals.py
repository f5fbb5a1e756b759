"""`doctor --nodes` that a signal ends: none of its jobs is left behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reviewer import OnCluster
from tests.worlds import Jobs, impatient

from coordinate_eval.clusters.protocol import TaskStatus
from coordinate_eval.coordinator.cli import process
from coordinate_eval.coordinator.cli.upkeep import doctor as command
from coordinate_eval.coordinator.doctor import nodes as doctor
from coordinate_eval.coordinator.doctor import worlds
from coordinate_eval.coordinator.inputs.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(worlds, "HIDDEN_SECONDS", 0.0)
    return impatient(tmp_path)


class Interrupting(Jobs):
    """A scheduler whose jobs go on for ever; its first answer comes with a signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(dict.fromkeys(("n1", "n2", "n3", "n4"), "passes"))
        self._number: signal.Signals | None = number

    def poll(self, prefix: str) -> list[TaskStatus]:
        if self._number is not None and self.alive():
            number, self._number = self._number, None
            os.kill(os.getpid(), number)
        return list(self.states.values())


@pytest.fixture(autouse=True)
def as_a_process_starts() -> Iterator[None]:
    """Its parent has it ignore no signal, and it is a person's command."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process.end_orderly()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "raised", "status"),
    [
        (signal.SIGHUP, SystemExit, (129,)),
        (signal.SIGINT, KeyboardInterrupt, ()),
        (signal.SIGTERM, SystemExit, (143,)),
    ],
    ids=["hangup", "interrupt", "terminate"],
)
def test_a_signal_cancels_every_job(
    settings: Settings,
    on_cluster: OnCluster,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    raised: type[BaseException],
    status: tuple[int, ...],
) -> None:
    """An interrupt is 130, which the command line makes of a `KeyboardInterrupt`."""
    cluster = Interrupting(number)
    on_cluster(cluster)
    monkeypatch.setattr(doctor, "check_torch", lambda: None)
    with pytest.raises(raised) as caught:
        command.find_bad_nodes(settings, None, as_json=True)
    assert caught.value.args == status
    assert cluster.jobs.keys() == set(cluster.cancelled)
    assert cluster.jobs
    assert not cluster.alive()
    assert list(Path(settings.runs_dir).iterdir()) == []


def test_a_hangup_that_is_ignored_ends_nothing(
    settings: Settings, on_cluster: OnCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `nohup`."""

    class Passing(Interrupting):
        def poll(self, prefix: str) -> list[TaskStatus]:
            super().poll(prefix)
            return Jobs.poll(self, prefix)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.end_orderly()
    cluster = Passing(signal.SIGHUP)
    on_cluster(cluster)
    monkeypatch.setattr(doctor, "check_torch", lambda: None)
    assert command.find_bad_nodes(settings, None, as_json=True) == 0
