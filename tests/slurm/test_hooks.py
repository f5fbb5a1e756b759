"""Evaluations asked for by a training job and by cron, on a real controller."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordinate_eval._format import quoted
from tests.runs import PATIENCE_SECONDS, TASKS, Workspace, command, results, until
from tests.slurm.runs import Undisturbed
from tests.tiny import need, tiny_model

PROFILE_OF_LMOD = Path("/etc/profile.d/lmod.sh")
EXAMPLES = Path(__file__).parents[2] / "examples"

TRAINING = """
import logging, os, sys
import coordinate_eval
rank = os.environ["RANK"]
logging.basicConfig(level=logging.DEBUG, format=f"rank {rank}: %(message)s", stream=sys.stdout)
coordinate_eval.after_save(sys.argv[1], step=100, suite=sys.argv[2])
"""


@pytest.fixture(scope="module")
def workspace(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    return Workspace(tmp_path_factory.mktemp("user")).with_prompts(undisturbed.requests)


def saved(folder: Path, *steps: int) -> Path:
    for step in steps:
        shutil.copytree(tiny_model(), folder / f"step-{step}")
    return folder


def runs(workspace: Workspace) -> list[str]:
    folder = workspace.folder / "runs"
    return sorted(path.parent.name.rpartition("-")[0] for path in folder.glob("*/run.json"))


def queue() -> list[str]:
    answer = subprocess.run(
        ["squeue", "-h", "-o", "%j"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()


def test_a_training_job_under_torchrun(workspace: Workspace) -> None:
    """Two ranks of one allocation ask; one run comes of it, and knows nothing of the job."""
    need("torch", "transformers")
    checkpoint = saved(workspace.folder / "training", 100) / "step-100"
    script = workspace.folder / "train.py"
    script.write_text(TRAINING)
    suite = workspace.suite("tiny_cloze")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2"]
    done = subprocess.run(
        ["srun", "--mem=1000", *torchrun, str(script), str(checkpoint), str(suite)],
        env=workspace.environ
        | {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}
        # The jobs of the run show what reaches them.
        | {"COORDINATE_EVAL_SLURM_SETUP": json.dumps(["env >environment.$SLURM_JOB_NAME"])},
        cwd=TASKS,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rank 1: rank 1 leaves the evaluation of {checkpoint} to rank 0" in done.stdout
    assert f"rank 0: evaluation of {checkpoint}: " in done.stdout
    (run,) = (workspace.folder / "runs").glob("step-100-*")
    assert str(run) in done.stdout
    assert results(run)["complete"]
    assert json.loads((run / "run.json").read_text())["step"] == 100
    environments = [path.read_text() for path in (run / "work").glob("environment.*")]
    assert environments
    for environment in environments:
        names = {line.partition("=")[0] for line in environment.splitlines()}
        assert "HOME" in names
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "NCCL_DEBUG", "OMP_NUM_THREADS"} & names
        assert not [name for name in names if name.startswith(("TORCHELASTIC", "PMI"))]
    until(lambda: not queue(), "an empty queue")


def test_two_watch_the_same_folder(workspace: Workspace) -> None:
    folder = saved(workspace.folder / "watched", 1, 2)
    (folder / "step-2" / "model.safetensors").unlink()  # never finished
    (folder / ".step-3").mkdir()
    args = ("watch", folder, "--once", "--quiet", "0", "--suite", workspace.suite("tiny_cloze"))
    both = [workspace.start(*args, "--json") for _ in range(2)]
    said = [each.communicate(timeout=PATIENCE_SECONDS) for each in both]
    assert [each.returncode for each in both] == [2, 2], said  # step-2 is refused
    for out, err in said:
        states = {Path(c["checkpoint"]).name: c["state"] for c in json.loads(out)["checkpoints"]}
        assert set(states) == {"step-1", "step-2"}
        assert states["step-2"] == "refused"
        assert "/step-2" in err
        assert not re.search("step-1: (?!submitted: )", err)  # no error
    assert runs(workspace).count("step-1") == 1
    assert len([name for name in queue() if "super" in name]) <= 1
    (run,) = (workspace.folder / "runs").glob("step-1-*")
    assert results(run)["complete"]
    until(lambda: not queue(), "an empty queue")
    # Done is done. What was refused is tried three times, and not said again after that. Two that
    # note it at the same time may count as one.
    for _ in range(2):
        workspace.call(*args, status=None)
    last = workspace.call(*args)
    assert (last.stdout, last.stderr) == ("", "")
    assert runs(workspace).count("step-1") == 1


def of_a_login_shell(workspace: Workspace) -> dict[str, str]:
    """The environment of a user of Lmod, whose PATH has Slurm and nothing of this installation."""
    if not PROFILE_OF_LMOD.exists():
        pytest.skip("Lmod is not installed: scripts/packages.sh installs it")
    modules = workspace.folder / "modules"
    (modules / "tiny").mkdir(parents=True)
    (modules / "tiny" / "1.0.lua").write_text('setenv("TINY_MODULE", "loaded")\n')
    sbatch = shutil.which("sbatch")
    assert sbatch is not None
    path = f"{Path(sbatch).parent}:/usr/local/bin:/usr/bin:/bin"
    # As an interactive shell leaves it, which has read its profile.
    script = f". {PROFILE_OF_LMOD}; module use '{modules}'; env -0"
    printed = subprocess.run(
        ["bash", "-c", script], env=workspace.environ | {"PATH": path}, check=True,
        stdout=subprocess.PIPE,
    ).stdout  # fmt: skip
    pairs = (each.partition("=") for each in printed.decode().split("\0") if each)
    return {name: value for name, _, value in pairs} | {"PATH": path}


def test_the_line_for_cron_runs_as_it_is(workspace: Workspace) -> None:
    """Jobs that come of it have the user's modules, and its hook has our command."""
    shell = of_a_login_shell(workspace)
    folder = saved(workspace.folder / "it's 100%", 5)
    suite = workspace.suite("tiny_cloze")
    args = ("watch", folder, "--quiet", "0", "--suite", suite, "--every", "20m", "--cron")
    asked = shell | {
        "COORDINATE_EVAL_SLURM_SETUP": json.dumps(
            ["module load tiny", "echo $TINY_MODULE $MY_SITE >loaded.$SLURM_JOB_NAME"]
        ),
        "COORDINATE_EVAL_SLURM_ENVIRONMENT": json.dumps(["MY_SITE"]),
        "COORDINATE_EVAL_AFTER_RUN": json.dumps(["python3", str(EXAMPLES / "log_scores.py")]),
        "MY_SITE": "two\nlines",
        "HF_TOKEN": "hf_secret",
    }
    printed = subprocess.run(
        command(*args), env=asked, cwd=TASKS, check=True, text=True, capture_output=True
    )
    assert "hf_secret" not in printed.stdout + printed.stderr
    assert "HF_TOKEN; only you can read it" in printed.stderr
    line = printed.stdout.strip()
    assert line.startswith("*/20 * * * * /")
    # As cron does it: % is escaped, the shell is sh, and next to nothing is in the environment.
    done = subprocess.run(
        ["/bin/sh", "-c", line.split(maxsplit=5)[5].replace(r"\%", "%")],
        env={"HOME": "/", "LOGNAME": "me", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"},
        cwd="/",
        check=True,
        timeout=PATIENCE_SECONDS,
        capture_output=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")  # cron would mail it
    lines = (workspace.folder / "runs" / "watch.log").read_text().splitlines()
    prefix = re.compile(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d {re.escape(quoted(folder))}: ")
    assert all(prefix.match(each) for each in lines), lines
    (run,) = (workspace.folder / "runs").glob("step-5-*")
    assert f"{quoted(folder / 'step-5')}: submitted: {run}" in "\n".join(lines)
    assert results(run)["complete"]
    until(lambda: not queue(), "an empty queue")
    loaded = [path.read_text() for path in (run / "work").glob("loaded.*")]
    assert loaded
    assert {*loaded} == {"loaded two lines\n"}
    end = json.loads((run / "after_run.json").read_text())
    assert (end["problem"], end["exit_status"]) == ("", 0), end
    assert json.loads((run / "logs" / "after_run.log").read_text())["step"] == 5
