"""The line for cron, the file that it runs, and the log of what that says."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from coordinate_eval import _owner
from coordinate_eval.coordinator.cli import streams
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.launch import cron
from coordinate_eval.coordinator.cli.launch.cron import CronJob, cron_job
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.errors import ForeignError, UserError
from coordinate_eval.slurm.environment import TOKEN, of_job
from coordinate_eval.slurm.settings import SlurmSettings

DUMP = [sys.executable, "-c", "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"]

LMOD = {
    "BASH_ENV": "/usr/share/lmod/lmod/init/bash",
    "BASH_FUNC_module%%": '() {  local s;\n eval "$($LMOD_CMD bash "$@")";\n s=$?;\n return $s\n}',
    "BASH_FUNC_ml%%": '() {  eval "$($LMOD_DIR/ml_cmd "$@")"\n}',
    "MODULEPATH": "/apps/modules:/apps/more modules",
    "MODULESHOME": "/usr/share/lmod/lmod",
    "LMOD_CMD": "/usr/share/lmod/lmod/libexec/lmod",
    "__LMOD_REF_COUNT_PATH": "/bin:1",
    "_ModuleTable001_": "X01vZHVsZVRhYmxlXz17",
    "LOADEDMODULES": "cuda/12.8",
}  # fmt: skip
NETWORK = {
    "http_proxy": "http://me:secret@proxy:3128", "HTTPS_PROXY": "http://proxy:3128",
    "no_proxy": "localhost,.site", "SSL_CERT_FILE": "/etc/ssl/site.pem",
    "REQUESTS_CA_BUNDLE": "/etc/ssl/site.pem",
}  # fmt: skip
REST = {
    "HOME": "/home/ann", "PATH": "/opt/slurm/bin:/venv/bin:/usr/bin:/bin", "LANG": "de_DE.UTF-8",
    "LD_LIBRARY_PATH": "/apps/python/lib", "SLURM_CONF": "/etc/slurm it/100%.conf",
    "COORDINATE_EVAL_CONFIG": "/evals/it's.toml", "HF_HOME": "/scratch/hf", "HF_TOKEN": "hf_secret",
    "CUDA_HOME": "/apps/cuda",
}  # fmt: skip
OF_THE_SHELL = {"TMPDIR": "/tmp/ann", "SLURM_JOB_ID": "7", "RANK": "1", "SSH_AUTH_SOCK": "/s"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's place, where nothing but a few variables is set."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(words: str = "ckpts --cron", every: float = 600, given: Settings | None = None) -> CronJob:
    argv = words.split()
    asked = (given or Settings()).model_copy(update={"runs_dir": "/shared/runs"})
    return cron_job(Path(argv[0]), argv, every, asked)


def environment_of(script: Path) -> tuple[str, dict[str, str]]:
    """Run a script as cron does, and return the folder and environment of its command."""
    line = ["/bin/sh", "-c", f"/bin/bash {shlex.quote(str(script))}"]
    cron_has = {"HOME": "/", "LOGNAME": "nobody", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    done = subprocess.run(line, env=cron_has, cwd="/", check=True, stdout=subprocess.PIPE)
    folder, environment = json.loads(done.stdout)
    return folder, environment


def test_the_line_is_short_and_says_nothing_of_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (LMOD | NETWORK | REST | OF_THE_SHELL).items():
        monkeypatch.setenv(name, value)
    job = made("ckpts --suite suite.yaml --cron")
    found = re.fullmatch(
        rf"\*/10 \* \* \* \* \S*/bash ({home}/config/coordinate-eval/cron/ckpts-[0-9a-f]+\.sh)",
        job.line,
    )
    assert found is not None
    assert found[1] == str(job.path)
    assert job.script.endswith(
        f"builtin exec {sys.executable} -P -m coordinate_eval watch {home}/ckpts "
        "--suite suite.yaml --log /shared/runs/watch.log --once\n"
    )
    assert job.secrets == ("HF_TOKEN", "http_proxy")


@pytest.mark.parametrize(
    ("every", "when"), [(60, "*/1 *"), (600, "*/10 *"), (7200, "0 */2"), (86400, "0 0")]
)
def test_when_it_looks(home: Path, every: float, when: str) -> None:
    assert made(every=every).line.startswith(f"{when} * * ")


def test_each_line_has_its_own_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, again, other = made("c --cron"), made("c --cron"), made("c --cron --suite s")
    assert one.path == again.path != other.path
    assert made("/ --cron").path.name.startswith("watch-")
    assert made("a/it's$(x) --cron").path.name.startswith("it-s-x-")
    assert made("c --log mine").script.count("--log") == 1
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "100%"))
    assert r"/100\%/" in made().line
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "a\nb"))
    with pytest.raises(UserError, match="a crontab cannot name"):
        made()


def test_cron_keeps_what_jobs_inherit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One list decides about both."""
    everything = LMOD | NETWORK | REST | OF_THE_SHELL | {"MYSITE_A": "1", "JUDGE_KEY": "k"}
    for name, value in everything.items():
        monkeypatch.setenv(name, value)
    asked = Settings(
        slurm=SlurmSettings(environment=("MYSITE_*",)), judge=JudgeSettings(api_key_env="JUDGE_KEY")
    )
    wanted = of_job(os.environ, ["MYSITE_*"], ["JUDGE_KEY"])
    assert wanted.keys() >= (LMOD | NETWORK | REST).keys() | {"MYSITE_A", "JUDGE_KEY"}
    monkeypatch.setattr(cron, "program", lambda python: DUMP)
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/bin/bash")
    job = made(given=asked)
    assert job.secrets == ("HF_TOKEN", "JUDGE_KEY", "http_proxy")
    job.path.parent.mkdir(parents=True)
    job.path.write_text(job.script)
    folder, found = environment_of(job.path)
    assert folder == str(home)
    assert not OF_THE_SHELL.keys() & found.keys()
    functions = {name for name in wanted if name.startswith("BASH_FUNC_")}
    for name, value in wanted.items():
        if name in functions:  # bash writes them in its own way
            assert name in found
        else:
            assert found[name] == value, name


