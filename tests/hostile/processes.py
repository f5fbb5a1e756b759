"""What a part of the program makes of hostile checkpoints, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.hostile import reads
from tests.hostile.checkpoints import HOSTILE, Hostile, make, marked
from tests.runs import PATIENCE_SECONDS


def read_by(part: str, folder: Path, hostile: Sequence[Hostile] = HOSTILE) -> dict[str, Any]:
    """What a part says of each checkpoint, by name. Fails if code of one ran."""
    places = made(folder, hostile)
    done = ran("-P", reads.__file__, part, *places.values(), home=folder)
    return told(done, places)


def made(folder: Path, hostile: Sequence[Hostile]) -> dict[str, Path]:
    """Write checkpoints, and return their folders by name."""
    places = {each.name: folder / each.name / "CKPT" for each in hostile}
    for each in hostile:
        make(each, places[each.name])
    return places


def ran(*argv: object, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments; it must end well."""
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        env=os.environ
        | {"HF_HOME": str(home / "hub"), "HOME": str(home), "HF_HUB_OFFLINE": "1"}
        | environ,
        input="y\n" * 100,  # to whoever asks whether to trust code
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def told(done: subprocess.CompletedProcess[str], places: Mapping[str, Path]) -> dict[str, Any]:
    """What a process printed of each checkpoint, by name. Fails if code of one ran."""
    marks = {name: marked(place) for name, place in places.items() if marked(place)}
    assert not marks, marks
    # An engine may write its log there, too.
    lines = [line for line in done.stdout.splitlines() if line.startswith('["/')]
    said = dict(map(json.loads, lines))
    return {name: said[str(place)] for name, place in places.items()}


def assert_read(said: dict[str, Any], expected: object, wrong: str, folder: Path) -> None:
    """A checkpoint is read as if it named no code, or refused in clear words."""
    for hostile in (each for each in HOSTILE if each.name in said):
        word, told = getattr(hostile, wrong), said[hostile.name]
        if not word:
            assert told == expected, hostile
            continue
        assert told.startswith("refused: "), hostile
        assert word in told, told
        assert str(folder / hostile.name) in told, told
        assert "Traceback" not in told
