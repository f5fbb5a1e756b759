"""Datasets that nobody can score here are given up before a GPU works for them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.run_dirs import write_index

from coordinate_eval.coordinator.run.claiming.work import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor import refused as module
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.supervisor.refused import refuse
from coordinate_eval.evaluators.sandbox import toolchains as languages_module
from coordinate_eval.evaluators.sandbox.confinement import Level
from coordinate_eval.evaluators.sandbox.toolchains import LANGUAGES, Language


@pytest.mark.parametrize(
    ("level", "refused"), [(None, ["b"]), (Level.NAMESPACES, []), (Level.LIMITS, [])]
)
def test_generated_answers_are_given_up_where_nothing_confines_their_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Level | None, refused: list[str]
) -> None:
    run_dir, run = RunDir(tmp_path), make_run()
    for name, generated in (("a", 0), ("b", 1)):
        write_index(run_dir, name, 1, generate_requests=generated)
    monkeypatch.setattr(module, "find_level", lambda _: (level, "install bubblewrap"))
    said = "".join(refuse(run_dir, run))
    assert sorted(given_up(run_dir)) == refused
    assert said.startswith("not run: b.") == bool(refused)
    if refused:
        why = run_dir.dataset_error("b").read_text()
        assert "its scoring may run what the model wrote" in why
        assert "install bubblewrap" in why
        unpublished = gather_facts(run_dir, run, [], now=0, idle_arrays=Counter()).unpublished
        assert {span.dataset for span in unpublished} == {"a"}


def test_without_its_compiler_a_dataset_is_given_up_and_the_package_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = RunDir(tmp_path), make_run()
    for name, languages in (("a", ["python"]), ("b", ["python", "rust", "cobol"])):
        write_index(run_dir, name, 1, generate_requests=1, asks=True, languages=languages)
    absent = {"/usr/bin/not-there-1": "cobol-compiler", "/usr/*/not-there-2": "cobol-libraries"}
    row = Language(title="Cobol", timeout_seconds=1.0, cpu_seconds=1.0, needs=absent)
    known = {"python": LANGUAGES["python"], "cobol": row, "rust": replace(row, needs={"/usr": "r"})}
    monkeypatch.setattr(languages_module, "LANGUAGES", known)
    (said,) = refuse(run_dir, run)
    assert said.startswith("not run: b.")
    assert sorted(given_up(run_dir)) == ["b"]
    why = run_dir.dataset_error("b").read_text()
    assert "apt-get install cobol-compiler cobol-libraries`" in why
