"""What a training reports is read from whatever it writes, from where the last look ended."""

import math
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinate_eval.coordinator.training import event_files
from coordinate_eval.coordinator.training.patterns import read_patterns
from coordinate_eval.coordinator.training.points import Point
from coordinate_eval.coordinator.training.progress import Position, all_points, look
from coordinate_eval.errors import UserError

REPORTS: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "fixtures" / "training" / "reports.yaml").read_text()
)


def told(points: Any) -> list[str]:
    """Points as text: NaN equals NaN."""
    return [
        str([p.step, *(None if v is None else float(v) for v in values)])
        for p in points
        for values in [(p.loss, p.gradient_norm, p.tokens_per_second)]
    ]


def event(step: int, tag: str, value: float, written: float = 1.7e9) -> bytes:
    """A record of TensorBoard with a scalar, as the format is described."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    number, varint = step, b""
    while number > 127:
        varint += bytes([number & 127 | 128])
        number >>= 7
    varint += bytes([number])
    scalar = field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    return record(
        b"\x09" + struct.pack("<d", written) + b"\x10" + varint + field(5, field(1, scalar))
    )


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", event_files._masked(length)) + content + b"\0\0\0\0"


@pytest.mark.parametrize("trainer", REPORTS)
def test_reports_of_a_trainer_are_read(trainer: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(REPORTS[trainer]["log"])

    found = look([tmp_path / "log"])

    wanted = [Point(*values) for values in REPORTS[trainer]["points"]]
    assert told(found.points) == told(wanted)
    assert not found.notes


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(REPORTS)), st.data())
def test_a_log_says_the_same_in_however_many_looks(trainer: str, data: st.DataObject) -> None:
    content = REPORTS[trainer]["log"].encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        position, points = Position(), list[Point]()
        for cut in [*cuts, len(content)]:
            log.write_bytes(content[:cut])
            found = look([log], position)
            position = Position.model_validate_json(found.position.model_dump_json())
            points += found.points
        whole = look([log]).points

    # The norm and the rate may come after the loss, in a later look.
    assert [(p.step, str(p.loss)) for p in points] == [(p.step, str(p.loss)) for p in whole]


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=2000), st.booleans())
def test_any_content_is_read_without_an_error(content: bytes, is_events: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name = "events.out.tfevents.1.x" if is_events else "log"
        head = event(1, "train/loss", 2.0) if is_events else b"step 1 loss 2.0\n"
        Path(folder, name).write_bytes(head + content)

        assert look([Path(folder, name)]).points[0].loss == 2.0


def test_a_log_that_is_cut_off_or_rotated_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {n} loss 2.0\n" for n in range(1, 40)))
    first = look([log])
    with log.open("a") as file:
        file.write("step 40 loss 2.0\n")
    log.rename(tmp_path / "train.log.1")
    log.write_text("step 41 loss 2.0\n")
    second = look([log], first.position)
    os.truncate(log, 0)
    log.write_text("step 42 loss 2\n")
    third = look([log], second.position)

    assert [p.step for p in first.points] == list(range(1, 40))
    assert [p.step for p in second.points] == [40, 41]
    assert [p.step for p in third.points] == [42]


def test_of_a_log_that_grows_too_fast_the_end_is_read_and_a_note_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"step {n} loss 2.0\n" for n in range(100_000)))

    found = look([log], most_bytes=10_000)

    assert found.points[-1].step == 99_999
    assert 300 < len(found.points) < 700
    assert "passed over" in found.notes[0]


def test_a_line_without_an_end_is_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"step 1 loss 2\n" + b"step 5 loss 7 " * 500_000)
    first = look([log])
    with log.open("ab") as file:
        file.write(b"\nstep 2 loss 3\n")

    points = [*first.points, *look([log], first.position).points]

    assert [(p.step, p.loss) for p in points] == [(1, 2), (5, 7), (2, 3)]


def test_other_ranks_repeat_steps_and_only_their_broken_losses_count(tmp_path: Path) -> None:
    for rank in range(3):
        lines = [f"step {n} loss {n + rank / 10}\n" for n in range(1, 6)]
        lines[3] = "step 4 loss nan\n" if rank == 2 else lines[3]
        (tmp_path / f"rank{rank}").write_text("".join(lines))
    together = "".join(f"{r}: step={n} loss={n + r / 10}\n" for n in range(1, 6) for r in range(3))
    (tmp_path / "all").write_text(together)

    of_three = look([tmp_path / f"rank{rank}" for rank in range(3)]).points
    of_one = look([tmp_path / "all"]).points

    assert [(p.step, p.loss) for p in of_three[:5]] == [(n, n) for n in range(1, 6)]
    assert [p.step for p in of_three[5:]] == [4]
    assert [(p.step, p.loss) for p in of_one] == [(n, n) for n in range(1, 6)]


def test_a_training_that_writes_no_steps_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "silent").write_text("NCCL INFO all is well\n" * 100_000)
    (tmp_path / "hf").write_text("{'loss': 2.5, 'epoch': 0.01}\n{'loss': 2.4, 'epoch': 0.02}\n")

    silent, counted = look([tmp_path / "silent"]), look([tmp_path / "hf"])

    assert "no step" in silent.notes[0] and "patterns file" in silent.notes[0]
    assert [(p.step, p.loss) for p in counted.points] == [(1, 2.5), (2, 2.4)]
    assert "have no steps" in counted.notes[0]
    assert not look([tmp_path / "nothing yet"]).notes


def test_a_line_of_yaml_describes_the_lines_of_ones_own_trainer(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("- {name: mine, step: round, loss: badness of\n    fit}\n")
    (tmp_path / "log").write_text("Round 7 => badness of fit 3.25\n")
    (tmp_path / "bad.yaml").write_text("- {name: mine, lost: x}\n")

    patterns = read_patterns(tmp_path / "own.yaml")

    assert [(p.step, p.loss) for p in look([tmp_path / "log"], None, patterns).points] == [
        (7, 3.25)
    ]
    with pytest.raises(UserError, match="lost"):
        read_patterns(tmp_path / "bad.yaml")


def test_tensorboard_is_read_on_from_a_torn_record(tmp_path: Path) -> None:
    file = tmp_path / "version_0" / "events.out.tfevents.1700000000.node.1.0"
    file.parent.mkdir()
    parts = [
        record(b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2"),
        *(event(n, tag, v) for n in (1, 2) for tag, v in (("lm loss", n), ("grad-norm", 0.5))),
        record(b"\x2a" + b"\xff" * 300),
    ]
    whole = b"".join(parts[:-1])
    file.write_bytes(whole[:-10])
    first = look([tmp_path])
    file.write_bytes(whole + event(300, "lm loss", math.nan) + b"garbage garbage garbage")
    second = look([tmp_path], first.position)

    points = [*first.points, *second.points]
    assert [(p.step, str(p.loss)) for p in points if p.loss] == [
        (1, "1.0"),
        (2, "2.0"),
        (300, "nan"),
    ]
    assert points[0].gradient_norm == 0.5 and points[0].written == 1.7e9
    assert "damaged" in second.notes[0]


def test_attempts_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("".join(f"step {n} loss 2.0\n" for n in range(1, 30)))
    (tmp_path / "2").write_text("".join(f"step {n} loss 2.0\n" for n in range(11, 40)))
    state = '{"log_history": [{"step": 40, "loss": 2.0}, {"step": 41, "eval_loss": 1}]}'
    (tmp_path / "trainer_state.json").write_text(state)

    points, notes = all_points([tmp_path / "1", tmp_path / "2", tmp_path / "trainer_state.json"])

    assert [p.step for p in points] == [*range(1, 30), *range(11, 40), 40]
    assert not notes


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("step 5/100 loss 2.5", 100),
        ("Step: 5 of 1,000, loss: 2.5", 1000),
        (" iteration        5/     500 | lm loss: 2.5E+00 | grad norm: 1.0 |", 500),
        ('{"current_steps": 5, "total_steps": 60, "loss": 2.5}', 60),
        ("{'loss': 2.5, 'epoch': 0.1}\n  5%|▌    | 5/100 [00:01<00:19,  5.0it/s]", 0),
        ("  5%|▌    | 5/100 [00:01<00:19,  5.0it/s]\r{'loss': 2.5, 'epoch': 0.1}", 100),
        ("step 5 loss 2.5", 0),
        ("step 5/100 loss 2.5\nstep 6 loss 2.5", 0),
        ("step 5 loss 2.5 tokens 7/100", 0),
    ],
)
def test_the_total_to_which_a_training_counts_is_read(
    text: str, total: int, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(f"{text}\n")
    assert look([tmp_path / "log"]).total == total
