"""The table of docs/security.md names every file that a run writes, and how open it is at most."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.judges import Judge, says
from tests.runs import PATIENCE_SECONDS, TASKS, Workspace, command
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
STAGE = "[stage] root"


def table() -> dict[str, int]:
    """The most open mode by path, where `<x>` stands for a name and a folder ends with a slash."""
    section = PAGE.read_text().partition("## Files that coordinate-eval writes")[2]
    rows = re.findall(r"^\| `(.+?)` \| (0\d{3}) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 40
    return {path: int(mode, 8) for path, mode in rows}


def written(places: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Everything at these places, named as in the table."""
    for name, root in places.items():
        for path in (root, *root.rglob("*")):
            place = f"{name}/{path.relative_to(root)}".removesuffix("/.")
            yield f"{place}/" if path.is_dir() else place, path


def check(places: Mapping[str, Path], umask: int, known: Mapping[str, int]) -> set[str]:
    """Compare everything at these places with the table, and return the rows that were met."""
    patterns = {row: re.compile(re.sub(r"<[^>]*>", "[^/]+", re.escape(row))) for row in known}
    met = set()
    for name, path in written(places):
        rows = [row for row, pattern in patterns.items() if pattern.fullmatch(name)]
        assert rows, f"the table of {PAGE.name} does not know {name}"
        # Some names are given in full and match a general row too.
        row = min(rows, key=lambda row: row.count("<"))
        more = path.stat().st_mode & 0o7777 & ~(known[row] & ~umask)
        assert not more, f"{path} has {more:04o} more than {known[row]:04o}"
        met.add(row)
    return met


def judged_suite(folder: Path) -> Path:
    """A suite with choices, programs, and answers that a judge compares with others."""
    rubric = {
        "pair": True,
        "id": "question",
        "prompts": {"better": "{{ answer_a }} or {{ answer_b }}"},
        "patterns": "\\[\\[([AB])\\]\\]",
        "labels": {"A": [1], "B": [0]},
    }
    (folder / "pair.yaml").write_text(json.dumps(rubric))
    datasets: list[dict[str, str]] = [{"name": n, "task": n} for n in ("tiny_choice", "tiny_code")]
    datasets.append({"name": "judged", "task": "tiny_sums", "rubric": "pair.yaml"})
    path = folder / "suite.yaml"
    path.write_text(json.dumps({"include_path": [str(TASKS)], "datasets": datasets}))
    return path


def baseline(folder: Path) -> Path:
    """Answers to all questions of that dataset."""
    questions = (TASKS / "data" / "sums.jsonl").read_text().splitlines()
    path = folder / "baseline.jsonl"
    lines = [{"id": json.loads(line)["question"], "answer": "4"} for line in questions]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_run_writes_what_the_page_says(tmp_path: Path) -> None:
    user = Workspace(tmp_path)
    places = {f"{name}_dir": tmp_path / name for name in ("runs", "cache", "priors")}
    user.environ |= {
        "COORDINATE_EVAL_CLUSTER": "local",
        "COORDINATE_EVAL_LOCAL_GPUS": "1",
        "COORDINATE_EVAL_PRIORS_DIR": str(places["priors_dir"]),
    }
    with Judge(lambda body, number: says("[[A]]")) as judge:
        user.environ |= {
            "COORDINATE_EVAL_JUDGE_BASE_URL": judge.url,
            "COORDINATE_EVAL_JUDGE_MODEL": "judge",
            "COORDINATE_EVAL_JUDGE_BASELINE": str(baseline(tmp_path)),
        }
        done = subprocess.run(
            command("run", tiny_model(), "--suite", judged_suite(tmp_path), "--first-signal"),
            env=user.environ,
            cwd=TASKS,
            umask=0,  # the most open one
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    known = table()
    met = check(places, 0o022, known)  # it lets nobody else write all the same
    rare = {f"runs_dir/<run>/{name}" for name in ("resumed", "cancelled", "refused.json",
                                                  "waiting.json", "first-signal.json",
                                                  "after_run.json", "on_alarm.json",
                                                  "sample.json", "decided.json",
                                                  "full", "jobs/",
                                                  "jobs/<job>.json", "incidents/",
                                                  "incidents/<job>.json",
                                                  "reviewed.json",
                                                  "ranks/", "ranks/<trial>.json",
                                                  "handed-over.json")}  # fmt: skip
    # Other runs share no scheduler with it.
    rare |= {row for row in known if "/.nodes-" in row}
    rare |= {row for row in known if "/guards/" in row}  # of trainings
    rare |= {row for row in known if "/told-" in row}  # of trackers
    rare |= {row for row in known if "/alarms-" in row}  # with `on_alarm`
    rare |= {row for row in known if "/looks/" in row or "/comparisons/" in row}  # decided runs
    rare |= {row for row in known if "/.doctor-" in row or "/.removed-" in row}  # other commands
    rare |= {row for row in known if row.endswith("/pack.columns")}  # of many runs
    rare |= {row for row in known if "/.spool-" in row}  # it was submitted from here
    rare |= {row for row in known if "/.refused-" in row or row.endswith("/watch.log")}
    rare |= {row for row in known if "engines-" in row}  # the simulated engine compiles nothing
    rare |= {row for row in known if "avoided-nodes-" in row}  # its node is not broken
    # A judge that is a server and stays where it is.
    rare |= {row for row in known if "/judge/" in row or row.endswith("judge-settings.json")}
    lasting = {row for row in known if row.split("/")[0] in places}
    assert lasting - rare <= met, "rows of the table that nothing is written to"
    others = [p for p in tmp_path.rglob("*") if not p.is_symlink() and p.stat().st_mode & 0o022]
    assert others == []


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_staged_weights_are_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        tmp_path.chmod(0o755)
        weights = StagedWeights(str(tmp_path), "run", "node")
        with weights.hold():
            assert weights.copy(checkpoint.inspect(tiny_model()), lambda done: None)
            (user,) = tmp_path.iterdir()
            known = {row: mode for row, mode in table().items() if row.startswith(STAGE)}
            place = {f"{STAGE}/coordinate-eval-{os.getuid()}": user}
            assert check(place, umask, known) == set(known)
    finally:
        os.umask(before)
