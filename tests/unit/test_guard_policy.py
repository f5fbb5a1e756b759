"""Policies of guards, and the batch scripts that they submit: what is refused, in which words."""

import os
from pathlib import Path

import pytest

from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, What, guards_folder
from coordinate_eval.coordinator.training.guarding.guard_job import name_of, prepare
from coordinate_eval.coordinator.training.guarding.healthy import claim, unclaim
from coordinate_eval.coordinator.training.guarding.policy import Policy, read_policy
from coordinate_eval.coordinator.training.guarding.why import at_slurms_word, what_of
from coordinate_eval.diagnosis.cause import Cause
from coordinate_eval.errors import UserError
from coordinate_eval.slurm.batch import BatchScripts, kept_environment, read_script
from coordinate_eval.slurm.client import SlurmClient


def policy(folder: Path, text: str) -> Path:
    path = folder / "guard.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("retry = 3", "retry is no key; there are last_step"),
        ("retries = -1", "retries: "),
        ("last_step = 0", "last_step: "),
        ("nodes = [3, 4]", "numbers of nodes that fall"),
        ("arguments = '--load {chekpoint}'", "{chekpoint}, which stands for nothing"),
        ("arguments = '--load \"x'", "cannot be read"),
        ("webhook = 'ftp://x'", "webhook: "),
        ("pattern = '../x'", "give names below the folder"),
        ("pattern = 'iter'", "has no {step}"),
        ("logs = 'x.log'", "logs: must be a list"),
        ("slow = 'maybe'", "slow: "),
        ("x = ", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_met_is_refused_by_its_key(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError, match=r"guard\.toml") as refused:
        read_policy(policy(tmp_path, text))
    assert words in str(refused.value)


def test_arguments_without_a_value_are_left_out_with_their_option() -> None:
    template = Policy(arguments="--config a --load {checkpoint} --skip={skip} --try {attempt}")
    assert template.words("", "", "1") == ["--config", "a", "--try", "1"]
    expected = ["--config", "a", "--load", "/c/step 1", "--skip=3-4", "--try", "2"]
    assert template.words("/c/step 1", "3-4", "2") == expected


def script(folder: Path, *options: str, first: str = "#!/bin/bash") -> Path:
    path = folder / "train.sbatch"
    lines = [first, *(f"#SBATCH {option}" for option in options), "srun x", "#SBATCH --array=1-3"]
    path.write_text("\n".join(lines))
    return path


def test_the_options_of_a_script_that_a_submission_has_to_keep_are_read(tmp_path: Path) -> None:
    found = read_script(
        script(tmp_path, "-x n1,n2", '--comment="of team x"', "--export=NONE  # none", "-N 4")
    )
    assert (found.exclude, found.comment, found.export) == ("n1,n2", "of team x", "NONE")


@pytest.mark.parametrize("option", ["--array=0-3", "-a 0-3", "--arr=0-3", "hetjob"])
def test_a_script_of_several_jobs_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match="would be several jobs"):
        read_script(script(tmp_path, option))


@pytest.mark.parametrize(
    "option", ["--clusters=other", "-M other", "--cluster other", "-W", "--wait"]
)
def test_a_script_that_a_guard_could_not_watch_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match="Leave it out"):
        read_script(script(tmp_path, option))


def test_a_log_of_one_name_keeps_what_earlier_attempts_wrote(tmp_path: Path) -> None:
    class Client(SlurmClient):
        def run(self, command: str, *args: str, **more: object) -> str:
            asked.extend(args)
            return "7\n"

    asked: list[str] = []
    scripts = BatchScripts(0, Client())
    path = script(tmp_path, "--output=train.log", "--open-mode=truncate", "--requeue")
    job = scripts.submit(path, mark="m", folder="/", environment={}, variables={})
    assert job == "7"
    assert {"--open-mode=append", "--no-requeue", "--hold"} < set(asked[: asked.index(str(path))])


