"""What Slurm's commands and jobs get of the caller's environment."""

from coordinate_eval.slurm.environment import TOKEN, of_command, of_job

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
