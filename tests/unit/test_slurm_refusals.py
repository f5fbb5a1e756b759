"""What follows from sbatch's words, of many versions."""

import pytest

from coordinate_eval.errors import ArrayRefused, SettingsRefused, SubmitLater, SubmitRefused
from coordinate_eval.slurm.answers.refusals import refusal

FAILED = "sbatch: error: Batch job submission failed: "
CLI_FILTER = "sbatch: error: cli_filter plugin terminated with error"
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
    FAILED + "System submissions disabled",  # of a federation's cluster that is drained
]

NEVER = {
    FAILED + "Invalid account or account/partition combination specified": "cpu_account",
    FAILED + "Invalid partition name specified": "cpu_partition",
    "sbatch: error: invalid partition specified: nope\n"
    f"{FAILED}Invalid partition name specified": "cpu_partition",
    FAILED + "No partition specified or system default partition": "cpu_partition",
    FAILED + "User's group not permitted to use this partition": "partition",
    FAILED + "Multiple partition job request not supported when a partition is set in the "
    "association": "partition",
    FAILED + "Invalid mcs_label specified": "extra_args",
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


def test_the_first_line_has_the_schedulers_words_and_the_second_the_command() -> None:
    for words in (*LATER, *NEVER, *ELSEWHERE):
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


# What sites' own plugins print, as public job_submit.lua files, manuals and users' reports have it,
# and parts of the settings that have to change.
SITES = {
    # Another partition, QOS, account.
    "A partition has not been provided, specifying a partition is now required.": ["partition"],
    "job must be submitted to a valid queue": ["partition"],
    "You are not allowed to use partition bigmem": ["partition"],
    "Sorry, you are not authorized to run on these GPU nodes": ["partition", "account", "qos"],
    "A Quality of Service (QoS) has not been provided. Specifying a QoS is now required.": ["qos"],
    "No authorized Qos: gpu": ["qos"],
    "Please specify the job's account": ["account"],
    "You must include an RT Project with the -A flag to this command.": ["account"],
    "You are associated with multiple _gpu allocations...\n"
    "sbatch: error: Please specify one of the following accounts to submit this job:": ["account"],
    "obol: job rejected: insufficient budget": ["account"],
    "Your project has no GPU-hours left": ["account"],
    "You need to specify a project. Use '--account projectname'. Please be aware that "
    "'--comment projectname' will be deprecated.": ["account"],
    "Your account has expired or exceeded the allocated CPU time.\n"
    "sbatch: error: Please contact the account manager.": ["account"],
    "You have no project with GPU time": ["account"],
    # In other languages, too.
    "ERROR: -p を指定してください": ["partition"],
    "--accountを指定してください": ["account"],
    "ERROR: --qosの手動指定は禁止です": ["qos"],
    "请指定partition参数": ["partition"],
    # Time.
    "The requested runtime of the long QoS must be greater than 24 hour(s).": [
        "qos",
        "max_minutes",
    ],
    "You must specify a time limit (-t/--time)": ["max_minutes"],
    "Your walltime exceeds the maximum of 2 days": ["max_minutes"],
    "You have requested the partition 'long' for your job, but it is not allowed to run jobs "
    "that take less than 7 days": ["partition", "max_minutes"],
    "Jobs longer than 48:00:00 are not permitted": ["max_minutes"],
    # Cores.
    "You are requesting 24 CPUs, which exceeds the maximum allowed of 16 CPUs for 1 GPU(s) of "
    "type a100.": ["[trial] cpus"],
    "Error: Requested CPU/GPU ratio 24 does not match required ratio 16": ["[trial] cpus"],
    # Memory: how much, and how it is asked for.
    "Requesting memory by node is not supported. Use --mem-per-cpu.": ['memory ("per-cpu"'],
    "Job rejected: Please do not specify memory for node-exclusive jobs.": ["false not at all"],
    "Error: Minimum memory per job is 1000 MB, please change your requirements.": ["memory_gib"],
    "Requested memory exceeds 64 GB per GPU": ["memory_gib"],
    # The rest.
    "You must choose a node feature with --constraint": ["constraint"],
    "Please request a whole node with --exclusive": ["extra_args"],
    "Jobs need a license: add --licenses=scratch": ["extra_args"],
}


@pytest.mark.parametrize(("own", "settings"), SITES.items())
def test_the_settings_that_a_sites_own_words_speak_of_are_named(
    own: str, settings: list[str]
) -> None:
    for gpus, last in ((True, f"{FAILED}Unspecified error"), (False, CLI_FILTER)):
        found = refusal(f"sbatch: error: {own}\n{last}\n", "sbatch", gpus=gpus)
        # No repetition mends a setting.
        assert type(found) is SettingsRefused
        cure = str(found).splitlines()[0].rpartition("set what this speaks of: ")[2]
        assert len(cure.split("; ")) == len(settings)
        for setting in settings:
            assert setting in cure


WANT_GPUS = [
    "When requesting resources from GPU partitions, users must specify --gres.",
    "Job rejected: No GPUs requested.",
    "Job rejected: The partitions containing GPUs are reserved for jobs requesting GPUs.",
    "You may not submit a job not requesting GPUs in a non-CPU partition.",
    "GPU를 요청한 잡만 제출할 수 있습니다",
    "You tried submitting to a GPU partition, but you did not request any GPU with GRES or GPUS",
]


@pytest.mark.parametrize(
    "last", ["Unspecified error", "Invalid generic resource (gres) specification"]
)
@pytest.mark.parametrize("own", WANT_GPUS)
def test_a_site_that_wants_jobs_with_gpus_gets_those_of_trials(own: str, last: str) -> None:
    words = f"sbatch: error: {own}\n{FAILED}{last}\n"
    # A keeper's work is done by a job with GPUs, and other jobs go elsewhere.
    assert type(refusal(words, "sbatch", gpus=True, bare=True)) is SubmitRefused
    found = refusal(words, "sbatch", gpus=False)
    assert type(found) is SettingsRefused
    assert "set [slurm] cpu_partition" in str(found)


def test_a_keeper_with_too_many_cores_for_its_gpus_is_no_matter_of_settings() -> None:
    own = "sbatch: error: You are requesting 4 CPUs, which exceeds the maximum of 0 for 0 GPUs\n"
    words = f"{own}{FAILED}Unspecified error"
    assert type(refusal(words, "sbatch", gpus=True, bare=True)) is SubmitRefused
    assert type(refusal(words, "sbatch", gpus=True)) is SettingsRefused


def test_frames_and_colors_of_a_sites_words_are_not_shown() -> None:
    own = (
        "sbatch: error: \x1b[00;31m----------------------------------------\n"
        "sbatch: error: You cannot use this account to submit this job.\n"
        "sbatch: error: ----------------------------------------\x1b[00m\n"
    )
    said = str(refusal(f"{FAILED}Unspecified error\n{own}", "sbatch", gpus=True))
    assert said.startswith(
        "Slurm refused the job: Batch job submission failed: Unspecified error; "
        "You cannot use this account to submit this job.: set what this speaks of: [slurm] account"
    )


def test_a_user_with_too_many_files_is_told_so() -> None:
    own = "Your account has exceeded a file system quota and is not permitted to submit batch jobs."
    found = refusal(f"sbatch: error: {own}\n{FAILED}Unspecified error", "sbatch", gpus=True)
    assert type(found) is SettingsRefused
    assert "delete files" in str(found)
    assert "[slurm]" not in str(found)


@pytest.mark.parametrize(
    "own",
    [
        "You have reached the maximum number of submitted jobs",
        "Too many jobs in the queue, wait until some have ended",
        "Job submission is currently disabled",
        "The cluster is undergoing maintenance",
    ],
)
def test_a_site_may_take_a_job_later(own: str) -> None:
    words = f"sbatch: error: {own}\n{FAILED}Unspecified error"
    assert type(refusal(words, "sbatch", gpus=True)) is SubmitLater


def test_what_a_site_says_beside_slurms_own_reason_is_no_reason() -> None:
    words = f"sbatch: error: Job queued to partition(s): gpu\n{ELSEWHERE[0]}"
    found = refusal(words, "sbatch", gpus=True)
    assert type(found) is SubmitRefused
    assert "[slurm] partition" not in str(found)


def test_a_plugin_may_give_one_of_slurms_reasons() -> None:
    memory = "sbatch: error: memory limit must be provided for shared jobs\n"
    found = refusal(f"{memory}{FAILED}Invalid feature specification", "sbatch", gpus=True)
    assert type(found) is SettingsRefused
    assert "constraint; or set [slurm] memory" in str(found)
    disabled = "sbatch: error: The '--mem=0' option is disabled. Please specify a memory size\n"
    assert type(refusal(f"{disabled}{POLICY}", "sbatch", gpus=True)) is SettingsRefused


def test_only_a_sites_own_words_ask_for_options() -> None:
    about_gpus = "sbatch: error: Jobs without GPUs are not welcome here, see the wiki\n"
    for own in ("", about_gpus):
        said = str(refusal(f"{own}{FAILED}Unspecified error", "sbatch", gpus=False))
        assert "cpu_partition" in said
        assert "extra_args" not in said
    assert "extra_args" not in str(refusal(f"{FAILED}Unspecified error", "sbatch", gpus=True))
