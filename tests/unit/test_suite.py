"""Suites: defaults, what extends what, parts of them, and messages that name the line."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue
from coordinate_eval.records import Suite

GROUPS = ["knowledge", "reasoning", "maths", "code", "reading", "language", "alignment"]
BASE = suite.load("base")
BOMB = (
    "{a: &a [1, 1, 1, 1], "
    + ", ".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]"
        for a, b in itertools.pairwise("abcdefghijklmnopqrstuv")
    )
    + "}"
)
"""4²² values in a few hundred bytes."""
JUDGED = ["mt_bench", "arena_hard", "vicuna_bench"]


def parse(text: str, folder: Path = Path()) -> Suite:
    return suite.parse(text, where="my.yaml", folder=folder)


def test_defaults_are_merged() -> None:
    made = parse(
        "defaults: {num_fewshot: 2, gen_kwargs: {temperature: 0.5}}\n"
        "datasets:\n- {name: a, task: t}\n- {name: b, task: t, num_fewshot: 0}\n- plain\n"
    )
    assert [d.num_fewshot for d in made.datasets] == [2, 0, 2]
    assert [d.task for d in made.datasets] == ["t", "t", "plain"]
    assert made.name == "my"


def test_the_digest_is_of_the_meaning() -> None:
    one = parse("datasets:\n- {name: a, task: t, num_fewshot: 1}\n")
    same = parse("defaults: {num_fewshot: 1}\ndatasets: [{task: t, name: a}]  # same\n")
    other = parse("datasets:\n- {name: a, task: t, num_fewshot: 2}\n")
    assert one.digest == same.digest != other.digest
    # A group is for people.
    assert one.digest == parse("datasets: [{name: a, task: t, num_fewshot: 1, group: x}]").digest


def test_keys_are_merged_as_yaml_has_it() -> None:
    made = parse("datasets:\n- &a {name: a, task: t, limit: 3}\n- {name: b, <<: [*a, {limit: 4}]}")
    assert [(d.name, d.task, d.limit) for d in made.datasets] == [("a", "t", 3), ("b", "t", 3)]


def test_include_path_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "s.yaml").write_text("include_path: [tasks]\ndatasets: [a]\n")
    assert suite.load(str(tmp_path / "s.yaml")).include_path == [str(tmp_path / "tasks")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("datasets:\n- {name: a, task: t}\n- {name: a, task: u}\n", 3, "twice"),
        ("datasets:\n- {name: a, task: t}\n- {name: A, task: u}\n", 3, "twice"),
        ("datasets:\n- {name: a, task: t, shots: 3}\n", 2, "shots"),
        ("datasets:\n- name: a\n  task: t\n  items: 0\n", 4, "items: must be greater"),
        ("datasets:\n- {name: ../a, task: t}\n", 2, "name"),
        ("datasets:\n- {name: a}\n", 2, "needs a task"),
        ("datasets:\n- {name: a, items: 5, prior: {gpu_seconds: -1}}\n", 2, "gpu_seconds"),
        ("datasets:\n- {name: a, items: 5, prior: {gpu_seconds: .nan}}\n", 2, "gpu_seconds"),
        ("dataset: []\n", 1, "unknown key"),
        ("datasets: []\n", 1, "list"),
        ("defaults: {color: red}\ndatasets: [a]\n", 1, "color"),
        ("datasets:\n- {name: a, task: t\n", 3, ""),
        ("datasets:\n- {name: a, name: b, task: t}\n", 2, "twice"),
        ("include_path: [nowhere]\ndatasets: [a]\n", 1, "no folder"),
        ("- a\n", 1, "mapping"),
        ("", 1, "mapping"),
        ("datasets:\n- !!python/object/apply:os.system [echo]\n", 2, ""),
        ("datasets:\n- {name: a, task: t, num_fewshot: many}\n", 2, "num_fewshot"),
        ("datasets:\n- a\n- b\n- a\n", 4, "twice"),
        ("name: [x]\ndatasets: [a]\n", 1, "name must be a text"),
        ("datasets:\n- {task: t}\n", 2, "needs a name"),
        ("datasets:\n- {name: 3, task: t}\n", 2, "needs a name"),
        ("datasets:\n- [a]\n", 2, "mapping"),
        ("datasets:\n- {name: a, task: t, group: a b}\n", 2, "group"),
        (
            "datasets:\n- name: a\n  items: 5\n  prior:\n    gpu_seconds: 0\n",
            5,
            "greater than or equal to 0.000001",
        ),
        ("datasets:\n- name: a\n  items: 5\n  prior:\n    cpu_seconds: 3\n", 5, "gpu_seconds"),
        (
            "datasets:\n- {name: a, items: 5, prior: {gpu_seconds: 1, cpu_second: 3}}\n",
            2,
            "cpu_second",
        ),
        (
            "datasets:\n- {name: a, items: 5, prior: {gpu_seconds: 1, cpu_seconds: -3}}\n",
            2,
            "cpu_sec",
        ),
        (
            "datasets:\n- {name: a, items: 5, prior: {gpu_seconds: 1.0e+308}}\n",
            2,
            "less than or equal to 1000000000",
        ),
        (f"datasets:\n- name: a\n  items: 1{'0' * 30}\n  task: t\n", 3, "items: must be less"),
        (f"datasets:\n- name: a\n  items: 1{'0' * 9000}\n  task: t\n", 1, "not YAML"),
        (f"datasets: {'[' * 9000}\n", 1, ""),
        ("datasets:\n- {name: a, task: t, repeats: 1000000000000}\n", 2, "repeats"),
        ("datasets:\n- {name: a, task: t, limit: 0}\n", 2, "limit: must be greater"),
        ("datasets:\n- {name: a, task: t, sample: 1.5}\n", 2, "sample: must be less"),
        ("datasets:\n- {name: a, task: t, sample: 0.5, limit: 3}\n", 2, "one of them"),
        ("defaults: {limit: -1}\ndatasets: [a]\n", 1, "limit: must be greater"),
        ("datasets: [{name: a, task: t, chance: 1}]\n", 1, "chance"),
        ("datasets: [a]\naggregates: [a]\n", 2, "aggregates must be a mapping"),
        ("datasets: [a]\naggregates:\n  m: {of: [b]}\n", 3, "no dataset, group or aggregate 'b'"),
        ("datasets: [a]\naggregates:\n  m: {of: []}\n", 3, "aggregate m names no dataset"),
        ("datasets: [a]\naggregates:\n  m: {}\n", 3, "of must be a list of datasets"),
        ("datasets: [a]\naggregates:\n  m: {of: {a: 0}}\n", 3, "weight of a is 0; give a number"),
        (
            f"datasets: [a]\naggregates:\n  m: {{of: {{a: 1{'0' * 400}}}}}\n",
            3,
            "weight of a is too large",
        ),
        ("datasets: [a]\naggregates:\n  m:\n    of:\n      a: -2\n", 5, "weight of a is -2"),
        ("datasets: [a]\naggregates:\n  m: {of: {a: .nan}}\n", 3, "weight of a is nan"),
        ("datasets: [a]\naggregates:\n  m: {of: {a: much}}\n", 3, "must be a number"),
        ("datasets: [a]\naggregates:\n  m: {of: [a, a]}\n", 3, "a is listed twice"),
        ("datasets: [a]\naggregates:\n  m: {of: [a], normalized: 2}\n", 3, "true or false"),
        ("datasets: [a]\naggregates:\n  m: {of: [a], color: 2}\n", 3, "unknown key 'color'"),
        ("datasets: [a]\naggregates:\n  a: {of: [a]}\n", 3, "a dataset has this name"),
        ("datasets: [a]\naggregates:\n  mean: {of: [a]}\n", 3, "has this name"),
        ("datasets: [a]\naggregates:\n  m m: {of: [a]}\n", 3, "use only letters"),
        (
            "datasets: [a]\naggregates:\n  m: {of: [n]}\n  n: {of: [a, m]}\n",
            4,
            "aggregate m is a part of itself: m → n → m",
        ),
        (
            "extends: base\naggregates:\n  m: {of: [gsm8k, mt_bench]}\n",
            3,
            "a judge rates mt_bench from 1 to 10, and gsm8k has another metric",
        ),
        ("extends: base\nskip: [gsm8k]\naggregates:\n  m: {of: [gsm8k]}\n", 4, "did you mean"),
        ("skip: [a]\ndatasets: [b]\n", 1, "needs extends"),
        ("extends: [base]\n", 1, "one suite"),
        ("extends: bass\n", 1, "no suite 'bass'"),
        ("extends: missing.yaml\n", 1, "cannot be read"),
        ("extends: base\nskip: [gsm8]\n", 2, "did you mean gsm8k"),
        ("extends: base\nskip: ['*']\n", 0, "no dataset is left"),
        ("extends: base\ndatasets:\n- gsm8k\n", 3, "gsm8k is listed twice, first in base, line "),
        ("extends: base\ndatasets:\n- {name: GSM8K, limit: 3}\n", 3, "twice"),
        ("extends: base\ndatasets:\n- {name: gsm8k, limit: x}\n", 3, "limit"),
        ("extends: base\ndatasets:\n- {name: mine}\n", 3, "needs a task"),
        ("extends: base\ndatasets: {}\n", 2, "list"),
        ("extends: base\ndatasets:\n- {name: a, task: t}\n- {name: a, task: u}\n", 4, "twice"),
        ("datasets:\n- {<<: [3], name: b}\n", 2, "<< takes mappings"),
        (f"datasets:\n- name: a\n  task: t\n  metadata: {BOMB}\n", 1, "more than 100,000 values"),
        ("datasets:\n- name: a\n  task: t\n  gen_kwargs: {t: .nan}\n", 4, "a: gen_kwargs: Out of"),
        ("datasets:\n- {name: a, task: t, gen_kwargs: {t: [-.inf]}}\n", 2, "gen_kwargs"),
        ("defaults: {metadata: {on: 2020-01-01}}\ndatasets: [a]\n", 1, "a date in quotes"),
        ("datasets:\n- {name: a, task: t, metadata: {b: !!binary //79}}\n", 2, "bytes"),
        ("datasets:\n- {name: a, task: t, metadata: {b: !!set {c}}}\n", 2, "metadata"),
        ("datasets:\n- {name: a, task: t, metadata: {b: !!pairs [c: d]}}\n", 2, "metadata"),
        ('datasets:\n- {name: a, task: t, system_instruction: "\\ud800"}\n', 2, "invalid Unicode"),
        ('datasets:\n- {name: a, task: "\\ud800"}\n', 2, "invalid Unicode"),
        (
            f"datasets:\n- {{name: a, task: t, metadata: {{b: {'[' * 150}{']' * 150}}}}}\n",
            1,
            "deep",
        ),
        ('name: "\\ud800"\ndatasets: [a]\n', 1, "invalid Unicode"),
    ],
)
def test_mistakes_name_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert f"my.yaml, line {line}:" in str(caught.value) or not line
    assert "my.yaml" in str(caught.value)
    assert words in str(caught.value)


def test_shipped_suites_load() -> None:
    for name in suite.shipped():
        assert suite.load(name).datasets


def test_an_unknown_suite_names_those_there_are() -> None:
    with pytest.raises(UserError, match="base"):
        suite.load("nothing-like-this")
    with pytest.raises(UserError, match="cannot be read"):
        suite.load("nothing-like-this.yaml")


def test_every_dataset_of_the_catalogue_is_shipped() -> None:
    base, early = suite.load("base"), suite.load("base-early")
    assert len(base.datasets) == 63
    assert {d.name for d in [*base.datasets, *early.datasets]} == set(catalogue.entries())
    assert list(dict.fromkeys(d.group for d in base.datasets)) == GROUPS
    assert [d.name for d in base.datasets if d.rubric is not None] == JUDGED
    for dataset in [*base.datasets, *early.datasets]:
        row = catalogue.entries()[dataset.name]
        assert (dataset.task or "") == row.task
        assert dataset.num_fewshot in (None, row.num_fewshot)
    assert (Path(base.include_path[0]) / "svamp.yaml").is_file()


def write(folder: Path, **files: str) -> Path:
    """A folder of suites; the last one."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"


