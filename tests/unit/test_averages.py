"""Averages of checkpoints of any kind: described, found again, and computed while staged."""

import importlib
import os
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mixes import Held, reconfigured, saved, staged, tensors, written_adapter

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import guard, reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import (
    Average,
    Members,
    members,
    up_to,
)
from coordinate_eval.errors import UserError, WeightsRefused

torch: Any = importlib.import_module("torch")
files: Any = importlib.import_module("safetensors.torch")


def test_an_average_is_staged_as_one_made_by_hand(steps: list[Path], tmp_path: Path) -> None:
    found = inspect(members(steps, [1, 1, 2]))
    copy = staged(found, tmp_path)

    mine, all_of = tensors(copy), [tensors(step) for step in steps]
    for name, tensor in mine.items():
        one, two, three = (each[name].float().numpy() for each in all_of)
        by_hand = (one + two + numpy.float32(2) * three) / numpy.float32(4)
        assert torch.equal(tensor, torch.from_numpy(by_hand).to(torch.bfloat16)), name
    label = r"average of 3: step-800…step-1000 \([0-9a-f]{6}\)"
    assert re.fullmatch(label, Path(found.path).name)
    assert checkpoints.trained_step(found) == 1000
    assert found.bytes == inspect(steps[0]).parameters * 2


@pytest.mark.parametrize("form", ["step-{}", "iter_{}/hf", "step={}.ckpt"])
def test_the_last_ones_up_to_a_checkpoint_are_told_by_their_steps(
    tmp_path: Path, form: str
) -> None:
    made = [tmp_path / form.format(step) for step in (100, 900, 1000, 1100)]
    for path in made:
        path.parent.mkdir(exist_ok=True)
        path.touch() if path.suffix else path.mkdir()
    (tmp_path / "logs").mkdir()

    assert up_to(made[2], 2) == members(made[1:3], None)
    assert up_to(made[2], 5) == members(made[:3], None)
    assert up_to(made[0], 5) == made[0]
    with pytest.raises(UserError, match="tells no step"):
        up_to(tmp_path / "logs", 5)


def test_a_file_names_an_average_by_paths_beside_it(steps: list[Path]) -> None:
    file = steps[0].parent / "soup.yaml"
    file.write_text("average: [step-800, step-900]\nweights: [1, 3]\n")
    found = inspect(file)

    assert found.path == str(file)
    assert checkpoints.trained_step(found) == 900
    assert found.identity == inspect(members(steps[:2], [0.25, 0.75])).identity


def test_an_average_is_the_same_one_if_its_members_and_weights_are(steps: list[Path]) -> None:
    one = inspect(members(steps, None))

    assert one.identity == inspect(members(steps, [2, 2, 2])).identity
    assert one.identity != inspect(members(steps, [1, 1, 2])).identity
    assert one.identity != inspect(members(steps[:2], None)).identity
    assert inspect(checkpoints.named(one)) == one


def test_an_average_of_an_average_and_of_an_adapter(
    steps: list[Path], adapter: Path, tmp_path: Path
) -> None:
    file = steps[0].parent / "pair.yaml"
    file.write_text("average: [step-800, step-1000]")
    copy = staged(inspect(members([file, adapter], None)), tmp_path)

    first, last = tensors(steps[0]), tensors(steps[2])
    merged = tensors(adapter.with_name("adapter-merged"))
    for name, tensor in tensors(copy).items():
        pair = ((first[name].float() + last[name].float()) / 2).to(torch.bfloat16)
        assert torch.equal(tensor, ((pair.float() + merged[name].float()) / 2).bfloat16()), name


def test_what_it_is_made_of_may_not_change(steps: list[Path], adapter: Path) -> None:
    mixed = inspect(members([*steps[1:], adapter], None))
    assert checkpoints.unchanged(mixed)
    weights = steps[0] / "model.safetensors"  # of the adapter's base
    before = weights.stat().st_mtime_ns
    os.utime(weights, ns=(before, before + 1))
    assert not checkpoints.unchanged(mixed)
    os.utime(weights, ns=(before, before))


def test_models_that_differ_have_no_average(steps: list[Path], tmp_path: Path) -> None:
    float32 = saved(tmp_path / "float32", 1, "float32")
    with pytest.raises(UserError, match=r"no average: .* float32 .* bfloat16"):
        inspect(members([float32, steps[0]], None))


def held(**tensors: Any) -> Held:
    return Held(tensors)


_ROWS = st.lists(
    st.tuples(st.floats(-2, 2, width=32), st.floats(-100, 100, width=32)), min_size=2, max_size=5
).filter(lambda rows: abs(sum(weight for weight, _ in rows)) > 0.01)


@settings(deadline=None)
@given(_ROWS)
def test_weights_are_divided_by_their_sum(rows: list[tuple[float, float]]) -> None:
    sources = [held(x=torch.tensor([value])) for _, value in rows]
    asked: Members = members([Path(str(n)) for n in range(len(rows))], [w for w, _ in rows])
    found = Average(sources, asked.weights, ["a"] * len(rows)).read("x").item()

    total = sum(weight for weight, _ in rows)
    expected = sum(weight * value for weight, value in rows) / total
    size = sum(abs(weight * value) for weight, value in rows) / abs(total)
    assert abs(found - expected) <= 1e-6 * size + 1e-30


