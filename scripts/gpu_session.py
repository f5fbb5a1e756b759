#!/usr/bin/env python3
"""Measure on one GPU what nothing else can show, and write docs/gpu.md. Takes at most 40 minutes.

    python scripts/gpu_session.py --checkpoint DIR
    python scripts/gpu_session.py --size 8b

It measures the start of vLLM, with and without what earlier starts compiled, and from disk or from
memory; the ways to score choices; prefill and decoding beside what the roofline of `priors/`
predicts; and copies of the weights into memory by 1 to 8 threads. Without --checkpoint it makes one
of random weights in the sizes of a Llama 3. Each part is a process with a time limit of its own:
where one fails, the page says so, and the others go on.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._gpu_parts import PARTS, Part, Session, device_name
from tests import random_llama

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines import vllm
from coordinate_eval.priors import this_machine

_ROOT = Path(__file__).resolve().parents[1]
PAGE = _ROOT / "docs" / "gpu.md"


def main() -> int:
    """Measure all parts and write the page. Return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="a folder with safetensors")
    parser.add_argument("--size", choices=random_llama.SHAPES, default="8b", help="of a made one")
    parser.add_argument("--disk", type=Path, default=Path(), help="folder of a made checkpoint")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))  # noqa: S108
    parser.add_argument("--page", type=Path, help=f"default {PAGE.relative_to(_ROOT)}")
    parser.add_argument("--short", action="store_true", help="only see whether all of it works")
    parser.add_argument("--part", choices=PARTS, help="print the rows of one part as JSON")
    given = parser.parse_args()
    if given.part:
        session = Session(given.checkpoint, given.memory, given.short)
        print(json.dumps(PARTS[given.part].measure(session)))
        return 0
    if given.page is None and not this_machine.gpus():
        parser.error("there is no GPU here: give --page to try this without one")
    with folders(given.disk, given.memory) as (disk, memory):
        own = given.checkpoint and given.checkpoint.resolve()
        model = own or random_llama.make(disk / "model", given.size)
        try:
            sections = [head(model, made=own is None)]
        except UserError as error:
            parser.error(str(error))
        if not given.short:  # where nothing is compiled that a start could miss
            os.environ.update(vllm.cache_variables(disk / "compiled"))
        for name, part in PARTS.items():
            print(f"{part.title} …", flush=True)
            sections.append(section(name, part, Session(model, memory, given.short)))
            # After each part, so that the end of a session loses nothing that was measured.
            (given.page or PAGE).write_text("\n".join(sections))
    return any("Not measured" in text for text in sections)


def section(name: str, part: Part, session: Session) -> str:
    """Measure a part in a process of its own and return its section of the page."""
    options = ["--checkpoint", session.model, "--memory", session.memory]
    command = [sys.executable, str(Path(__file__).resolve()), "--part", name, *map(str, options)]
    began = time.monotonic()
    try:
        # A rehearsal, on a machine that may be busy, is not to keep to a session's time.
        seconds = 60 * part.minutes * (10 if session.short else 1)
        said = run([*command, *(["--short"] if session.short else [])], seconds)
        lines = [part.heads, ["---"] * len(part.heads), *json.loads(said.splitlines()[-1])]
        found = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        found = f"Not measured: {why(error)}"
    finally:
        for left in session.memory.iterdir():
            shutil.rmtree(left, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return f"## {part.title}\n\n{part.about}\n\n{found}\n"


def run(command: Sequence[str], seconds: float) -> str:
    """Run a command from the repository's folder and return what it wrote on stdout.

    Its processes are ended with it.

    Raises:
        subprocess.SubprocessError: it failed, or took longer.
    """
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, warned = process.communicate(timeout=seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, said, warned)
    return said


def why(error: Exception) -> str:
    """Return the reason of a failure in one line."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout / 60:.0f} minutes."
    words = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return f"`{words[-1][:300] if words else error}`"


def head(model: Path, *, made: bool) -> str:
    """Return the title, the machine, the versions and the model."""
    found = checkpoints.inspect(model)
    shape = f"{found.parameters / 1e9:.2f} · 10⁹ parameters in {found.dtype}"
    names = ["vllm", "torch", "flashinfer-python", "triton"]
    versions = [f"{n} {v}" for n in names if (v := this_machine.engine_version(n))]
    return (
        "# On a GPU\n\n`scripts/gpu_session.py` writes this page. It was measured on "
        f"**{device_name()}**, {this_machine.processor()}, Linux {platform.release()}, Python "
        f"{platform.python_version()}, {', '.join(versions)}. The model has {shape}"
        f"{', which are random' if made else ''}.\n"
    )


@contextlib.contextmanager
def folders(*places: Path) -> Iterator[list[Path]]:
    """Make a folder in each place, and remove them at the end."""
    with contextlib.ExitStack() as stack:
        made = (tempfile.TemporaryDirectory(prefix="gpu-session-", dir=place) for place in places)
        yield [Path(stack.enter_context(one)).resolve() for one in made]


if __name__ == "__main__":
    sys.exit(main())