NAMES = st.from_regex(r"HF_[A-Z_0-9]{1,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=5), VALUES)
def test_any_value_arrives_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str], folder: str
) -> None:
    here = tmp_path_factory.mktemp("cron")
    place = here / ("x" + folder.replace("/", "-")[:20])
    place.mkdir()
    script = here / "script"
    script.write_bytes(os.fsencode(cron._script(variables, str(place), DUMP)))
    where, found = environment_of(script)
    assert where == str(place)
    assert {name: found[name] for name in variables} == variables


def test_functions_that_would_break_the_script(tmp_path: Path) -> None:
    variables = {
        "BASH_FUNC_exec%%": "() {  echo mine; }", "BASH_FUNC_cd%%": "() {  false; }",
        "BASH_FUNC_broken%%": "() {  if; }", "BASH_FUNC_later%%": "() {  echo @(a|b); }",
        "BASH_FUNC_no name%%": "() { :; }", "BASH_FUNC_old()": "() {  echo old; }",
        "BASH_FUNC_evil%%": "not a function; touch pwned",
        "HF_X.Y": "no name of a shell", "UID": "7",
    }  # fmt: skip
    script = tmp_path / "script"
    script.write_text(cron._script(variables, str(tmp_path), DUMP))
    folder, found = environment_of(script)
    assert folder == str(tmp_path)
    assert {f"BASH_FUNC_{n}%%" for n in ("exec", "cd", "later", "old")} <= found.keys()
    assert not {"BASH_FUNC_broken%%", "BASH_FUNC_evil%%", "HF_X.Y"} & found.keys()
    assert not (tmp_path / "pwned").exists()


