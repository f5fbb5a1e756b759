"""The curves of `coordinate-eval guard status`: what became of the loss in each attempt."""

import json
from pathlib import Path

from coordinate_eval.coordinator.cli.inquire.guards import curves


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
