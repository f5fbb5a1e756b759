"""What is submitted: exact options, exact scripts, what bash does with them, and variables."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.errors import UserError
from coordinate_eval.slurm.environment import TOKEN, of_command, of_job
from coordinate_eval.slurm.scripts import Submission, submission
from coordinate_eval.slurm.settings import SlurmSettings

GOLDEN = Path(__file__).parents[1] / "scripts"

SITE = SlurmSettings(
    partition="gpu",
    cpu_partition="cpu",
    account="pretrain",
    qos="idle",
    constraint="h200&ib",
    setup=("module load cuda", "source '/opt/my env/bin/activate'"),
    extra_args=("--exclude=node7", "--comment 'left over'"),
)
TRIALS = Job(
    name="run7.trial.node1",
    argv=("/opt/venv/bin/coordinate-eval", "_trial", "/runs/7", "node1"),
    node="node1",
    count=8,
    gpus=1,
    gpu_type="h200",
    cpus=8,
    memory_mib=65536,
    minutes=45,
    gpu_work=True,
    log="/runs/7/logs/trial-node1",
)
OVER_NODES = TRIALS.model_copy(
    update={"node": "node1,node2", "nodes": 2, "count": 1, "gpus": 8, "cpus": 32}
)
SUPERVISOR = Job(
    name="run7.supervisor",
    argv=("/opt/venv/bin/coordinate-eval", "_supervise", "/runs/7"),
    minutes=720,
    requeue=True,
    submits=True,
    folder="/runs/7/work",
    log="/runs/7/logs/supervisor",
)
HOSTILE = Job(
    name="a 'b'\n#SBATCH --hold\n$(touch x)",
    argv=("-c", 'it\'s "x"\r\n\\ `id` $HOME', "", "~", "A=b", "\x01é\u2028"),
    minutes=0,
    memory_mib=0,
    folder="/runs/100% of\\it\n' $(id)",
    log="/runs/100% of\\it\n'",
)


def options(made: Submission) -> dict[str, str]:
    return dict(arg.partition("=")[::2] for arg in made.args)


@pytest.mark.parametrize(
    ("name", "job", "settings"),
    [
        ("trials", TRIALS, SITE),
        ("over_nodes", OVER_NODES, SITE),
        ("supervisor", SUPERVISOR, SITE),
        ("hostile", HOSTILE, SlurmSettings()),
    ],
)
def test_what_is_submitted_is_the_golden_text(name: str, job: Job, settings: SlurmSettings) -> None:
    text = submission(job, settings).text().encode()
    assert text == (GOLDEN / f"{name}.sh").read_bytes()
    subprocess.run(["bash", "-n", GOLDEN / f"{name}.sh"], check=True)


def test_the_site_decides_where_which_work_goes() -> None:
    cpu = Job(name="metric", argv=("x",), minutes=5, log="/l")
    keeper = cpu.model_copy(update={"gpu_work": True})
    assert options(submission(cpu, SITE))["--partition"] == "cpu"
    assert "--constraint" not in options(submission(cpu, SITE))
    assert options(submission(keeper, SITE))["--partition"] == "gpu"
    assert options(submission(keeper, SITE))["--constraint"] == "h200&ib"
    elsewhere = SITE.model_copy(update={"cpu_account": "eval", "cpu_qos": "small"})
    for job, account, qos in ((cpu, "eval", "small"), (keeper, "pretrain", "idle")):
        found = options(submission(job, elsewhere))
        assert (found["--account"], found["--qos"]) == (account, qos)
    assert options(submission(cpu, SITE))["--account"] == "pretrain"
    one = SlurmSettings(partition="all")
    assert options(submission(cpu, one))["--partition"] == "all"
    for absent in ("--partition", "--account", "--qos", "--constraint", "--gres", "--array"):
        assert absent not in options(submission(cpu, SlurmSettings()))


def test_a_short_job_does_not_begin_with_its_warning() -> None:
    brief = TRIALS.model_copy(update={"minutes": 1})
    assert int(options(submission(brief, SITE))["--time"]) * 60 > 2 * 60


@pytest.mark.parametrize("submits", [False, True])
def test_only_a_job_that_submits_others_keeps_the_user_s_token(submits: bool) -> None:
    argv = ("bash", "-c", 'echo "${SLURM_JWT-none}"')
    job = Job(name="judge", argv=argv, minutes=5, submits=submits, log="/l")
    done = subprocess.run(
        ["bash"],
        input=submission(job, SlurmSettings()).script,
        env={"PATH": os.environ["PATH"], "SLURM_JWT": "token", "SLURM_JOB_ID": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ("token\n" if submits else "none\n")


def test_gpus_of_any_type() -> None:
    untyped = TRIALS.model_copy(update={"gpu_type": "", "gpus": 2})
    assert options(submission(untyped, SITE))["--gres"] == "gpu:2"
    assert options(submission(TRIALS, SITE))["--gres"] == "gpu:h200:1"
    called = SITE.model_copy(update={"gpu_type": "h200"})
    assert options(submission(TRIALS, called))["--gres"] == "gpu:1"


def test_jobs_of_a_site_that_counts_no_memory_ask_for_none() -> None:
    made = options(
        submission(TRIALS, SlurmSettings(memory=False, extra_args=("--exclude=gpu[1-3],gpu7",)))
    )
    assert "--mem" not in made
    assert made["--exclude"] == "gpu[1-3],gpu7"


def test_a_site_may_want_memory_by_cpu() -> None:
    """Rounded up, so that a job gets no less than it asks for."""
    job = TRIALS.model_copy(update={"cpus": 3, "memory_mib": 1000})
    made = options(submission(job, SlurmSettings(memory="per-cpu")))
    assert "--mem" not in made
    assert (made["--cpus-per-task"], made["--mem-per-cpu"]) == ("3", "334M")


@pytest.mark.parametrize(
    ("memory", "cpus", "asked"),
    [
        (True, "9", ("--mem", "32768M")),
        ("per-cpu", "9", ("--mem-per-cpu", "3641M")),
        (False, "8", None),
    ],
)
def test_a_job_asks_for_the_cpus_that_its_memory_costs(
    memory: bool | str, cpus: str, asked: tuple[str, str] | None
) -> None:
    """Some versions of Slurm raise the CPUs of one way to ask, and double those of the other."""
    site = SlurmSettings.model_validate({"memory": memory})
    job = TRIALS.model_copy(update={"cpus": 8, "memory_mib": 32768})
    made = options(submission(job, site, (), 4000))
    assert made["--cpus-per-task"] == cpus
    found = [(name, value) for name, value in made.items() if name.startswith("--mem")]
    assert found == ([asked] if asked else [])
    cheap = options(submission(job.model_copy(update={"memory_mib": 100}), site, (), 4000))
    assert cheap["--cpus-per-task"] == "8"


@pytest.mark.parametrize(
    "option", ["--clusters=gpu2", "--clusters gpu2", "--cluster=gpu2", "-M gpu2", "-Mgpu2"]
)
def test_no_job_goes_to_a_cluster_that_is_not_looked_at(option: str) -> None:
    with pytest.raises(ValidationError, match=r"(?s)extra_args.*another cluster.*SLURM_CONF"):
        SlurmSettings(extra_args=(option,))
    assert SlurmSettings(extra_args=("--cluster-constraint=x", "--mail-user=a"))


def test_a_job_keeps_away_from_nodes_of_its_own_besides_those_of_the_site() -> None:
    job = TRIALS.model_copy(update={"node": None, "avoid": ("n1", "n2")})
    assert options(submission(job, SlurmSettings()))["--exclude"] == "n1,n2"
    made = options(submission(job, SlurmSettings(extra_args=("--exclude=gpu[1-3]",))))
    assert made["--exclude"] == "gpu[1-3],n1,n2"


@pytest.mark.parametrize("option", ["", "node7", "--comment 'open", "job.sh --wrap=x"])
def test_an_extra_argument_that_is_no_option_is_refused(option: str) -> None:
    with pytest.raises(UserError, match="extra_args"):
        submission(TRIALS, SlurmSettings(extra_args=(option,)))


@pytest.mark.parametrize("field", ["name", "log"])
def test_a_nul_character_is_refused(field: str) -> None:
    with pytest.raises(UserError, match="NUL"):
        submission(TRIALS.model_copy(update={field: "/a\0b"}), SITE)
    with pytest.raises(UserError, match="NUL"):
        submission(TRIALS, SlurmSettings(setup=("a\0",)))


def run(*argv: str, setup: str, log: Path) -> int:
    """Run the script of a job that Slurm may requeue; its exit status."""
    job = Job(
        name="super", argv=argv, minutes=60, requeue=True, folder=str(log.parent), log=str(log)
    )
    script = submission(job, SlurmSettings(setup=(setup,))).script
    return subprocess.run(["bash", "-c", script], check=False).returncode


def test_a_warning_during_the_setup_ends_nothing(tmp_path: Path) -> None:
    assert run("mkdir", "began", setup="kill -s USR1 $$", log=tmp_path / "log") == 0
    assert (tmp_path / "began").exists()


@pytest.mark.parametrize(
    ("name", "status"), [("USR1", 0), ("KILL", 0), ("TERM", 128 + signal.SIGTERM)]
)
def test_a_program_that_does_not_listen_yet_begins_again_unless_slurm_ends_it(
    name: str, status: int, tmp_path: Path
) -> None:
    """The first time, it has the job signalled and never ends by itself."""
    to = "$$" if name == "KILL" else "$PPID"
    program = f"mkdir tried 2>/dev/null || exit 0; kill -s {name} {to}; exec tail -f /dev/null"
    assert run("bash", "-c", program, setup=":", log=tmp_path / "log") == status


OF_THE_USER = {
    "HOME": "/home/me", "PATH": "/venv/bin:/bin", "HF_HOME": "/hf", "VLLM_CPU_KVCACHE_SPACE": "4",
    "LC_ALL": "de_DE.UTF-8", "https_proxy": "http://proxy", "BASH_FUNC_module%%": "() { :; }",
    "COORDINATE_EVAL_RUNS_DIR": "/runs", "PYTHONPATH": "/lib", "SLURM_CONF": "/etc/x.conf",
    "_ModuleTable001_": "x", "__MODULES_LMINIT": "module use /m",
}  # fmt: skip
OF_THE_SHELL = {
    "TMPDIR": "/tmp/me", "TRITON_CACHE_DIR": "/t", "TORCHINDUCTOR_CACHE_DIR": "/i",
    "VLLM_CACHE_ROOT": "/v", "FLASHINFER_WORKSPACE_BASE": "/f", "SSH_AUTH_SOCK": "/s",
    "_SLURM_SPANK_OPTION_lua_x": "1", "SLURM_JOB_ID": "7", "SBATCH_PARTITION": "nope",
    "CUDA_VISIBLE_DEVICES": "3", "NCCL_DEBUG": "INFO", "RANK": "1", "KEY": "secret", "PS1": "$",
}  # fmt: skip


def test_a_job_gets_what_is_listed() -> None:
    assert of_job(OF_THE_USER | OF_THE_SHELL) == OF_THE_USER


def test_settings_and_jobs_name_more() -> None:
    found = of_job(OF_THE_SHELL, ["NCCL_DEBUG", "TR*"], ["KEY"])
    assert found.keys() == {"NCCL_DEBUG", "TRITON_CACHE_DIR", "KEY"}
    assert of_job(OF_THE_SHELL, ["KEY"], without=["KEY"]) == {}
    assert of_job({"A": "1"}, ["*"]) == {"A": "1"}


def test_no_command_is_changed_and_each_can_authenticate() -> None:
    given = OF_THE_USER | OF_THE_SHELL | {TOKEN: "token", "SQUEUE_USERS": "nobody"}
    found = of_command(given)
    assert found[TOKEN] == "token"
    assert found["SLURM_CONF"] == "/etc/x.conf"
    assert found["LC_ALL"] == "C"  # its messages are read
    changed = ("SLURM_JOB_ID", "SBATCH_PARTITION", "SQUEUE_USERS", "_SLURM_SPANK_OPTION_lua_x")
    assert not {*changed} & found.keys()
    assert of_job(given)[TOKEN] == "token"  # sbatch authenticates, and a supervisor does
