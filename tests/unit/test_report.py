"""`report`: the page of a training stands alone, whatever its runs are called and have measured."""

import base64
import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.markup import Page
from tests.trainings import TRAINING, call, keep, run_of

from coordinate_eval import _files
from coordinate_eval.coordinator.display import experiment_page
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.report.time_ledger import read_time_ledger
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError

HOSTILE = "</script><script>alert(1)</script><!--\"' onload=x {{ 7*7 }} &amp; \x1b\x00\u202eé"


def page_of(home: Path, *args: str) -> str:
    done = call(home, "report", *args, "--output", str(home / "page.html"))
    assert done.exception is None, done.output
    assert done.stdout == f"{home / 'page.html'}\n"
    return (home / "page.html").read_text()


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def words_of(page: str) -> str:
    texts = [text for tag, text in Page(page).texts if tag not in ("script", "style")]
    return " ".join(" ".join(texts).split())


def charts(page: str) -> dict[str, Any]:
    return {each["name"]: each for each in data_of(page)["columns"]}


def test_a_page_has_curves_of_everything_and_says_what_it_cost(tmp_path: Path) -> None:
    for step in range(100, 2100, 100):
        keep(
            tmp_path, step, {"a": 0.2 + step / 10_000, "b": 0.5, "c": 0.3},
            groups={"a": "g", "b": "g"}, gpu_seconds=7200, seconds=110.0, planned_seconds=100.0,
        )  # fmt: skip

    page = page_of(tmp_path, "seven")
    found, words = charts(page), words_of(page)

    assert list(found) == ["mean", "g", "a", "b", "c", "GPU hours", "time taken, over planned"]
    (line,) = found["a"]["series"]
    assert line["steps"] == list(range(100, 2100, 100))
    assert all(low <= high for low, high in zip(line["low"], line["high"], strict=True))
    assert found["a"]["summary"].startswith("a: 20 checkpoints from step 100 to 2,000, 0.21 to 0.4")
    assert found["time taken, over planned"]["series"][0]["values"] == [1.1] * 20
    for said in ("40.0 GPU hours", "1.10 times the planned", "No alarm now", "step 2,000"):
        assert said in words


