"""What runs first in an image: it needs little of the image, and says what it lacks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plans import changed

from coordinate_eval import _in_image
from coordinate_eval.clusters.containers import PURE, ContainerSettings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import containers


def test_our_packages_run_on_any_python() -> None:
    """What is mounted into images has no compiled part that it cannot do without."""
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['yaml._yaml', '_yaml', 'markupsafe._speedups']))\n"
        f"for name in {PURE!r}: __import__(name)\n"
        "print(*(getattr(module, '__file__', '') for module in sys.modules.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [each for each in done.stdout.split() if "site-packages" in each]
    assert loaded
    assert not [each for each in loaded if each.endswith(".so")]


def test_a_trial_imports_nothing_that_an_image_of_an_engine_lacks() -> None:
    modules = (
        "coordinate_eval.coordinator.cli.job_commands",
        "coordinate_eval.coordinator.workers.trial",
        "coordinate_eval.coordinator.workers.on_node.keeper",
        "coordinate_eval.coordinator.workers.on_node.whole_node",
        "coordinate_eval.evaluators.engines.vllm",
        "coordinate_eval.evaluators.engines.transformers",
    )
    code = (
        f"import sys\nfor name in {modules!r}: __import__(name)\n"
        "print(*sorted({name.partition('.')[0] for name, module in sys.modules.items()"
        " if 'site-packages' in str(getattr(module, '__file__', ''))}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_pydantic = {"annotated_types", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert set(done.stdout.split()) - {"_distutils_hack"} <= {"pydantic", *of_pydantic, *PURE}


def test_oldest_versions_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'requires-python = ">={_in_image.OLDEST}"' in text
    for kind in ("vllm", "transformers"):
        chosen = changed(
            Settings(container=ContainerSettings(runtime="podman", image="x")),
            engine={"name": kind},
        )
        found = containers.container(Settings.model_validate(chosen), "trial", [], [], Path("/h"))
        assert found is not None
        for need in found.needs:
            assert f'"{need}"' in text


def start(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What runs first in a container, in a made-up image: a Python with a folder of modules."""
    place = folder / "opt" / "coordinate_eval"
    place.mkdir(parents=True, exist_ok=True)
    (place / "_in_image.py").write_bytes(Path(_in_image.__file__).read_bytes())
    (place / "__main__.py").write_text("import os, sys\nprint(sys.argv[1:], sys.path)\n")
    (place / "__init__.py").touch()
    return subprocess.run(
        [sys.executable, "-S", str(place / "_in_image.py"), "_trial", "a b"],
        env={"PYTHONPATH": str(folder / "image"), _in_image.IMAGE: "my.sif", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def install(folder: Path, name: str, version: str) -> None:
    (folder / "image" / name).mkdir(parents=True)
    (folder / "image" / name / "__init__.py").touch()
    info = folder / "image" / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_an_image_runs_the_job_with_our_package_behind_its_own(tmp_path: Path) -> None:
    install(tmp_path, "pydantic", "2.13.1")
    install(tmp_path, "yaml", "6")
    for name in ("yaml", "jinja2"):
        (tmp_path / "opt" / "coordinate_eval").mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt" / "more" / name / name).mkdir(parents=True)
    done = start(tmp_path, COORDINATE_EVAL_NEEDS="pydantic>=2.12")
    assert done.returncode == 0, done.stderr
    said, _, path = done.stdout.partition("] ")
    assert said == "['_trial', 'a b'"
    ours = [each for each in eval(path) if str(tmp_path) in each]
    opt = tmp_path / "opt"
    assert ours == [str(tmp_path / "image"), str(opt), str(opt / "more" / "jinja2")]


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ({}, "image my.sif has no pydantic and no vllm ("),
        ({"pydantic": "2.9.2", "vllm": "0.18.1"}, "has pydantic 2.9.2 and vllm 0.18.1 ("),
        ({"pydantic": "2.12.0", "vllm": "0.9.0rc1"}, "has vllm 0.9.0rc1 ("),
        ({"pydantic": "3", "vllm": "1.0+cu130"}, ""),
    ],
)
def test_an_image_that_lacks_something_is_refused(
    installed: dict[str, str], words: str, tmp_path: Path
) -> None:
    for name, version in installed.items():
        install(tmp_path, name, version)
    done = start(tmp_path, COORDINATE_EVAL_NEEDS="pydantic>=2.12 vllm>=0.19")
    assert done.returncode == (1 if words else 0)
    assert words in done.stderr
    assert ("needs pydantic>=2.12, vllm>=0.19: use an image that has them" in done.stderr) == (
        bool(words)
    )


def test_a_container_has_the_memory_file_system_of_its_node(tmp_path: Path) -> None:
    there = tmp_path.stat()
    shared = {_in_image.SHARED: str(tmp_path)}
    node = {_in_image.ON_NODE: f"{there.st_dev}:{there.st_ino}"}
    assert start(tmp_path, **shared, **node).returncode == 0
    assert start(tmp_path, **shared).returncode == 0
    other = start(tmp_path, **shared, **{_in_image.ON_NODE: "1:2"})
    assert f"{tmp_path} in the container is not the node's" in other.stderr
    missing = start(tmp_path, **node, **{_in_image.SHARED: str(tmp_path / "no")})
    assert "no is not in the container (No such file" in missing.stderr


def test_an_old_python_can_say_that_it_is_too_old() -> None:
    ast.parse(Path(_in_image.__file__).read_text(), feature_version=(3, 6))
