"""What a part of the program makes of hostile checkpoints, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hostile import reads
from tests.hostile.checkpoints import HOSTILE, Hostile, make, marked
from tests.runs import PATIENCE_SECONDS


def read_by(
    part: str, folder: Path, hostile: Sequence[Hostile] = HOSTILE, **environ: str
) -> dict[str, Any]:
    """What a part says of each checkpoint, by name. Fails if code of one ran."""
    places = {each.name: folder / each.name / "CKPT" for each in hostile}
    for each in hostile:
        make(each, places[each.name])
    done = subprocess.run(
        [sys.executable, "-P", reads.__file__, part, *map(str, places.values())],
        env=os.environ
        | {"HF_HOME": str(folder / "hub"), "HOME": str(folder), "HF_HUB_OFFLINE": "1"}
        | environ,
        input="y\n" * 100,  # to whoever asks whether to trust code
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {name: marked(place) for name, place in places.items() if marked(place)}
    assert not ran, ran
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
