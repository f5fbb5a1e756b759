"""`history` and `best`: scores over a training, also of runs that are gone."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.trainings import TRAINING, call, keep, run_of

from coordinate_eval.coordinator.cli.inquire.curves import curve_lines
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.series import Series, best, column, series
from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError


def test_checkpoints_stand_by_step_with_errors_and_what_is_missing(tmp_path: Path) -> None:
    run_of(tmp_path, 200, {"a": 0.3, "b": 0.5})
    run_of(tmp_path, 100, {"a": 0.2, "b": 0.4})
    run_of(tmp_path, 300, {"a": 0.4})

    text = call(tmp_path, "history").stdout
    rows = list(csv.DictReader(io.StringIO(call(tmp_path, "history", "--csv").stdout)))

    for word in ("0.2000 ±0.0100", "0.4000 ±0.0071", "300*", "1 score missing in 1 checkpoint"):
        assert word in text
    assert [row["step"] for row in rows] == ["100", "200", "300"]
    assert [row["mean"][:4] for row in rows] == ["0.30", "0.4", ""]
    assert [row["missing"] for row in rows] == ["0", "0", "1"]


def test_a_terminal_shows_the_last_and_the_best_of_many_checkpoints_and_a_pipe_all(
    tmp_path: Path,
) -> None:
    for step in range(100, 6100, 100):
        keep(tmp_path, step, {"a": 0.9 if step == 700 else 0.5, "b": 0.5})
    keep(tmp_path, 100, {"a": 0.1, "b": 0.2}, training="/ckpts/earlier")

    _, _, seven = call(tmp_path, "history", "--no-all").stdout.partition("/ckpts/seven")

    assert "the last 10 of 60 checkpoints (best by mean: step 700); --all shows all" in seven
    assert [line for line in seven.splitlines() if "│  700 │" in line]
    assert len([line for line in seven.splitlines() if line.startswith("│")]) == 11
    assert call(tmp_path, "history", "seven").stdout.count("│ 0.5000 ±0.0500 │") == 60


def test_scores_outlive_a_run_that_is_pruned_and_are_not_measured_again(tmp_path: Path) -> None:
    for step in (100, 200):
        run_of(tmp_path, step, {"a": step / 1000, "b": 0.5})

    said = call(tmp_path, "prune", "--keep", "1", "--yes")
    rows = json.loads(call(tmp_path, "history", "--json", "--tokens-per-step", "1000").stdout)[
        "rows"
    ]

    assert not (tmp_path / "step-100-x").exists(), said.output
    assert "2 scores of it stay" in said.output
    assert [(row["step"], row["tokens"]) for row in rows] == [(100, 100_000), (200, 200_000)]
    assert rows[0]["scores"]["a"]["value"] == 0.1
    assert measured.has(str(tmp_path), "step-100-x")
    assert not measured.has(str(tmp_path), "step-300-x")


def test_a_torn_or_newer_record_hides_no_other(tmp_path: Path) -> None:
    run_of(tmp_path, 100, {"a": 0.1, "b": 0.5})
    call(tmp_path, "history")
    home = measured.folder(str(tmp_path))
    (home / f"step-7-x.{'0' * 16}.json").write_text('{"schema": "coordinate-eval/measured@2"}')
    (home / f"step-8-x.{'0' * 16}.json").write_text('{"sche')
    (home / "pack.columns").write_bytes(b"torn\xff")

    said = call(tmp_path, "history", "--csv")

    assert "/step-100," in said.stdout
    assert said.output.count("is left out") == 2


def test_a_run_that_ends_again_is_kept_once(tmp_path: Path) -> None:
    for value in (0.1, 0.2):
        run_dir = run_of(tmp_path, 100, {"a": value, "b": 0.5})
        run = make_run(id="step-100-x", created=1.0)
        kept = measured.measure(run_dir, run, {"complete": True})
        measured.keep(str(tmp_path), kept)

    found, problems = measured.read(str(tmp_path))

    assert [each.scores["a"][0] for each in found] == [0.2]
    assert not problems
    assert len(list(measured.folder(str(tmp_path)).glob("step-100-x.*"))) == 1


def test_many_records_are_packed_and_read_from_the_pack(tmp_path: Path) -> None:
    for step in range(70):
        measured.keep(str(tmp_path), record(step, a=0.1))
    first = measured.read(str(tmp_path))

    for file in measured.folder(str(tmp_path)).glob("*.json"):
        file.write_text("")  # nobody looks into it again
    measured.keep(str(tmp_path), record(70, a=0.2))

    assert [each.step for each in measured.read(str(tmp_path))[0]] == list(range(71))
    assert first[1] == []


def record(step: int, *, asked: str = "x", suite: str = "s", **scores: float) -> Measured:
    return Measured(
        run=f"run-{suite}-{step}-{asked}", dir="/none", identity="1", training=TRAINING,
        checkpoint=f"{TRAINING}/step-{step}", step=step, suite=suite, created=step, ended=1,
        complete=True,
        scores={name: (value, 0.01, 100, "acc", True, asked) for name, value in scores.items()},
    )  # fmt: skip


def made(*records: Measured) -> Series:
    return series(records)


def test_scores_that_were_asked_otherwise_stand_in_no_column_together() -> None:
    found = made(record(1, asked="old", a=0.9, b=0.1), record(2, a=0.2), record(3, a=0.3, b=0.2))

    assert [row.scores.keys() for row in found.rows] == [set(), {"a"}, {"a", "b"}]
    assert any(note.startswith("a: 1 score left out") for note in found.notes)


def test_runs_of_two_suites_make_one_row() -> None:
    found = made(record(1, a=0.1), record(1, suite="t", b=0.2))

    (row,) = found.rows
    assert {name: score[0] for name, score in row.scores.items()} == {"a": 0.1, "b": 0.2}


def test_a_checkpoint_that_was_written_again_counts_as_it_is_now() -> None:
    again = record(2, a=0.5).model_copy(update={"identity": "2", "run": "again", "created": 9.0})

    found = made(record(1, a=0.1), record(2, a=0.2), again)

    assert [row.scores["a"][0] for row in found.rows] == [0.1, 0.5]
    assert found.notes == ["1 run of checkpoints that were written again since are left out"]


def test_the_best_checkpoint_is_named_with_those_that_may_be_as_good() -> None:
    found = made(record(1, a=0.30), record(2, a=0.50), record(3, a=0.49), record(4, b=0.1))

    chosen = best(found, column("a", found))

    assert chosen.row.step == 2
    assert [row.step for row, _ in chosen.close] == [3]
    assert [row.step for row in chosen.without] == [4]


def test_the_best_of_scores_without_errors_is_named_with_its_equals() -> None:
    one = {"a": (1.0, None, 1, "acc", True, "x")}  # of one item
    found = made(*(record(step).model_copy(update={"scores": one}) for step in (1, 2)))

    assert [row.step for row, _ in best(found, column("a", found)).close] == [2]


def named(name: str, step: int, a: float) -> Measured:
    checkpoint = f"{TRAINING}/{name}"
    return record(step, a=a).model_copy(update={"checkpoint": checkpoint, "run": name})


def test_trainings_that_share_a_folder_are_told_apart_by_the_names_of_equal_steps(
    tmp_path: Path,
) -> None:
    records = [
        named(f"{size}-step-{step}", step, a=value)
        for step in (100, 200)
        for size, value in (("7b", 0.3), ("70b", 0.7))
    ]
    found = made(*records, named("7b-step-300", 300, a=0.3))
    names = ("step-100", "step-100-hf", "epoch=1-step=300", "epoch=2-step=300", "400", "final")
    steps = (100, 100, 300, 300, 400, 400)
    forms = [named(name, step, a=0.5) for name, step in zip(names, steps, strict=True)]

    assert {row.training: row.scores["a"][0] for row in found.rows} == {
        f"{TRAINING}/7b-step-*": 0.3, f"{TRAINING}/70b-step-*": 0.7,
    }  # fmt: skip
    assert [row.step for row in found.rows] == [100, 200, 100, 200, 300]
    for each in records:
        measured.keep(str(tmp_path), each)
    assert call(tmp_path, "alarms").stdout == "no alarms in 4 checkpoints\n"
    assert "several trainings, by their names: 70b-step-*, 7b-step-*" in found.notes[0]
    assert {row.training for row in made(*forms).rows} == {TRAINING}


def test_a_dataset_with_other_items_since_a_step_is_named() -> None:
    more = record(300, a=0.4, b=0.5)
    scores = {**more.scores, "a": (0.4, 0.01, 120, "acc", True, "x")}
    found = made(record(100, a=0.5, b=0.5), more.model_copy(update={"scores": scores}))
    part = made(
        record(100, a=0.5), more.model_copy(update={"scores": scores, "decided": "a sample"})
    )

    assert [each.partition(".")[0] for each in found.notes] == [
        "a has changed: 100 items, 120 since step 300"
    ]
    assert not part.notes


def test_a_history_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    for step in (100, 200):
        run_of(tmp_path, step, {"a": 0.5, "b": 0.5})
    measured.folder(str(tmp_path)).write_text("no folder")

    told = call(tmp_path, "history")

    assert told.exit_code == 0 and told.output.count("scores are not kept") == 1


def test_the_best_of_several_trainings_is_named_by_paths(tmp_path: Path) -> None:
    for training in ("/ckpts/a", "/ckpts/bb"):
        keep(tmp_path, 100, {"x": 0.5}, training=training, identity=training)

    assert "may be as good: /ckpts/bb/step-100" in call(tmp_path, "best", "--by", "x").stdout


def test_a_suite_that_no_run_has_is_named(tmp_path: Path) -> None:
    run_of(tmp_path, 100, {"a": 0.5, "b": 0.5})

    assert "no run of a suite 'q'" in str(call(tmp_path, "history", "--suite", "q").exception)


def test_of_a_perplexity_the_lowest_is_best() -> None:
    records = [record(step) for step in (1, 2)]
    perplexities = [
        {"ppl": (value, None, 10, "word_perplexity", False, "x")} for value in (30.0, 12.0)
    ]
    found = made(
        *(r.model_copy(update={"scores": s}) for r, s in zip(records, perplexities, strict=True))
    )

    assert best(found, column("ppl", found)).row.step == 2
    with pytest.raises(UserError, match="fewer than two datasets"):
        column("mean", found)


def test_a_mean_is_of_names_patterns_and_groups() -> None:
    grouped = record(1, arc_easy=0.2, arc_hard=0.4, mmlu=0.6).model_copy(
        update={"groups": {"mmlu": "knowledge"}}
    )
    found = made(grouped)
    row = found.rows[0]

    for text, value in (("mean(arc*)", 0.3), ("mean(knowledge, arc*)", 0.4), ("knowledge", 0.6)):
        shown = column(text, found).value(row)
        assert shown is not None
        assert shown.value == pytest.approx(value)
    with pytest.raises(UserError, match="no dataset or group 'nothing'"):
        column("mean(nothing)", found)


def test_a_mean_of_what_should_rise_and_what_should_fall_is_refused() -> None:
    ppl = (9.0, None, 10, "word_perplexity", False, "x")
    mixed = record(1, a=0.2)
    mixed = mixed.model_copy(update={"scores": {**mixed.scores, "ppl": ppl}})

    with pytest.raises(UserError, match="of ppl less is better"):
        column("mean(*)", made(mixed))


def test_a_training_is_named_by_its_folder_or_the_end_of_its_path(tmp_path: Path) -> None:
    run_of(tmp_path, 100, {"a": 0.1, "b": 0.5})

    for name in (TRAINING, "/ckpts", "seven", "ckpts/seven"):
        assert ",100," in call(tmp_path, "history", name, "--csv").stdout
    refused = call(tmp_path, "history", "eight")
    assert isinstance(refused.exception, UserError)
    assert TRAINING in str(refused.exception)


def test_parquet_has_a_line_for_each_score(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run_of(tmp_path, 100, {"a": 0.1, "b": 0.5})

    call(tmp_path, "history", "--parquet", str(tmp_path / "scores.parquet"))

    lines = parquet.read_table(tmp_path / "scores.parquet").to_pylist()
    assert [(line["step"], line["dataset"], line["value"]) for line in lines] == [
        (100, "a", 0.1), (100, "b", 0.5),
    ]  # fmt: skip


def test_a_score_that_is_no_number_stands_in_tables_and_is_null_in_json(tmp_path: Path) -> None:
    for step, value in ((100, 0.2), (200, math.nan), (300, math.inf), (400, 0.3)):
        run_of(tmp_path, step, {"a": value, "b": 0.5})

    text = call(tmp_path, "history")
    rows = json.loads(call(tmp_path, "history", "--json").stdout)["rows"]

    assert text.exception is None
    assert "nan" in text.stdout
    assert [row["scores"]["a"]["value"] for row in rows] == [0.2, None, None, 0.3]
    assert [row["missing"] for row in rows] == [[]] * 4


def test_the_checkpoints_of_a_training_may_lie_below_their_steps() -> None:
    paths = ("/c/run-1/iter_200/hf", "/c/run-1/iter_1000/hf", "/c/run-1/global_step_3000/actor/hf")
    assert {training_of(path) for path in paths} == {"/c/run-1"}
    assert training_of("/c/run-1/step-100") == "/c/run-1"
    assert training_of("/c/run-1/final") == "/c/run-1"


def test_the_curve_of_a_training_is_a_line_that_fits_a_terminal(tmp_path: Path) -> None:
    settings = Settings(runs_dir=str(tmp_path))
    for step in range(100, 300, 100):
        keep(tmp_path, step, {"a": 0.5, "b": 0.1})
    assert curve_lines(settings, TRAINING) == []
    for step in range(300, 10_000, 100):
        keep(tmp_path, step, {"a": 0.5, "b": step / 20_000})
    keep(tmp_path, 100, {"a": 0.9, "b": 0.9}, training="/ckpts/other")

    (line,) = curve_lines(settings, TRAINING)

    assert line.startswith("mean of 2 datasets  ▁")
    assert line.endswith("→ 0.4975")
    assert len(line) <= 80
    assert curve_lines(settings, "/ckpts/none") == []
    for step in range(100, 5000, 100):
        keep(
            tmp_path,
            step,
            {"a": 0.5, "b": 0.5},
            training="/ckpts/a-long-name-of-a-training-at-night",
        )
    both = curve_lines(settings, "/ckpts")
    assert [line.index("  ▁") for line in both[1:]] == [both[0].index("  ▅")]
    assert {len(line) for line in both} == {80}


def test_scores_of_a_run_that_stopped_early_say_so_and_count_only_without_others(
    tmp_path: Path,
) -> None:
    keep(tmp_path, 1, {"a": 0.5, "b": 0.5}, run="whole")
    keep(tmp_path, 1, {"a": 0.7, "b": 0.7}, run="part", created=2, decided="better than x")
    keep(tmp_path, 2, {"a": 0.7, "b": 0.7}, run="other", decided="worse than x")
    keep(tmp_path, 2, {"b": 0.5}, run="small", created=9)

    said = list(csv.DictReader(call(tmp_path, "history", "--csv").stdout.splitlines()))

    told = [(row["a"], row["b"], row["decided"]) for row in said]
    assert told == [("0.5", "0.5", ""), ("0.7", "0.5", "worse than x")]
