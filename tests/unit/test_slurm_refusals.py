"""What follows from sbatch's words, of many versions."""

import pytest

from coordinate_eval.errors import ArrayRefused, SettingsRefused, SubmitLater, SubmitRefused
from coordinate_eval.slurm.answers.refusals import refusal

FAILED = "sbatch: error: Batch job submission failed: "
POLICY = FAILED + (
    "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)

LATER = [
    # With a limit of an account or a QOS, 20.11 to 26.05 say which.
    f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}",
    f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}",
    f"sbatch: error: AssocGrpSubmitJobsLimit\n{POLICY}",
    f"sbatch: error: QOSGrpSubmitJobsLimit\n{POLICY}",
    f"sbatch: error: QOSMaxSubmitJobPerAccountLimit\n{POLICY}",
    POLICY,  # and earlier versions do not
    # MaxJobCount, of 20.11, 22.05 and 24.11.
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    f"{FAILED}Resource temporarily unavailable",
    f"sbatch: error: Slurm job queue full, sleeping and retrying.\n{FAILED}"
    "Unable to create job record, try again",
    FAILED + "MaxJobCount limit reached",
    "sbatch: error: Job creation temporarily disabled, retrying\n" + FAILED + "try again later",
    FAILED + "Rate limit exceeded, please retry later",
    FAILED + "I/O error writing script/environment to file",
    FAILED + "Required partition not available (inactive or drain)",
    FAILED + "Requested operation is presently disabled",
]

NEVER = {
    FAILED + "Invalid account or account/partition combination specified": "cpu_account",
    FAILED + "Invalid partition name specified": "cpu_partition",
    "sbatch: error: invalid partition specified: nope\n"
    f"{FAILED}Invalid partition name specified": "cpu_partition",
    FAILED + "No partition specified or system default partition": "cpu_partition",
    FAILED + "User's group not permitted to use this partition": "partition",
    FAILED + "Invalid qos specification": "cpu_qos",
    FAILED + "Requested time limit is invalid (missing or exceeds some limit)": "max_minutes",
    f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}": "max_minutes",
    f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{POLICY}": "max_minutes",
    FAILED + "Invalid feature specification": "constraint",
    FAILED + "Requested reservation is invalid": "reservation",
    FAILED + "Access denied to requested reservation": "reservation",
    "sbatch: unrecognized option '--nope'\nTry \"sbatch --help\" for more": "extra_args",
    FAILED + "Requested account has breached requested QOS usage threshold": "qos",
    FAILED + "Access/permission denied": "administers",
}

ELSEWHERE = [
    FAILED + "Requested node configuration is not available",
    FAILED + "Invalid node name specified",
    FAILED + "Requested partition configuration not available now",
    f"sbatch: error: QOSMinGRES\n{POLICY}",
    f"sbatch: error: QOSMaxCpuPerJobLimit\n{POLICY}",
    f"sbatch: error: QOSMaxGRESPerUser\n{POLICY}",
    FAILED + "Memory required by task is not available",
    "sbatch: error: Jobs without GPUs are not welcome here, see the wiki\n"
    f"{FAILED}Unspecified error",
]


@pytest.mark.parametrize("words", LATER)
def test_a_full_queue_takes_the_job_later(words: str) -> None:
    assert type(refusal(words, "sbatch x", gpus=True)) is SubmitLater


@pytest.mark.parametrize(("words", "setting"), NEVER.items())
def test_a_setting_that_has_to_change_is_named(words: str, setting: str) -> None:
    found = refusal(words, "sbatch x", gpus=True)
    assert type(found) is SettingsRefused
    first = str(found).splitlines()[0]
    assert setting in first


def test_a_smaller_array_may_be_taken() -> None:
    words = FAILED + "Invalid job array specification"
    assert type(refusal(words, "sbatch --array=0-3", gpus=True)) is ArrayRefused


@pytest.mark.parametrize("words", ELSEWHERE)
def test_another_place_may_take_what_one_refuses(words: str) -> None:
    assert type(refusal(words, "sbatch x", gpus=True)) is SubmitRefused


@pytest.mark.parametrize("words", [*LATER, *NEVER, *ELSEWHERE])
def test_the_first_line_has_the_schedulers_words_and_the_second_the_command(words: str) -> None:
    first, second = str(refusal(words, "sbatch --mem=1", gpus=True)).splitlines()
    assert words.splitlines()[-1].removeprefix("sbatch: error: ") in first
    assert second == "(submitted with sbatch --mem=1)"


def test_a_job_without_gpus_is_told_where_it_may_go() -> None:
    words = f"sbatch: error: QOSMinGRES\n{POLICY}"
    assert "cpu_partition" in str(refusal(words, "sbatch", gpus=False))
    assert "cpu_partition" not in str(refusal(words, "sbatch", gpus=True))


@pytest.mark.parametrize("gpus", [True, False])
def test_a_sites_own_words_may_ask_for_an_option(gpus: bool) -> None:
    asks = "sbatch: error: Please give a project: sbatch --comment=PROJECT\n"
    first = str(refusal(f"{asks}{FAILED}Unspecified error\n", "sbatch", gpus=gpus)).splitlines()[0]
    assert "[slurm] extra_args" in first
    assert "cpu_partition" not in first


def test_only_a_sites_own_words_ask_for_options() -> None:
    about_gpus = "sbatch: error: Jobs without GPUs are not welcome here, see the wiki\n"
    for own in ("", about_gpus):
        said = str(refusal(f"{own}{FAILED}Unspecified error", "sbatch", gpus=False))
        assert "cpu_partition" in said
        assert "extra_args" not in said
    assert "extra_args" not in str(refusal(f"{FAILED}Unspecified error", "sbatch", gpus=True))