def test_counters_are_those_of_the_last_member() -> None:
    sources = [held(steps=torch.tensor([count])) for count in (1, 2)]
    assert Average(sources, [1, 1], ["a", "b"]).read("steps").item() == 2


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (held(a=torch.zeros(2)), held(a=torch.zeros(3)), r"\[2\].*\[3\]"),
        (held(a=torch.zeros(2)), held(b=torch.zeros(2)), "lacks 1 tensor .*such as b"),
        (held(a=torch.zeros(2).half()), held(a=torch.zeros(2)), r"float16 .*float32"),
        (
            held(weight=torch.zeros(2, dtype=torch.uint8)),
            held(weight=torch.zeros(2, dtype=torch.uint8)),
            "quantized",
        ),
    ],
)
def test_unequal_tensors_are_named(one: Held, other: Held, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Average([one, other], [1, 1], ["step-1", "step-2"])


@pytest.mark.parametrize(
    ("count", "weights", "words"),
    [
        (1, None, "at least two"),
        (2, [1.0], "1 weight for 2 checkpoints"),
        (2, [1.0, -1.0], "no sum"),
        (2, [float("nan"), 1.0], "no sum"),
        (2, [0.0, 0.0], "no sum"),
    ],
)
def test_weights_without_a_mean_are_refused(
    count: int, weights: list[float] | None, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        members([Path(str(number)) for number in range(count)], weights)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("average: step-800", "must be a list"),
        ("average: [step-800, 900]", "must be a list of checkpoints"),
        ("averages: [a, b]", "is no average"),
        ("average: [a, b]\nweight: [1, 2]", "is no average"),
        ("average: [a, b]\nweights: [x, 1]", "list of numbers"),
        ("average: [a, b", "not YAML"),
        ("average: !!python/object/apply:os.system [true]", "not YAML"),
        ("- a", "is no average"),
        ("average: [a]", r"soup\.yaml: an average is of at least two"),
        ("average: [a, b]\nweights: [1, -1]", r"soup\.yaml: the weights 1, -1 have no sum"),
        ("average: [a, b]", "does not exist"),
    ],
)
def test_a_file_that_names_no_average_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "soup.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        inspect(file)


def test_an_output_layer_of_its_own_is_not_dropped_where_the_config_ties(
    steps: list[Path], tmp_path: Path
) -> None:
    tied = reconfigured(steps[0], tmp_path / "tied", tie_word_embeddings=True)
    state = tensors(tied)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    files.save_file(state, tied / "model.safetensors")
    one = inspect(tied)
    guard.check_left_out(one, reading.source(one))

    state["lm_head.weight"][0, 0] += 1
    files.save_file(state, tied / "model.safetensors")
    named = reconfigured(tied, tmp_path / "torch")
    (named / "model.safetensors").unlink()
    torch.save(state, named / "model.pt")
    again = reconfigured(tied, tmp_path / "again")
    for each in (inspect(tied), inspect(members([again, tied], None)), inspect(named)):
        with pytest.raises(WeightsRefused, match=r"lm_head\.weight differs from"):
            guard.check_left_out(each, reading.source(each))


def test_a_checkpoint_twice_in_an_average_is_refused(steps: list[Path], tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(steps[0])
    with pytest.raises(UserError, match=r"step-800 is in the average twice.*weight"):
        inspect(members([steps[0], steps[1], tmp_path / "latest"], None))


def test_what_is_made_of_itself_or_of_too_much_is_refused(
    steps: list[Path], tmp_path: Path
) -> None:
    held = {"base_model.model.model.embed_tokens.weight": torch.zeros(2, 2)}
    a, b = tmp_path / "a", tmp_path / "b"
    written_adapter(a, b, held)
    written_adapter(b, a, held)
    itself = tmp_path / "itself.yaml"
    itself.write_text("average: [itself.yaml, itself.yaml]")
    deep = tmp_path / "0.yaml"
    deep.write_text(f"average: [{steps[0]}, {steps[1]}]")
    for level in range(1, 8):
        deep = tmp_path / f"{level}.yaml"
        deep.write_text(f"average: [{level - 1}.yaml, {level - 1}.yaml]")
    for each in (a, itself, deep):
        with pytest.raises(UserError, match="is made of itself, of more than"):
            inspect(each)


@pytest.mark.parametrize("weights", ["[1" + "0" * 400 + ", 1]", "[1.0e+308, 1.0e+308]"])
def test_a_weight_that_is_too_large_is_refused(weights: str, tmp_path: Path) -> None:
    file = tmp_path / "soup.yaml"
    file.write_text(f"average: [a, b]\nweights: {weights}")
    with pytest.raises(UserError, match=r"larger than numbers|no sum"):
        inspect(file)


def test_averages_of_other_members_or_weights_have_other_names(steps: list[Path]) -> None:
    one, two, three = steps
    asked = [members(steps, None), members(steps, [1, 1, 2]), members([one, two, two, three], None)]
    assert len({each.place for each in asked}) == 3
    assert members(steps, [2, 2, 2]).place == asked[0].place


def test_models_of_other_configs_have_no_average(steps: list[Path], tmp_path: Path) -> None:
    other = reconfigured(steps[0], tmp_path / "other", rms_norm_eps=0.5)
    with pytest.raises(UserError, match=r"no average: rms_norm_eps in config\.json"):
        inspect(members([other, steps[1]], None))
    same = reconfigured(steps[0], tmp_path / "same", transformers_version="1", use_cache=False)
    assert inspect(members([same, steps[1]], None))