def test_a_suite_extends_another(tmp_path: Path) -> None:
    (tmp_path / "low").mkdir()
    (tmp_path / "tasks").mkdir()
    write(
        tmp_path / "low",
        root="extends: base\nskip: ['*']\n"
        "defaults: {num_fewshot: 1, limit: 9}\n"
        "datasets:\n- {name: a, task: t, repeats: 2}\n- {name: b, task: t, num_fewshot: 3}\n"
        "- {name: c, task: t}\n",
    )
    top = write(
        tmp_path,
        top="extends: low/root.yaml\nskip: c\ninclude_path: tasks\ndefaults: {num_fewshot: 2}\n"
        "datasets:\n- {name: b, repeats: 5}\n- {name: c, task: other}\n- d\n",
    )
    made = suite.load(str(top))
    assert [(d.name, d.task, d.num_fewshot, d.repeats, d.limit) for d in made.datasets] == [
        ("a", "t", 2, 2, 9),
        ("b", "t", 3, 5, 9),
        ("c", "other", 2, None, 9),
        ("d", "d", 2, None, 9),
    ]
    assert made.name == "top"
    # The user's own folder is the last, which is the one that wins in the harness.
    assert made.include_path == [*suite.load("base").include_path, str(tmp_path / "tasks")]


def test_a_suite_that_only_extends_means_the_same(tmp_path: Path) -> None:
    made = suite.load(str(write(tmp_path, mine="extends: base\n")))
    assert made.digest == suite.load("base").digest
    fewer = suite.load(str(write(tmp_path, fewer="extends: base\nskip: [blimp, 'longbench_*']\n")))
    assert len(fewer.datasets) == 57
    assert fewer.digest == suite.narrow(made, skip=["blimp,longbench_*"]).digest


