"""The page of a plan: one file that stands alone, whatever names are in it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.markup import Page
from tests.plans import reviewed

from coordinate_eval.clusters.protocol import ShownJob
from coordinate_eval.coordinator.display import show
from coordinate_eval.coordinator.display.show import write_scripts

HOSTILE = "</title></svg></script><script>alert(1)</script>\"' onload=x {{ 7*7 }} &amp; \x1b\x00é"


def test_a_page_shows_it_all() -> None:
    found = Page(show.render(reviewed()))
    text = " ".join(data for _, data in found.texts)
    titles = [data for tag, data in found.texts if tag == "title"]
    for words in ("makespan", "lower bound", "one job each", "node2", "big29", "not used"):
        assert words in text
    assert any("big0, items 0–" in title for title in titles)
    assert any("engine start" in title for title in titles)
    assert "sbatch node2 <<'E'" in text
    assert found.tags.count("details") == 2


def test_a_color_is_that_of_one_dataset_in_chart_and_table() -> None:
    made = reviewed(datasets=8)
    # The metric of a short dataset takes longest, so that it is first in the table.
    slow = [
        cost.model_copy(update={"metric_cpu_seconds": 1e5 if cost.name == "big5" else 0.0})
        for cost in made.plan.datasets
    ]
    text = show.render(replace(made, plan=made.plan.model_copy(update={"datasets": slow})))
    legend = {name: style for style, name in re.findall(r'swatch (c\d+)"></span>(\w+)<', text)}
    bars = re.findall(r'<tr><td>(\w+)</td>.*<td class="share"><i class="(c\d+)"', text)
    assert bars[0][0] == "big5"
    assert len(legend) == len(bars) == 8
    assert dict(bars) == legend


def test_a_page_loads_and_runs_nothing() -> None:
    text = show.render(reviewed())
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {*found.tags}
    assert not {"src", "href", "onload", "onclick"} & found.attributes
    assert "http://" not in text
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text


def test_hostile_names_stay_text() -> None:
    usual = Page(show.render(reviewed(datasets=20)))
    text = show.render(reviewed(datasets=20, name=HOSTILE, dataset=HOSTILE))
    found = Page(text)
    # Long names don't fit into bars, which is where text of the drawing may be missing.
    assert [t for t in found.tags if t != "text"] == [t for t in usual.tags if t != "text"]
    assert found.attributes <= usual.attributes
    assert text.isascii()
    assert "\x00" not in text
    assert "\x1b" not in text
    assert any("alert(1)" in data and "{{ 7*7 }}" in data for _, data in found.texts)


@pytest.mark.parametrize(("nodes", "trials"), [(1, 1), (16, 8), (256, 8)])
def test_a_page_of_any_size_can_be_sent(nodes: int, trials: int) -> None:
    text = show.render(reviewed(nodes=nodes, trials=trials))
    assert len(text) < 5_000_000
    assert Page(text).tags.count("svg") == 1


PLANNED = [
    ShownJob("ce-a-keep", "sbatch --mem=1M", "#!/bin/bash\necho 1\n", "…"),
    ShownJob("../../etc/ä b\n", "sbatch --mem=2M", "#!/bin/bash\necho 2\n", "…"),
    ShownJob("ce-a-trial", "2 × python -m x", None, "…"),
]


def test_scripts_are_exact_and_beside_them_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    write_scripts(folder, PLANNED)
    assert sorted(p.name for p in folder.iterdir()) == [
        "..-..-etc---b-.argv",
        "..-..-etc---b-.sh",
        "ce-a-keep.argv",
        "ce-a-keep.sh",
        "ce-a-trial.argv",
    ]
    assert (folder / "ce-a-keep.sh").read_text() == "#!/bin/bash\necho 1\n"
    assert (folder / "ce-a-keep.argv").read_text() == "sbatch --mem=1M < ce-a-keep.sh\n"
    assert (folder / "ce-a-trial.argv").read_text() == "2 × python -m x\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scripts"]