def test_a_page_loads_nothing_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    keep(tmp_path, 100, {"a": 0.5, "b": 0.5})

    page = page_of(tmp_path)
    found = Page(page)

    assert not {"link", "img", "iframe", "object", "base"} & {*found.tags}
    assert not {"src", "onload", "onclick"} & found.attributes
    links = re.findall(r'href="([^"]*)"', re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    assert {link[0] for link in links} == {"#"}
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    usual, hostile = tmp_path / "usual", tmp_path / "hostile"
    for home, name in ((usual, "n"), (hostile, HOSTILE)):
        for step in range(100, 700, 100):
            keep(
                home, step, {name: 0.5, "b": 0.4 if step < 600 else 0.0}, groups={name: name},
                warnings={name: name}, missing=[name], training=f"/ckpts/{name.replace('/', '_')}",
            )  # fmt: skip

    plain, page = page_of(usual), page_of(hostile)

    assert Page(page).tags == Page(plain).tags
    assert Page(page).attributes == Page(plain).attributes
    assert "<script>alert" not in page
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert HOSTILE in charts(page)


def test_a_baseline_is_drawn_beside_and_compared(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        keep(tmp_path, step, {"a": 0.9, "b": 0.5}, gpu_seconds=7200)
        keep(tmp_path, step, {"a": 0.3, "b": 0.5}, gpu_seconds=3600, training="/ckpts/old")

    page = page_of(tmp_path, "seven", "--against", "old")
    words = words_of(page)

    assert [each["baseline"] for each in data_of(page)["trainings"]] == [False, True]
    assert "The last checkpoint against the baseline" in words
    assert "old, step 300" in words
    assert "GPU hours 2 Table of GPU hours" in words
    assert "better in 1, worse in 0 of 2 datasets" in words
    again = words_of(page_of(tmp_path, "seven", "--against", "/ckpts/old/step-100"))
    assert "old, step 100" in again
    for name, why in (("nothing", "no training, checkpoint or run"), ("ckpts", "several"),
                      ("seven", "no other training")):  # fmt: skip
        refused = call(tmp_path, "report", "seven", "--against", name)
        assert isinstance(refused.exception, UserError)
        assert why in str(refused.exception)


def test_runs_that_are_there_are_compared_item_by_item_or_the_page_says_why_not(
    tmp_path: Path,
) -> None:
    for step in (100, 200):
        run_dir = run_of(tmp_path, step, {"a": step / 1000, "b": 0.5})

    words = words_of(page_of(tmp_path, "seven"))

    assert "step 200 against step 100" in words
    assert "Not item by item" not in words
    shutil.rmtree(run_dir.root)
    words = words_of(page_of(tmp_path, "seven"))
    assert "Not item by item: the run of step 200 was removed." in words


def test_a_page_begins_with_the_answers(tmp_path: Path) -> None:
    for step in range(100, 2000, 100):
        keep(tmp_path, step, {"a": 0.6, "b": 0.5 + (step == 700) / 10})
    fine = words_of(page_of(tmp_path))
    keep(tmp_path, 2000, {"a": 0.1, "b": 0.5})
    fallen = words_of(page_of(tmp_path))

    assert "against the one before No difference mean +0.0000" in fine
    assert "Best checkpoint step 700 mean of 2 datasets 0.6000" in fine
    assert "18 others may be as good; the newest is step 1,900" in fine
    assert "Is something wrong? No alarm now" in fine
    assert "against the one before Worse mean -0.2500" in fallen
    assert "Is something wrong? Collapse: a" in fallen


def test_two_trainings_in_one_folder_are_two_lines(tmp_path: Path) -> None:
    for step in range(100, 700, 100):
        keep(tmp_path, step, {"a": 0.5, "b": 0.5}, training="/ckpts/x/one")
        # A branch whose steps overlap, and whose later ones were evaluated first.
        keep(tmp_path, step + 50, {"a": 0.6, "b": 0.5}, training="/ckpts/x/two", created=-step)

    page = page_of(tmp_path, "x")

    assert [each["name"] for each in data_of(page)["trainings"]] == ["one", "two"]
    first, second = charts(page)["a"]["series"]
    assert first["steps"] == list(range(100, 700, 100))
    assert second["steps"] == list(range(150, 750, 100))


def test_whatever_was_measured_makes_a_page(tmp_path: Path) -> None:
    """One item, all right, no number, no error, datasets that come and go, no step."""
    for step in range(100, 900, 100):
        scores: dict[str, Any] = {
            "one": (float(step % 200 > 0), math.nan, 1, "acc", True, "x"),
            "right": (1.0, 0.0, 50, "acc", True, "x"),
            "ppl": (math.inf if step == 300 else 20.0, None, 10, "word_perplexity", False, "x"),
        }
        if step in (100, 500):
            scores["late"] = 0.4
        keep(tmp_path, step, scores, missing=["never"])
    record = Measured(
        run="final", dir="/none", identity="f", training=TRAINING, checkpoint=f"{TRAINING}/final",
        suite="s", created=1, ended=1, scores={"late": (0.5, 0.1, 9, "acc", True, "x")},
    )  # fmt: skip
    measured.keep(str(tmp_path), record)
    newer = measured.folder(str(tmp_path)) / f"new.{'0' * 16}.json"
    newer.write_text('{"schema": "coordinate-eval/measured@2"}')

    page = page_of(tmp_path)
    found = charts(page)

    assert found["ppl"]["series"][0]["values"][2] is None
    assert found["right"]["series"][0]["high"][3] == 1.0
    assert found["right"]["series"][0]["low"][3] < 1.0
    assert found["late"]["series"][0]["steps"] == [100, 500]
    assert found["never"]["series"][0]["steps"] == []
    assert "not a number" in words_of(page)
    assert "newer version" in words_of(page)


def test_a_page_of_many_checkpoints_and_datasets_can_be_sent(tmp_path: Path) -> None:
    draw_ = [0.3 + 0.001 * (step * 7919 % 13) for step in range(200)]
    for step, value in enumerate(draw_):
        keep(tmp_path, 1000 * step, {f"d{n}": value for n in range(63)})

    assert len(page_of(tmp_path)) < 5_000_000


def test_of_more_checkpoints_than_a_chart_shows_the_newest_are_among_those(tmp_path: Path) -> None:
    most = experiment_page.MOST_CHECKPOINTS
    for step in range(most + 1):
        keep(tmp_path, step, {"a": 0.5})

    page = page_of(tmp_path)

    steps = charts(page)["a"]["series"][0]["steps"]
    assert len(steps) <= most
    assert steps[-1] == most
    assert f"of {most + 1} checkpoints" in words_of(page)


def test_a_page_is_named_after_its_training_and_replaces_only_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, 100, {"a": 0.5})
    monkeypatch.chdir(tmp_path)

    for _ in range(2):
        assert call(tmp_path, "report", "seven").stdout == f"{tmp_path / 'seven.html'}\n"
    (tmp_path / "seven.html").write_text("mine")
    refused = call(tmp_path, "report", "seven")

    assert "not the page of a training" in str(refused.exception)
    assert (tmp_path / "seven.html").read_text() == "mine"


def test_of_a_run_its_own_page_is_written(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, 100, {"a": 0.5125, "b": 0.5})
    run = read_run(run_dir)
    ledger = read_time_ledger(run_dir, run, ended=True).model_dump(mode="json")
    results = {**collect_results(run_dir, run), "ledger": ledger}
    _files.write(run_dir.results, json.dumps(results))

    refused = call(tmp_path, "report", "step-100-x", "--against", "seven")
    done = call(tmp_path, "report", "step-100-x")
    unknown = call(tmp_path, "report", "eight")

    assert "--against, --suite and --output are of trainings" in str(refused.exception)
    assert done.stdout == f"{run_dir.report}\n"
    assert "0.5125" in words_of(run_dir.report.read_text())
    assert "no run of a checkpoint in 'eight'" in str(unknown.exception)