def test_a_log_whose_path_has_a_newline_is_found() -> None:
    text = (
        "JobId=7 JobName=train\n   UserId=me(1) GroupId=me(1)\n   JobState=RUNNING Reason=None\n"
        "   StdErr=/logs of\nmine/%j.log\n   StdIn=/dev/null\n   StdOut=/logs of\nmine/%j.log\n"
        "   Power=\n\n"
    )

    class Client:
        def answer(self, *args: str) -> str:
            return text

    described = BatchScripts(0, Client()).describe("7")  # type: ignore[arg-type]
    assert described is not None
    assert (described.state, described.logs) == ("RUNNING", ("/logs of\nmine/7.log",))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("PreemptTime=None RunTime=00:10:00 TimeLimit=1-00:00:00", None),
        ("PreemptTime=None RunTime=00:10:00 TimeLimit=UNLIMITED", None),
        ("PreemptTime=2026-01-01T10:00:00 RunTime=00:10:00 TimeLimit=1-00:00:00", End.PREEMPTED),
        ("PreemptTime=None RunTime=23:57:00 TimeLimit=1-00:00:00", End.TIME_LIMIT),
    ],
)
def test_a_training_that_ends_well_at_the_schedulers_word_did_not_end_early(
    text: str, told: End | None
) -> None:
    class Client:
        def answer(self, *args: str) -> str:
            return f"JobId=7 JobName=train\n   JobState=COMPLETED Reason=None\n   {text}\n"

    described = BatchScripts(0, Client()).describe("7")  # type: ignore[arg-type]
    assert described is not None
    assert (described.end, described.told) == (End.COMPLETED, told)
    what = {None: What.ENDED_EARLY, End.PREEMPTED: What.PREEMPTED, End.TIME_LIMIT: What.TIME_LIMIT}
    assert what_of(End.COMPLETED, None, finished=False, told=told) is what[told]
    assert what_of(End.COMPLETED, None, finished=True, told=told) is What.FINISHED


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not begin with #!"):
        read_script(script(tmp_path, first="import torch"))
    with pytest.raises(UserError, match="does not exist"):
        read_script(tmp_path / "nothing")


def test_the_callers_own_job_is_no_part_of_the_environment() -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "DATA": "d"}
    kept = kept_environment(environ)
    assert kept == {"SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "DATA": "d"}


def test_a_training_that_is_complete_already_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train, saves = script(tmp_path), tmp_path / "ckpts"
    (saves / "step-200").mkdir(parents=True)

    def prepared(given: Policy) -> None:
        prepare(train, saves, given, Settings(), rollback=False, python="python")

    prepared(Policy(last_step=201))
    with pytest.raises(UserError, match="last_step 100 is not after step 200"):
        prepared(Policy(last_step=100))
    (tmp_path / "done").touch()
    with pytest.raises(UserError, match="is complete"):
        prepared(Policy(done_file="done"))
    with pytest.raises(UserError, match="is a file"):
        prepare(train, train, Policy(), Settings(), rollback=False, python="python")
    with pytest.raises(UserError, match=r"--checkpoints s3://bucket/run is in a store"):
        prepare(train, Path("s3://bucket/run"), Policy(), Settings(), rollback=False, python="p")


def test_a_training_that_ended_while_no_guard_was_alive_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train, saves = script(tmp_path), tmp_path / "ckpts"
    (saves / "step-200").mkdir(parents=True)
    settings, given = Settings(runs_dir=str(tmp_path / "runs")), Policy(last_step=200)
    folder = GuardDir(guards_folder(settings) / name_of(saves))
    folder.root.mkdir(parents=True)
    folder.guarded.touch()
    prepare(train, saves, given, settings, rollback=False, python="python")
    folder.over.touch()
    with pytest.raises(UserError, match="last_step 200 is not after step 200"):
        prepare(train, saves, given, settings, rollback=False, python="python")


@pytest.mark.parametrize(
    ("reason", "told", "what"),
    [
        ("Time Limit", End.TIME_LIMIT, What.TIME_LIMIT),
        ("Preempted", End.PREEMPTED, What.PREEMPTED),
        ("Time Limit", None, None),  # only a log says so
        ("Time Limit", End.PREEMPTED, None),
        ("Key Error", End.TIME_LIMIT, None),  # only Slurm does
    ],
)
def test_a_job_that_failed_at_slurms_word_is_called_so_where_its_log_says_the_same(
    reason: str, told: End | None, what: What | None
) -> None:
    cause = Cause(reason=reason, category="slurm", cure="", then="load")
    assert at_slurms_word(cause, told) is what


def test_a_folder_has_one_guard_whatever_its_runs_dir_is(tmp_path: Path) -> None:
    saves, first, second = tmp_path / "ckpts", tmp_path / "a", tmp_path / "b"
    for folder in (saves, first, second):
        folder.mkdir()
    (first / "guard.json").touch()
    assert claim(saves, first) == claim(saves, first) == ""
    assert claim(saves, second) == str(first)
    (first / "over.json").touch()
    assert claim(saves, second) == ""
    unclaim(saves, first)
    assert (saves / ".coordinate-eval-guard.json").exists()
    unclaim(saves, second)
    assert not list(saves.iterdir())
    for torn in ("", "[]", "{}", '{"guard": 5}', '{"guard": "\\u0000"}'):
        (saves / ".coordinate-eval-guard.json").write_text(torn)
        assert claim(saves, first) == ""
    assert name_of(Path("/x/ckpts")) != name_of(Path("/y/ckpts"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_the_guard_of_another_user_counts_although_its_folder_is_closed(tmp_path: Path) -> None:
    note = tmp_path / ".coordinate-eval-guard.json"
    note.write_text('{"guard": "/closed"}')
    os.chown(note, 4321, 4321)
    assert "4321, who may remove that file" in claim(tmp_path, tmp_path / "guard")
