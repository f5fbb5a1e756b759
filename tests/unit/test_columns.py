"""The history is the same read from its records and from the pack, whatever is in either."""

import math
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trainings import TRAINING, call, keep

from coordinate_eval.coordinator.history import columns, measured
from coordinate_eval.coordinator.history.columns import ASKED, Plain
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.series import Column, series
from coordinate_eval.records import Aggregate

NAMES = ("a", "b", "c", "d")
CORE = Aggregate(factors={"a": 0.5, "c": 0.25}, offset=0.1)

numbers = st.sampled_from([0.0, 0.25, 0.5, 1.0, 7.5, math.nan, math.inf])
scores = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        numbers,
        st.sampled_from([None, 0.01, 0.02]),
        st.integers(0, 10**6),
        st.sampled_from(["acc", "ppl"]),
        st.booleans(),
        st.sampled_from(["x", "x", "y"]),
    ),
)


@st.composite
def records(draw: st.DrawFn) -> list[Measured]:
    """Return runs of few checkpoints, so that many are of the same one."""
    found = []
    for number in range(draw(st.integers(1, 12))):
        its = draw(scores)
        step = draw(st.integers(0, 4))
        found.append(
            Measured(
                run=f"run-{number}", dir="/none", training=TRAINING, suite="s",
                checkpoint=f"{TRAINING}/step-{step}", step=step, scores=its,
                identity=draw(st.sampled_from(["1", "1", "2"])), created=number,
                ended=draw(st.sampled_from([0.0, 1.0])), complete=len(its) == len(NAMES),
                decided=draw(st.sampled_from(["", "", "better"])),
                gpu_seconds=draw(st.sampled_from([None, 5.0])),
                aggregates=draw(st.sampled_from([{}, {"core": CORE}])),
                missing=[name for name in NAMES if name not in its],
                warnings=draw(st.sampled_from([{}, {"a": "all answers are empty"}])),
            )
        )  # fmt: skip
    return found


def lines(found: Sequence[Measured]) -> list[str]:
    return [each.line() for each in found]


def through_the_pack(found: Sequence[Measured]) -> list[Measured]:
    """Return records as they are read from a pack that was made of them."""
    by_name = {each.run: each for each in found}
    content = columns.packed(measured._alike(by_name), "1")
    read = dict(measured._records(columns.load(content, "1")))
    return [read[each.run] for each in found]


@given(records())
def test_what_is_packed_is_read_as_it_was(found: list[Measured]) -> None:
    assert lines(through_the_pack(found)) == lines(found)


@given(records())
def test_a_series_is_that_of_its_records_one_by_one(found: list[Measured]) -> None:
    """Compared with the rules in plain words: the newest score counts, of what was asked last."""
    for made in (series(found), series(through_the_pack(found))):
        expected = plainly(found)
        assert {row.checkpoint: repr(dict(row.scores)) for row in made.rows} == {
            name: repr(dict(its)) for name, its in expected.items()
        }
        for names in (["a"], ["a", "c"], list(NAMES)):
            column, weighted = Column("x", names, mean=True), Column("core", ["a", "c"], True, CORE)
            for row in made.rows:
                its = expected[row.checkpoint]
                assert repr(column.value(row)) == repr(mean_of(its, names))
                told = CORE.value({name: score[:2] for name, score in its.items()})
                value = weighted.value(row)
                assert repr(told) == repr(value and tuple(value[:2]))


def plainly(found: Sequence[Measured]) -> dict[str, dict[str, Plain]]:
    latest = {each.checkpoint: each.identity for each in found}
    current = [each for each in found if each.identity == latest[each.checkpoint]]
    asked = {name: each.scores[name][ASKED] for each in current for name in each.scores}
    rows: dict[str, dict[str, Plain]] = {each.checkpoint: {} for each in current}
    for each in sorted(current, key=lambda run: not run.decided):
        like = {name: s for name, s in each.scores.items() if s[ASKED] == asked[name]}
        rows[each.checkpoint] |= like
    return rows


def mean_of(its: dict[str, Plain], names: Sequence[str]) -> Any:
    from coordinate_eval.coordinator.history.series import Value

    if not all(name in its for name in names):
        return None
    errors = [its[name][1] for name in names]
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) / len(names) if len(known) == len(names) else None
    return Value(sum(its[name][0] for name in names) / len(names), error, len(names))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(place=st.floats(0, 1), kind=st.sampled_from(["torn", "flipped", "other", "another's"]))
def test_a_pack_that_is_torn_or_of_another_version_is_made_again(
    tmp_path: Path, place: float, kind: str
) -> None:
    """Whoever knows fewer fields packs fewer: a run that stopped early would look complete."""
    home = tmp_path / f"{kind}-{place}"
    template = tmp_path / "template"
    if not template.exists():
        for step in range(70):
            keep(template, step, {"a": 0.5, "b": 0.25}, decided="better")
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(template, home)
    first, _ = measured.read(str(home))
    pack = measured.folder(str(home)) / "pack.columns"
    whole = pack.read_bytes()
    at = int(place * (len(whole) - 1))
    rest = whole.partition(b"\n")[2].replace(b"better", b"worse!")
    other = {
        "torn": whole[:at],
        "flipped": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "other": whole.replace(b",decided", b"", 1).replace(b"better", b""),
        "another's": b"1 little %08x\n" % zlib.crc32(rest) + rest,
    }
    pack.write_bytes(other[kind])

    again, problems = measured.read(str(home))

    assert lines(again) == lines(first)
    assert problems == []
    assert pack.read_bytes() == whole


def test_records_that_come_and_go_beside_the_pack_are_read(tmp_path: Path) -> None:
    """Also those with the times of a clock that is wrong: no time of a file counts."""
    for step in range(70):
        keep(tmp_path, step, {"a": step / 100, "b": 0.25})
    before = call(tmp_path, "history", "--csv").stdout
    home = measured.folder(str(tmp_path))
    keep(tmp_path, 70, {"a": 0.7, "b": 0.25})
    keep(tmp_path, 0, {"a": 0.9, "b": 0.25})  # its run has ended again
    next(home.glob("run-*-3.*")).unlink()
    (home / f"torn.{'0' * 16}.json").write_text('{"schema": "coordinate-eval/measured@1", ')
    newer = '{"schema": "coordinate-eval/measured@2"}'
    (home / f"newer.{'0' * 16}.json").write_text(newer)

    said = call(tmp_path, "history", "--csv")
    (home / "pack.columns").unlink()

    assert said.output.count("is left out") == 2
    assert call(tmp_path, "history", "--csv").stdout == said.stdout
    assert said.stdout.splitlines()[2:4] == before.splitlines()[2:4]
    assert "/step-0,,0,,0.9," in said.stdout
    assert "/step-3," not in said.stdout
    assert "/step-70," in said.stdout


@pytest.mark.parametrize("command", [("history",), ("best", "--by", "mean(a,b)"), ("alarms",)])
def test_commands_say_the_same_with_and_without_the_pack(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    for step in range(70):
        value = 0.5 + step / 200 if step != 60 else 0.05
        odd = (math.nan, None, 3, "acc", True, "x")
        its = {"a": value, "b": odd if step == 3 else value / 2, "c": 0.5}
        keep(tmp_path, step, its, aggregates={"core": CORE}, groups={"a": "g", "b": "g"})
    for form in ((), ("--json",)):
        first = call(tmp_path, *command, *form)
        pack = measured.folder(str(tmp_path)) / "pack.columns"
        assert pack.exists()
        assert call(tmp_path, *command, *form).output == first.output
        pack.unlink()
