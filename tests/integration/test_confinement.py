"""What a confined command sees, may do, and leaves behind."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.runs import PATIENCE_SECONDS
from tests.sandboxes import STRONG

from coordinate_eval.evaluators.sandbox.confinement import Level, View, wrapper


def shown(level: Level, view: View, script: str) -> list[str]:
    """What a shell script prints, one line each, run as this user in a view of its own."""
    argv = [*wrapper(level, view), "sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("level", STRONG)
@pytest.mark.parametrize("below", [None, "/dev/shm"])
def test_a_view_is_read_or_written_where_it_lies(level: Level, below: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=below) as name:
        base = Path(name).resolve()
        for folder in ("read", "read/write", "write", "hidden"):
            (base / folder).mkdir()
        (base / "file").write_text("text")
        (base / "hidden" / "secret").write_text("secret")
        view = View((base / "read", base / "file"), (base / "write", base / "read/write"))
        script = f"cd {base}; ls; cat file; echo; " + "".join(
            f"true 2> /dev/null > {path} && echo {path}; "
            for path in ("file", "read/x", "read/write/x", "write/x")
        )
        assert shown(level, view, f"{script} true") == [
            *("file", "read", "write", "text", "read/write/x", "write/x")
        ]
        assert sorted(p.name for p in base.rglob("x")) == ["x", "x"]


@pytest.mark.parametrize("level", STRONG)
def test_one_who_keeps_the_user_has_no_rights_of_root(level: Level) -> None:
    script = (
        "grep -h -e CapPrm -e CapEff -e CapAmb -e NoNewPrivs /proc/self/status;"
        "for path in $(find /proc/sys /proc/irq /proc/sysrq-trigger -type f 2> /dev/null);"
        "do true 2> /dev/null >> $path && echo $path; done; true"
    )
    assert [line.split()[-1] for line in shown(level, View(), script)] == ["0" * 16] * 3 + ["1"]


def test_a_view_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "link").symlink_to("/etc")
    for path in (tmp_path / "outer" / "link" / "x", Path("/"), Path("relative"), Path("/a/../b")):
        with pytest.raises(ValueError, match="cannot be shown inside"):
            wrapper(Level.BUBBLEWRAP, View((tmp_path / "outer",), (path,)))


@pytest.mark.parametrize("level", STRONG)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -9 $$", 128 + signal.SIGKILL),
        ("kill -15 $$", 128 + signal.SIGTERM),
        ("sleep 1000 & sleep 0 & exit 3", 3),
        ("no-such-command", 127),
    ],
)
def test_its_exit_code_is_that_of_the_command(level: Level, script: str, code: int) -> None:
    argv = [*wrapper(level), "sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == code


@pytest.mark.parametrize("level", STRONG)
def test_its_input_and_output_are_the_commands_own(level: Level) -> None:
    argv = [*wrapper(level), "sh", "-c", "cat; echo no >&2"]
    done = subprocess.run(argv, input="yes", capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("yes", "no\n")


@pytest.mark.parametrize("level", STRONG)
def test_it_ends_with_the_process_that_started_it(level: Level) -> None:
    argv = [*wrapper(level), "sh", "-c", "setsid sleep 1000 & echo; wait"]
    host = f"import subprocess, sys; subprocess.Popen({argv!r}).wait()"
    with subprocess.Popen([sys.executable, "-c", host], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        process.kill()
        # It ends when nobody has it open for writing.
        assert process.stdout.read() == b""


@pytest.mark.parametrize("level", STRONG)
def test_its_system_calls_are_filtered(level: Level) -> None:
    assert shown(
        level, View(), "grep Seccomp: /proc/self/status; unshare -r true 2> /dev/null || echo no"
    ) == [
        "Seccomp:\t2",
        "no",
    ]