def test_only_the_user_can_read_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = made()
    job.write()
    assert job.path.stat().st_mode & 0o777 == 0o600
    assert job.path.parent.stat().st_mode & 0o777 == 0o700
    assert job.path.read_text() == job.script
    job.path.parent.chmod(0o777)
    with pytest.raises(ForeignError, match="other users can write to it"):
        job.write()
    job.path.parent.chmod(0o700)
    job.path.parent.parent.chmod(0o777 | 0o1000)
    job.write()
    job.path.parent.parent.chmod(0o777)
    with pytest.raises(ForeignError, match="can put another in its place"):
        job.write()


def test_a_token_with_an_end_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    body = base64.urlsafe_b64encode(json.dumps({"exp": 1764000000, "sun": "ann"}).encode())
    monkeypatch.setenv(TOKEN, f"head.{body.decode().rstrip('=')}.sign")
    (note,) = made().notes
    assert note.startswith("SLURM_JWT ends on 2025-11-2")
    for odd in ("x", "a.b.c", "a.e30.c", "a.bnVsbA.c"):
        monkeypatch.setenv(TOKEN, odd)
        (note,) = made().notes
        assert note.startswith("SLURM_JWT ends: ")


def test_the_command_writes_the_file_and_prints_the_line(home: Path) -> None:
    (home / "ckpts").mkdir()
    args = ["watch", "ckpts", "--cron", "--cluster", "slurm"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.split()[-1])
    assert str(path) in done.stderr
    assert path.read_text().startswith("# What cron runs")


def test_without_a_folder_cron_submits_what_was_requested(home: Path) -> None:
    job = cron_job(None, ["--cron", "--every", "5m"], 300, Settings())
    assert job.line.startswith("*/5 * * * * ")
    assert job.path.name.startswith("requests-")
    (command,) = [line for line in job.script.splitlines() if "coordinate_eval watch" in line]
    assert "watch --every 5m --log " in command
    assert command.endswith(" --once")


# The log.


def other_file(log: Path) -> Path:
    victim = log.parent / "victim"
    victim.write_text("mine\n")
    return victim


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda log: log.symlink_to(other_file(log)), "is a link"),
        (lambda log: log.symlink_to(log.parent / "victim"), "is a link"),
        (lambda log: log.hardlink_to(other_file(log)), "is a hard link"),
        (os.mkfifo, "no regular file"),
        (lambda log: (log.touch(), log.chmod(0o666)), "other users can write"),
        (Path.mkdir, "Is a directory"),
    ],
)
def test_a_log_that_others_may_have_put_there_is_not_written(
    tmp_path: Path, plant: Callable[[Path], object], words: str
) -> None:
    log = tmp_path / "watch.log"
    plant(log)
    with pytest.raises((ForeignError, OSError), match=words):
        _owner.open_log(log)
    victim = tmp_path / "victim"
    assert not victim.exists() or victim.read_text() == "mine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's file")
def test_a_log_of_another_user_is_not_written(tmp_path: Path) -> None:
    log = tmp_path / "watch.log"
    log.touch()
    os.chown(log, 12345, 12345)
    with pytest.raises(ForeignError, match="belongs to uid 12345"):
        _owner.open_log(log)


def test_each_line_of_a_log_has_time_and_folder(tmp_path: Path) -> None:
    log = tmp_path / "new" / "watch.log"
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from coordinate_eval.coordinator.cli import streams\n"
        f"streams.log_to(Path({str(log)!r}), '/ckpts')\n"
        "print('a\\nb')\nsys.stderr.write('half')\nsys.stderr.write(' \\x1b[31m\\rforged\\n')\n"
        "os.system('echo of a child')\nraise SystemExit('last')\n"
    )
    for _ in range(2):  # it is appended to
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 1)
    lines = log.read_text().splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    wanted = [f"{time} /ckpts: {words}" for words in ("a", "b", r"half �\[31m", "forged")]
    wanted += ["of a child", f"{time} /ckpts: last"]
    assert len(lines) == 2 * len(wanted)
    for line, pattern in zip(lines, wanted * 2, strict=True):
        assert re.fullmatch(pattern, line), line
    assert log.stat().st_mode & 0o777 == 0o644


def test_a_log_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be opened"):
        streams.log_to(tmp_path / "file" / "watch.log", "x")
