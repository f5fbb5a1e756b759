"""No process of this program, and no library in one, sends anything to anybody.

The commands run in a network where nobody answers and every packet is recorded. Their datasets are
files of this machine, so that nothing needs to be downloaded.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import packets
from tests.runs import PATIENCE_SECONDS, TASKS, Workspace, command, processes, scores, until
from tests.tiny import need, tiny_model

pytestmark = pytest.mark.skipif(
    not packets.possible(), reason="needs root, unshare and ip to make a network of its own"
)

DATASETS = ("tiny_choice", "tiny_code", "tiny_sums")
ENGINE_ARGS = {"dtype": "float32", "enforce_eager": True}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A user whose libraries have cached nothing, and who has switched nothing off."""
    made = Workspace(tmp_path_factory.mktemp("user"))
    made.environ = packets.without_hints(made.environ) | {
        "COORDINATE_EVAL_CLUSTER": "local",
        "COORDINATE_EVAL_LOCAL_GPUS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return made


def sent(user: Workspace, *argv: str) -> list[str]:
    """What a command tried to send."""
    record = user.folder / "sent"
    done = subprocess.run(
        packets.alone(record, *argv),
        env=user.environ,
        cwd=TASKS,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return record.read_text().splitlines()


def test_a_packet_and_a_question_for_a_name_are_recorded(fresh: Workspace) -> None:
    tries = """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.getaddrinfo("telemetry.example.org", 443)
for family, address in (socket.AF_INET, "203.0.113.7"), (socket.AF_INET6, "2001:db8:1::7"):
    with socket.socket(family) as tcp, contextlib.suppress(OSError):
        tcp.settimeout(0.1)
        tcp.connect((address, 443))
"""
    found = sent(fresh, sys.executable, "-c", tries)
    assert "tcp 203.0.113.7 443" in found
    assert "tcp 2001:db8:1::7 443" in found
    assert any(line.startswith("udp 203.0.113.53 53") and "telemetry" in line for line in found)


def test_help_sends_nothing(fresh: Workspace) -> None:
    assert sent(fresh, *command("--help")) == []


def test_a_plan_sends_nothing(fresh: Workspace) -> None:
    asked = ("run", tiny_model(), "--suite", fresh.suite(*DATASETS), "--dry-run")
    assert sent(fresh, *command(*asked)) == []


def test_a_whole_run_sends_nothing_and_leaves_nothing(fresh: Workspace) -> None:
    need("vllm", "vllm-cpu")
    run = fresh.folder / "run"
    asked = command(
        "run", tiny_model(), "--suite", fresh.suite(*DATASETS), "--run-dir", run,
        "--engine", "vllm", "--engine-args", json.dumps(ENGINE_ARGS),
    )  # fmt: skip
    assert sent(fresh, *asked) == []
    assert set(scores(run)) == set(DATASETS)
    until(lambda: not processes(str(run)), "no processes")
    until(lambda: not list(fresh.memory.iterdir()), "an empty memory")


def test_the_other_engine_sends_nothing(fresh: Workspace) -> None:
    need("transformers", "transformers")
    starts = """
import sys
from pathlib import Path
from coordinate_eval.evaluators.engines.base import Loading, by_name
by_name("transformers").start(Loading(Path(sys.argv[1]), 1, 64, {})).close()
"""
    assert sent(fresh, sys.executable, "-c", starts, str(tiny_model())) == []


def test_what_a_caller_has_switched_on_is_switched_off(fresh: Workspace, tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import os, sys\n"
        "from coordinate_eval.coordinator.cli.app import main\n"
        "sys.argv[1:] = ['--version']\n"
        "try: main()\n"
        "finally: print({k: v for k, v in os.environ.items() if 'HF_' in k or 'VLLM_NO' in k})\n"
    )
    environ = fresh.environ | {"HF_UPDATE_DOWNLOAD_COUNTS": "1", "VLLM_NO_USAGE_STATS": "0"}
    done = subprocess.run(
        [sys.executable, probe], env=environ, capture_output=True, text=True, check=True
    )
    assert "'HF_UPDATE_DOWNLOAD_COUNTS': '0'" in done.stdout
    assert "'VLLM_NO_USAGE_STATS': '1'" in done.stdout
