"""Which distributions have a package, as `importlib.metadata` says of all packages at once."""

from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from coordinate_eval.evaluators.quick_transformers import Providers

FILES = {
    "declares-1.dist-info": {"top_level.txt": "declared\ndeclared_too\n", "RECORD": "other/x.py,,"},
    "lists-2.dist-info": {"RECORD": "listed/__init__.py,sha256=x,1\nalone.py,,\nlists-2.x/x,,\n"},
    "deep-1.dist-info": {"RECORD": "listed/deep/more/x.py,,\n../bin/x.py,,\ndata/x.json,,\n"},
    "old-1.egg-info": {"SOURCES.txt": "old/__init__.py\nolder.py\nsetup.py\n"},
    "empty-1.dist-info": {"top_level.txt": "\n", "RECORD": "a.b/x.py,,\nlisted_not/x.py,,\n"},
}  # fmt: skip
PACKAGES = (
    "declared", "declared_too", "other", "listed", "alone", "data", "old", "older", "setup", "a.b",
    "listed_not", "list", "x", "deep", "nowhere", "pytest",
)  # fmt: skip


def test_a_package_is_found_in_the_same_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, files in FILES.items():
        (tmp_path / folder).mkdir()
        name = "PKG-INFO" if folder.endswith("egg-info") else "METADATA"
        (tmp_path / folder / name).write_text(f"Name: {folder.partition('-')[0]}\nVersion: 1\n")
        for file, text in files.items():
            (tmp_path / folder / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    expected = packages_distributions()
    found = Providers(packages_distributions)
    assert sorted(found["listed"]) == ["deep", "lists"]
    assert {p: sorted(found.get(p, [])) for p in PACKAGES} == {
        p: sorted(expected.get(p, [])) for p in PACKAGES
    }
    assert dict.fromkeys(found) == dict.fromkeys(expected) and len(found) == len(expected)
