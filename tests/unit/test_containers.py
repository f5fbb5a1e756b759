"""Jobs in containers: their exact texts, what of a node is in them, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.decisions import ROUND, RUN
from tests.plans import changed

from coordinate_eval.clusters.containers import (
    Container,
    ContainerSettings,
    Mount,
    contained,
    packages,
)
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.inputs import layers
from coordinate_eval.coordinator.inputs.layers import Layer
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.run import containers
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_job
from coordinate_eval.coordinator.run.jobs import keeper_job, supervisor_job, trials_job
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.starting.create import create
from coordinate_eval.errors import UserError
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings

GOLDEN = Path(__file__).parents[1] / "scripts"

ARGV = ("/opt/venv/bin/python", "-P", "-m", "coordinate_eval", "_trial", "/runs/7", "node1")
MOUNTS = (
    Mount(source="/runs/7", target="/runs/7"),
    Mount(source="/dev/shm", target="/dev/shm"),
    Mount(source="/ckpt/step 5", target="/ckpt/step 5", read_only=True),
)
FACTS = {
    "image": "/images/vllm.sif",
    "mounts": MOUNTS,
    "needs": ("pydantic>=2.12", "vllm>=0.19"),
    "shared": "/dev/shm",
    "home": "/runs/7/home",
}
TEMPLATE = "singularity exec --nv {mounts} '{image}' {command}"


def trials(runtime: str, gpu_type: str = "h200", **fields: object) -> Job:
    return Job(
        name="run7.trial.node1",
        argv=ARGV,
        node="node1",
        count=4,
        gpus=2,
        gpu_type=gpu_type,
        cpus=8,
        minutes=45,
        gpu_work=True,
        container=Container.model_validate({"runtime": runtime, **FACTS, **fields}),
        folder="/runs/7/work",
        log="/runs/7/logs/trial-node1",
    )


def test_a_job_in_a_container_is_the_golden_text() -> None:
    golden = GOLDEN / "container-pyxis.sh"
    mounts = (*MOUNTS[:2], Mount(source="/ckpt/5", target="/ckpt/5", read_only=True))
    job = trials("pyxis", args=("--container-writable",), mounts=mounts)
    assert submission(job, SlurmSettings()).text() == golden.read_text()
    subprocess.run(["bash", "-n", golden], check=True)


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("apptainer", trials("apptainer", args=("--userns",))),
        ("apptainer-amd", trials("apptainer", "amd_instinct_mi300x")),
        ("podman", trials("podman", image="docker.io/vllm/vllm-openai:v0.32.0")),
        ("podman-amd", trials("podman", "mi300x", image="rocm/vllm")),
        ("template", trials(TEMPLATE)),
    ],
)
def test_the_command_of_each_runtime_is_the_golden_text(name: str, job: Job) -> None:
    """It follows the variables that the job does not inherit, as in the whole text."""
    text = submission(job, SlurmSettings()).text()
    command = text.partition("  --unset=XDG_DATA_HOME \\\n")[2].partition("# Above is what")[0]
    assert command == (GOLDEN / f"container-{name}.txt").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("runtime", ["apptainer", "podman", TEMPLATE])
def test_any_path_reaches_the_runtime_as_it_is(runtime: str, tmp_path: Path) -> None:
    """The script is run with a made-up runtime, which says what it was called with."""
    path = "/a b/'c' \"d\"\n$(id)\\,é:"
    program = tmp_path / {TEMPLATE: "singularity"}.get(runtime, runtime)
    said = tmp_path / "said"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(said)!r}, 'w'))\n"
    )
    program.chmod(0o755)
    mount = Mount(source=path, target=path, read_only=True)
    argv = (*ARGV[:4], "_trial", path)
    job = changed(trials(runtime, mounts=(mount,), image=path), argv=argv, folder=str(tmp_path))
    script = submission(job, SlurmSettings()).script
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "SLURMD_NODENAME": "n",
    }
    subprocess.run(["bash", "-c", script], check=True, env=environment, capture_output=True)
    words = json.loads(said.read_text())
    assert words[-1] == path
    assert words[words.index("python3") + 2] == "_trial"
    match runtime:
        case "apptainer" | "podman":
            quoted = path.replace('"', '""')
            assert f'type=bind,"source={quoted}","destination={quoted}",ro' in words
            assert path in words
        case _:
            assert f"{path}:{path}:ro" in words
    if runtime == "podman":
        assert {"--device=nvidia.com/gpu=2", "--device=nvidia.com/gpu=3"} < set(words)
        assert "CUDA_VISIBLE_DEVICES=0,1" in words


@pytest.mark.parametrize("of_slurm", [True, False])
def test_podman_has_the_gpus_of_its_task_by_the_numbers_of_the_node(
    of_slurm: bool, tmp_path: Path
) -> None:
    """Another scheduler may give out the GPUs of one job of Slurm, to one task each."""
    (tmp_path / "podman").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "podman").chmod(0o755)
    job = trials("podman", folder=str(tmp_path))
    done = subprocess.run(
        job.started_by(()) if of_slurm else job.command,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_GPUS": "4,5",
            "CUDA_VISIBLE_DEVICES": "0,1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    devices = [word for word in done.stdout.split() if word.startswith("--device")]
    numbers = "54" if of_slurm else "10"
    assert devices == [f"--device=nvidia.com/gpu={number}" for number in numbers]


@pytest.mark.parametrize("character", [*' \t\n,:"$`\\'])
def test_pyxis_cannot_write_some_paths(character: str) -> None:
    mount = Mount(source="/a'é", target=f"/a{character}b")
    with pytest.raises(UserError, match="pyxis cannot mount '/a"):
        _ = trials("pyxis", mounts=(mount,)).command


def test_a_run_whose_paths_pyxis_cannot_write_is_not_made(tmp_path: Path) -> None:
    root = tmp_path / "a run"
    made = settings_of(runtime="pyxis", image="x.sqsh")
    with pytest.raises(UserError, match="a run': it has no way to write"):
        create(root, changed(RUN, settings=made))
    assert list(tmp_path.iterdir()) == []


def test_tasks_of_one_job_have_a_container_each() -> None:
    launcher = ("srun", "--nodes=2", "--ntasks-per-node=1")
    made = Container.model_validate({"runtime": "pyxis", **FACTS, "mounts": MOUNTS[:2]})
    words = contained(ARGV, made, launcher=launcher)
    assert words[words.index("srun") :][:4] == (*launcher, "--container-image=/images/vllm.sif")
    made = Container.model_validate({"runtime": "apptainer", **FACTS})
    assert contained(ARGV, made, launcher=launcher)[:4] == (*launcher, "env")


def test_a_word_with_source_is_repeated_for_each_mount() -> None:
    template = "ch-run --bind={source}:{target} {image} -- {command}"
    words = trials(template).command
    start = words.index("ch-run")
    assert words[start + 1 : start + 6] == (
        "--bind=/runs/7:/runs/7",
        "--bind=/dev/shm:/dev/shm",
        "--bind=/ckpt/step 5:/ckpt/step 5",
        "/images/vllm.sif",
        "--",
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"runtime": "docker"}, r"container\.runtime .*pyxis, apptainer, podman, or a command"),
        ({"runtime": "x '{command}"}, "cannot be read as a command"),
        ({"runtime": "x {commands} {command}"}, "has {commands}"),
        ({"runtime": "apptainer"}, "set .container. image"),
        ({"image": "/x.sif"}, "set .container. runtime"),
        ({"runtime": "x {command}", "args": ["-v"]}, "args must be empty"),
        ({"runtime": "podman", "image": "x", "mounts": ["data"]}, "'data' must have absolute"),
        ({"runtime": "podman", "image": "x", "mounts": ["/a:/b:rx"]}, "must end with :ro"),
        ({"runtime": "podman", "images": {"trail": "x"}}, r"container\.images\.trail"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, object], words: str) -> None:
    named = {f"container.{name}": value for name, value in values.items()}
    with pytest.raises(UserError, match=words):
        layers.resolve([Layer(source="f", values=named)])


def settings_of(**values: object) -> Settings:
    return Settings(container=ContainerSettings.model_validate(values))


def test_what_is_not_there_is_said_before_anything_is_submitted(tmp_path: Path) -> None:
    image = tmp_path / "x.sif"
    with pytest.raises(UserError, match=rf"container\.image: {image} is not there"):
        containers.check(settings_of(runtime="apptainer", image=str(image)), "slurm")
    image.touch()
    missing = tmp_path / "data"
    with pytest.raises(UserError, match=rf"container\.mounts: {missing} is not there"):
        containers.check(
            settings_of(runtime="apptainer", image=str(image), mounts=[str(missing)]), "slurm"
        )
    with pytest.raises(UserError, match="pyxis is a plugin of Slurm"):
        containers.check(settings_of(runtime="pyxis", image=str(image)), "local")
    with pytest.raises(UserError, match="no-such-runtime is not installed"):
        containers.check(settings_of(runtime="no-such-runtime {command}"), "local")
    containers.check(settings_of(runtime="no-such-runtime {command}"), "slurm")
    containers.check(settings_of(runtime="podman", image="vllm/vllm-openai"), "slurm")
    containers.check(Settings(), "local")


def test_jobs_with_an_engine_run_in_the_image_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "config.json").touch()
    made = settings_of(runtime="podman", image="x", images={"metric": "y"})
    made = changed(made, judge=JudgeSettings(checkpoint=str(tmp_path / "judge"), model="j"))
    run, run_dir = changed(RUN, settings=made), RunDir(tmp_path)
    round_, node = ROUND, ROUND.nodes[0]
    for job in (
        keeper_job(run, run_dir, round_, node),
        trials_job(run, run_dir, round_, node),
        pullers_job(run, run_dir, Pullers.JUDGE, 1, 1, now=0),
    ):
        assert job.container is not None
        assert job.container.image == "x"
        assert job.container.shared == "/dev/shm"
        targets = {mount.target for mount in job.container.mounts}
        assert {str(tmp_path), "/dev/shm", made.cache_dir} < targets
        assert job.container.home == str(run_dir.home)
    metric = pullers_job(run, run_dir, Pullers.METRIC, 1, 1, now=0)
    assert metric.container is not None
    assert metric.container.image == "y"
    for kind in (Pullers.BUILD, Pullers.SCORE):
        assert pullers_job(run, run_dir, kind, 1, 1, now=0).container is None
    assert supervisor_job(run, run_dir, 1, now=0).container is None


def test_an_image_must_have_the_packages_of_the_stores_that_its_weights_are_in() -> None:
    made = settings_of(runtime="podman", image="x")

    def needs(*urls: str) -> tuple[str, ...]:
        run = changed(RUN, settings=made, checkpoint=changed(RUN.checkpoint, weights=urls))
        found = containers.container_of(run, RunDir(Path("/run")), "trial")
        assert found is not None
        return found.needs

    engine = needs("/shared/step-1/model.safetensors")
    assert needs("s3://bucket/a.safetensors") == (*engine, "fsspec", "s3fs")
    assert needs("gs://b/a.pt", "az://b/a.pt") == (*engine, "adlfs", "fsspec", "gcsfs")


def test_a_judge_that_is_asked_over_the_network_has_no_engine(tmp_path: Path) -> None:
    made = settings_of(runtime="podman", image="x")
    made = changed(made, judge=JudgeSettings(base_url="http://h/v1", model="j"))
    run = changed(RUN, settings=made)
    assert pullers_job(run, RunDir(tmp_path), Pullers.JUDGE, 1, 1, now=0).container is None


def test_mounts_lead_to_the_same_place_inside_and_none_is_there_twice(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "runs" / "r").mkdir(parents=True)
    (real / "weights").mkdir()
    (real / "weights" / "model.safetensors").touch()
    (tmp_path / "link").symlink_to(real)
    made = settings_of(runtime="podman", image="x", mounts=["/srv/data:/data:ro"])
    made = changed(made, cache_dir=str(real / "runs"))
    found = containers.container(
        made,
        "trial",
        [tmp_path / "link" / "runs" / "r"],
        [str(real / "weights" / "model.safetensors")],
        tmp_path / "home",
    )
    assert found is not None
    ours = {mount.target for mount in packages()}
    assert [mount for mount in found.mounts if mount.target not in ours] == [
        Mount(source="/srv/data", target="/data", read_only=True),
        Mount(source="/dev/shm", target="/dev/shm"),
        Mount(source=str(real / "runs" / "r"), target=str(tmp_path / "link" / "runs" / "r")),
        Mount(source=str(real / "runs"), target=str(real / "runs")),
        Mount(source=str(real / "weights"), target=str(real / "weights"), read_only=True),
    ]


def test_weights_that_are_links_into_a_hubs_cache_are_mounted_link_by_link(tmp_path: Path) -> None:
    cache, mine = tmp_path / "hub" / "models--a--b", tmp_path / "mine"
    snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
    for folder in (snapshot, blobs, mine):
        folder.mkdir(parents=True)
    (blobs / "5f2c").touch()
    (snapshot / "model.safetensors").symlink_to("../../blobs/5f2c")
    (tmp_path / "scratch").symlink_to(tmp_path / "hub")
    (mine / "model.safetensors").symlink_to(
        tmp_path / "scratch" / "models--a--b" / "snapshots" / "abc" / "model.safetensors"
    )

    def read_only(weights: Path) -> dict[str, str]:
        checkpoint = changed(
            RUN.checkpoint, path=str(weights.parent), files=(), weights=(str(weights),)
        )
        run = changed(RUN, settings=settings_of(runtime="podman", image="x"), checkpoint=checkpoint)
        found = containers.container_of(run, RunDir(tmp_path / "run"), "trial")
        assert found is not None
        ours = {mount.target for mount in packages()}
        given = [each for each in found.mounts if each.read_only and each.target not in ours]
        return {mount.target: mount.source for mount in given}

    own = {str(snapshot): str(snapshot), str(blobs): str(blobs)}
    assert read_only(snapshot / "model.safetensors") == own
    linked = tmp_path / "scratch" / "models--a--b"
    assert read_only(mine / "model.safetensors") == own | {
        str(mine): str(mine),
        str(linked / "snapshots" / "abc"): str(snapshot),
        str(linked / "blobs"): str(blobs),
    }


def test_the_home_is_in_a_container_only_if_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def made(*mounts: str) -> Container:
        chosen = settings_of(runtime="podman", image="x", mounts=list(mounts))
        found = containers.container(chosen, "trial", [], [], Path("/runs/7/home"))
        assert found is not None
        return found

    assert made().home == "/runs/7/home"
    assert str(tmp_path) not in {mount.target for mount in made().mounts}
    assert made("~").home == ""
    assert str(tmp_path) in {mount.target for mount in made("~").mounts}