def test_mistakes_in_what_is_extended_name_its_file(tmp_path: Path) -> None:
    root = "datasets:\n- name: a\n  task: t\n  repeats: 0\n"
    top = write(tmp_path, root=root, top="extends: root.yaml\ndatasets:\n- {name: a, limit: 3}\n")
    with pytest.raises(UserError, match=r"root\.yaml, line 4: repeats: must be greater"):
        suite.load(str(top))
    write(tmp_path, root=root + "  limit: 0\n")
    with pytest.raises(UserError, match=r"root\.yaml, line 4"):
        suite.load(str(top))
    write(tmp_path, root=root + "- {name: A, task: t}\n")
    with pytest.raises(UserError, match=r"root\.yaml, line 5: dataset A is listed twice"):
        suite.load(str(top))


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_circles_are_refused(names: list[str], tmp_path: Path) -> None:
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        write(tmp_path, **{name: f"\nextends: {other}.yaml\n"})
    with pytest.raises(UserError, match=r"extends is circular: a\.yaml → ") as caught:
        suite.load(str(tmp_path / "a.yaml"))
    assert f"{names[-1]}.yaml, line 2:" in str(caught.value)


def test_parts_of_a_suite() -> None:
    base = suite.load("base")

    def names(**how: object) -> list[str]:
        return [d.name for d in suite.narrow(base, **how).datasets]  # type: ignore[arg-type]

    assert names(only=["arc_*", "gsm8k,piqa"]) == ["arc_easy", "arc_challenge", "piqa", "gsm8k"]
    assert names(groups=["code"], skip=["*_plus", "humaneval_x"]) == [
        "humaneval",
        "mbpp",
        "cruxeval",
    ]
    assert names(groups=["co*"], only=["mbpp*"]) == ["mbpp", "mbpp_plus"]
    assert suite.narrow(base) == base
    assert suite.narrow(base, groups=GROUPS).digest == base.digest
    digests = [
        suite.narrow(base, **how).digest
        for how in ({}, {"only": ["arc_*"]}, {"skip": ["blimp"]}, {"limit": 5}, {"limit": 6})
    ]
    assert len(set(digests)) == 5


