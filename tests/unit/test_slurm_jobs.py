"""squeue's and sbatch's texts to values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.clusters.protocol import End, State
from coordinate_eval.errors import ClusterSilent
from coordinate_eval.slurm.answers.queue import read_job_id, read_tasks


def record(task: str, state: str, name: str, reason: str = "None", node: str = "") -> str:
    return f"\x1e{task}|{state}|{reason}|{node}|{name}\n"


def test_tasks_of_arrays_and_single_jobs() -> None:
    text = record("12_3", "RUNNING", "run.t", node="n1") + record(
        "7", "PENDING", "run.k", "Priority"
    )
    array, single = read_tasks(text, "run.")
    assert (array.job_id, array.index, array.state, array.node, array.reason) == (
        "12",
        3,
        State.RUNNING,
        "n1",
        "",
    )
    assert (single.job_id, single.index, single.state, single.reason) == (
        "7",
        0,
        State.PENDING,
        "Priority",
    )


def test_jobs_of_other_names_and_kinds_are_left_out() -> None:
    text = record("1", "RUNNING", "other") + record("2+0", "RUNNING", "run")
    assert read_tasks(text, "run") == []
    assert read_tasks("", "") == []


@pytest.mark.parametrize(
    "text", [record("1", "RUNNING", "run")[:-3], "1|RUNNING|None||run\n", "slurm: a message\n"]
)
def test_a_torn_answer_says_nothing_about_its_tasks(text: str) -> None:
    with pytest.raises(ClusterSilent):
        read_tasks(text, "run")


@given(st.text(st.characters(exclude_characters="\x1e", exclude_categories=["Cs"])))
def test_any_name_comes_back_as_it_is(name: str) -> None:
    text = record("1", "RUNNING", name) + record("2", "RUNNING", "z")
    assert [task.name for task in read_tasks(text, "")] == [name, "z"]


@pytest.mark.parametrize(
    ("word", "state", "end"),
    [
        ("PENDING", State.PENDING, End.UNKNOWN),
        ("CONFIGURING", State.PENDING, End.UNKNOWN),
        ("REQUEUED", State.PENDING, End.UNKNOWN),
        ("RESV_DEL_HOLD", State.PENDING, End.UNKNOWN),
        ("RUNNING", State.RUNNING, End.UNKNOWN),
        ("COMPLETING", State.RUNNING, End.UNKNOWN),
        ("SUSPENDED", State.RUNNING, End.UNKNOWN),
        ("STOPPED", State.RUNNING, End.UNKNOWN),
        ("SOME_STATE_OF_THE_FUTURE", State.RUNNING, End.UNKNOWN),
        ("COMPLETED", State.ENDED, End.COMPLETED),
        ("CANCELLED", State.ENDED, End.CANCELLED),
        ("FAILED", State.ENDED, End.FAILED),
        ("TIMEOUT", State.ENDED, End.TIME_LIMIT),
        ("DEADLINE", State.ENDED, End.TIME_LIMIT),
        ("NODE_FAIL", State.ENDED, End.NODE_FAILED),
        ("BOOT_FAIL", State.ENDED, End.NODE_FAILED),
        ("PREEMPTED", State.ENDED, End.PREEMPTED),
        ("OUT_OF_MEMORY", State.ENDED, End.OUT_OF_MEMORY),
    ],
)
def test_only_what_is_known_to_have_ended_has(word: str, state: State, end: End) -> None:
    (task,) = read_tasks(record("1", word, "n"), "n")
    assert (task.state, task.end, task.completing) == (state, end, word == "COMPLETING")
    assert task.suspended == (word in ("SUSPENDED", "STOPPED"))


@pytest.mark.parametrize("text", ["123\n", "123;cluster\n", "a plugin's greeting\n123\n"])
def test_the_job_id_of_a_submission(text: str) -> None:
    assert read_job_id(text) == "123"


@pytest.mark.parametrize("text", ["", "\n", "Submitted\n", "-1\n", "../..\n", "١٢\n", "9" * 20])
def test_no_job_id_is_no_answer(text: str) -> None:
    with pytest.raises(ClusterSilent, match="may exist"):
        read_job_id(text)
