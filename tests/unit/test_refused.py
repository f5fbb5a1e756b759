"""Datasets that nobody can score here are given up before a GPU works for them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.decisions import make_run

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.outcomes import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor import refused as module
from coordinate_eval.coordinator.supervisor.facts.gather import gather_facts
from coordinate_eval.coordinator.supervisor.refused import refuse
from coordinate_eval.evaluators.sandbox import languages as languages_module
from coordinate_eval.evaluators.sandbox.confinement import Level
from coordinate_eval.evaluators.sandbox.languages import LANGUAGES, Language
from coordinate_eval.records import DatasetRequests


@pytest.mark.parametrize(
    ("level", "refused"), [(None, ["b"]), (Level.NAMESPACES, []), (Level.LIMITS, [])]
)
def test_what_may_run_text_is_given_up_where_nothing_confines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Level | None, refused: list[str]
) -> None:
    run_dir, run = RunDir(tmp_path), make_run()
    for name, what in (("a", ""), ("b", "metric.py, line 6, calls eval")):
        index = DatasetRequests(
            dataset=name, key="", items=1, requests=1, prompt_tokens=0, generate_requests=1,
            max_output_tokens=1, longest_output_tokens=1, asks=False, runs_text=what, offsets=[],
        )  # fmt: skip
        _files.write_record(run_dir.requests_index(name), index)
    monkeypatch.setattr(module, "find_level", lambda _: (level, "install bubblewrap"))
    said = "".join(refuse(run_dir, run))
    assert sorted(given_up(run_dir)) == refused
    assert said.startswith("not run: b.") == bool(refused)
    if refused:
        why = run_dir.dataset_error("b").read_text()
        assert "metric.py, line 6, calls eval" in why
        assert "install bubblewrap" in why
        unpublished = gather_facts(run_dir, run, [], now=0, idle_arrays=Counter()).unpublished
        assert {span.dataset for span in unpublished} == {"a"}


def test_without_its_compiler_a_dataset_is_given_up_and_the_package_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = RunDir(tmp_path), make_run()
    for name, languages in (("a", ["python"]), ("b", ["python", "rust", "cobol"])):
        index = DatasetRequests(
            dataset=name, key="", items=1, requests=1, prompt_tokens=0, generate_requests=1,
            max_output_tokens=1, longest_output_tokens=1, asks=True, runs_text="", offsets=[],
            languages=languages,
        )  # fmt: skip
        _files.write_record(run_dir.requests_index(name), index)
    absent = {"/usr/bin/not-there-1": "cobol-compiler", "/usr/*/not-there-2": "cobol-libraries"}
    row = Language(title="Cobol", timeout_seconds=1.0, cpu_seconds=1.0, needs=absent)
    known = {"python": LANGUAGES["python"], "cobol": row, "rust": replace(row, needs={"/usr": "r"})}
    monkeypatch.setattr(languages_module, "LANGUAGES", known)
    (said,) = refuse(run_dir, run)
    assert said.startswith("not run: b.")
    assert sorted(given_up(run_dir)) == ["b"]
    why = run_dir.dataset_error("b").read_text()
    assert "apt-get install cobol-compiler cobol-libraries`" in why