def test_names_with_commas_can_be_picked() -> None:
    made = parse(
        "datasets:\n- {name: 'a,b', task: t}\n- {name: a, task: t}\n- {name: c, task: t}\n"
    )
    assert [d.name for d in suite.narrow(made, only=["a,b"]).datasets] == ["a,b"]
    assert [d.name for d in suite.narrow(made, only=["a, c"]).datasets] == ["a", "c"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"only": ["gsm9k"]}, ["--only", "'gsm9k'", "gsm8k", "groups: knowledge, reasoning"]),
        ({"skip": ["ark_*"]}, ["--skip", "'ark_*'", "groups: "]),
        ({"groups": ["math"]}, ["--group", "'math'", "did you mean maths"]),
        ({"groups": ["math"]}, ["groups: knowledge, reasoning, maths, code"]),
        ({"only": [" , "]}, ["--only is empty"]),
        ({"only": ["mmlu"], "skip": ["mmlu"]}, ["no dataset is left"]),
        ({"only": ["mmlu"], "groups": ["code"]}, ["no dataset is left"]),
    ],
)
def test_unknown_names_are_refused(how: dict[str, list[str]], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        suite.narrow(suite.load("base"), **how)  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_a_limit_counts_for_each_task_of_a_dataset() -> None:
    base = {d.name: d for d in suite.narrow(suite.load("base"), limit=10).datasets}
    assert all(d.limit == 10 for d in base.values())
    assert catalogue.items(base["gsm8k"]) == 10
    assert catalogue.items(base["mmlu"]) == 570
    made = suite.narrow(
        parse(
            "datasets:\n- {name: a, items: 50, prior: \n"
            "   {gpu_seconds: 100, cpu_seconds: 5, floor_seconds: 7, spread: 0.4}}\n"
            "- {name: b, task: t, limit: 3}\n- {name: c, task: t}\n"
        ),
        limit=10,
    )
    assert [d.limit for d in made.datasets] == [10, 3, 10]
    prior = made.datasets[0].prior
    assert prior is not None
    assert (prior.gpu_seconds, prior.cpu_seconds, prior.floor_seconds) == (20, 1, 7)
    assert prior.spread == 0.4


def test_a_precision_is_met_or_all_items_are_used() -> None:
    whole = suite.load("base")
    few = {d.name: d for d in suite.narrow(whole, precision=0.01).datasets}
    for dataset in whole.datasets:
        used, all_of_it = catalogue.items(few[dataset.name]), catalogue.items(dataset)
        assert used is not None and all_of_it is not None
        assert used == all_of_it or 0.5 / used**0.5 <= 0.01
    assert few["arc_challenge"].sample is None
    assert few["mt_bench"].sample is None  # ratings from 1 to 10
    assert catalogue.items(few["hellaswag"]) == 2500


def test_of_a_dataset_that_nobody_knows_all_items_are_used() -> None:
    made = suite.narrow(parse("datasets: [{name: a, task: t}]"), precision=0.1)
    assert made.datasets[0].sample is None


def test_a_precision_takes_a_sample_of_a_task_of_ones_own_whose_items_the_suite_gives() -> None:
    made = suite.narrow(parse("datasets: [{name: a, task: t, items: 1000}]"), precision=0.025)
    assert made.datasets[0].sample == pytest.approx(0.4)


def test_a_limit_of_the_suite_stays_where_a_precision_is_asked_for() -> None:
    made = suite.narrow(parse("datasets: [{name: blimp, task: blimp, limit: 9}]"), precision=0.1)
    assert (made.datasets[0].limit, made.datasets[0].sample) == (9, None)


@given(
    st.lists(st.sampled_from(["gsm8k", "arc_*", "m*", "*qa*", "blimp"]), max_size=3),
    st.lists(st.sampled_from(["gsm8k", "mmlu*", "*_plus"]), max_size=3),
    st.lists(st.sampled_from(["maths", "code", "k*"]), max_size=2),
    st.integers(1, 10_000) | st.none(),
)
def test_narrowing_twice_is_narrowing_once(
    only: list[str], skip: list[str], groups: list[str], limit: int | None
) -> None:
    base = BASE
    try:
        once = suite.narrow(base, only=only, skip=skip, groups=groups, limit=limit)
    except UserError:
        return
    kept = [d.name for d in once.datasets]
    assert kept == [d.name for d in base.datasets if d.name in kept]
    assert suite.narrow(base, only=kept, limit=limit) == once
    assert suite.narrow(once, limit=limit) == once


def test_what_cannot_be_run_is_named() -> None:
    text = "datasets: [{name: a, items: 5, prior: {gpu_seconds: 1}}, {name: b, task: t}]"
    kept, left_out = suite.runnable(parse(text))
    assert ([d.name for d in kept.datasets], left_out) == (["b"], {"a": "no task"})
    assert kept.digest == parse(text).digest
    with pytest.raises(UserError, match="dataset mt_bench: it needs a judge"):
        suite.runnable(suite.narrow(BASE, only=["mt_bench"]), JudgeSettings())
