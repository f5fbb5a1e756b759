"""Checkpoints that are made of others: described, found again, and written for engines."""

import importlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mixes import Held, adapted, saved
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import guard, reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.mixed.adapter import AdapterConfig
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import (
    Average,
    Members,
    members,
    up_to,
)
from coordinate_eval.coordinator.inputs.checkpoints.mixed.merged import Merged
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import UserError, WeightsRefused
from coordinate_eval.records import Checkpoint, CheckpointFormat

torch: Any = importlib.import_module("torch")
files: Any = importlib.import_module("safetensors.torch")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three saves of a training, and a folder of a converted one."""
    root = tmp_path_factory.mktemp("training")
    return [saved(root / f"step-{step}", step) for step in (800, 900, 1000)]


@pytest.fixture(scope="module")
def adapter(steps: list[Path]) -> Path:
    """An adapter of the first save, beside what PEFT merges it to."""
    folder = steps[0].parent / "adapter"
    adapted(steps[0], folder, use_dora=True, modules_to_save=["lm_head"])
    return folder


def staged(checkpoint: Checkpoint, root: Path) -> Path:
    """Return the folder that a keeper has written of a checkpoint."""
    weights = StagedWeights(str(root), "run", "node")
    with weights.hold():
        assert weights.copy(checkpoint)
        shutil.copytree(weights.folder, root / "kept")
    return root / "kept"


def tensors(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        found |= files.load_file(file)
    return found


def test_an_adapter_is_staged_as_what_peft_merges(adapter: Path, tmp_path: Path) -> None:
    found = inspect(adapter)
    copy = staged(Checkpoint.model_validate_json(found.model_dump_json()), tmp_path)

    expected = tensors(adapter.with_name("adapter-merged"))
    mine = tensors(copy)
    assert mine.keys() == expected.keys()
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    assert found.format is CheckpointFormat.ADAPTER
    assert found.parameters == inspect(adapter.with_name("adapter-merged")).parameters
    assert not (copy / "adapter_config.json").exists()
    assert (copy / "tokenizer.json").exists()


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


def test_the_base_is_found_where_the_adapter_says_or_as_it_is_given(
    steps: list[Path], adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    config = json.loads((copy / "adapter_config.json").read_text())

    def named(base: str) -> Path:
        (copy / "adapter_config.json").write_text(
            json.dumps({**config, "base_model_name_or_path": base})
        )
        return copy

    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / "abc"
    shutil.copytree(steps[0], snapshot)
    reference = snapshot.parent.parent / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    assert inspect(named("org/tiny")).parts[0].path == str(snapshot)
    assert inspect(named(os.path.relpath(steps[0], copy))).parts[0].path == str(steps[0])
    assert inspect(named("org/other"), base=steps[0]).parts[0].path == str(steps[0])
    with pytest.raises(UserError, match=r"org/other.*--base PATH"):
        inspect(named("org/other"))
    with pytest.raises(UserError, match="names no base"):
        inspect(named(""))


def test_the_tokenizer_of_the_adapter_counts(adapter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    shutil.copy(tiny_model() / "tokenizer.json", copy)
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]

    assert str(copy / "tokenizer.json") in inspect(copy).files
    assert f"{base}/config.json" in inspect(copy).files


def test_an_adapter_is_that_of_another_base(adapter: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model(), other)
    config = json.loads((other / "config.json").read_text())
    transformers: Any = importlib.import_module("transformers")
    sizes = {**config, "intermediate_size": config["intermediate_size"] * 2}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(other)

    with pytest.raises(UserError, match=r"(?s)matrix of the shape .*down_proj.*--base"):
        inspect(adapter, base=other)


def test_a_head_that_a_trainer_saved_beside_is_no_model(adapter: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(adapter, adapter.parent / "with-head")
    torch.save({"v": torch.zeros(3)}, folder / "value_head.bin")
    torch.save({"v": torch.zeros(3)}, folder / "head.pt")
    assert inspect(folder).format is CheckpointFormat.ADAPTER


def test_an_adapter_that_is_being_written_is_not_whole(adapter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "adapter"
    shutil.copytree(adapter, copy)
    (copy / "adapter_config.json").unlink()

    with pytest.raises(UserError, match="not whole"):
        inspect(copy)


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


def written_adapter(folder: Path, base: Path, held: dict[str, Any], **config: Any) -> Path:
    folder.mkdir(parents=True)
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], **config}
    text = json.dumps({**told, "base_model_name_or_path": str(base)})
    (folder / "adapter_config.json").write_text(text)
    files.save_file(held, folder / "adapter_model.safetensors")
    return folder


def reconfigured(source: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_an_adapter_with_more_tokens_is_judged_by_the_vocabulary_that_it_has(
    steps: list[Path], tmp_path: Path
) -> None:
    whole = tensors(steps[0])
    grown = {
        f"base_model.model.{name}": torch.cat([tensor, tensor[:6]])
        for name, tensor in whole.items()
        if name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    found = inspect(written_adapter(tmp_path / "grown", steps[0], grown))
    verdict = guard.judge(found, reading.source(found))
    assert verdict.differences is not None
    assert not verdict.why


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


def test_an_adapter_of_some_layers_of_a_deeper_base_is_refused(
    steps: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    adapted(steps[0], folder, target_modules=["q_proj", "down_proj"])
    state = files.load_file(folder / "adapter_model.safetensors")
    first = {name: tensor for name, tensor in state.items() if ".layers.0." in name}
    files.save_file(first, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"does not adapt model\.layers\.1\..*as it does in other"):
        inspect(folder)

    # a layer that predicts further tokens is in files, and not in the model
    source = Held(tensors(steps[0]))
    own = AdapterConfig(folder / "adapter_config.json")
    Merged(source, Held(first), own, tied=False, where="base", layers=1)
    with pytest.raises(UserError, match="does not adapt"):
        Merged(source, Held(first), own, tied=False, where="base", layers=2)

    config = json.loads((folder / "adapter_config.json").read_text())
    chosen = config | {"layers_to_transform": [0]}
    (folder / "adapter_config.json").write_text(json.dumps(chosen))
    inspect(folder)
    files.save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="has no tensors"):
        inspect(folder)


def test_a_base_of_what_is_no_adapter_is_refused(steps: list[Path], adapter: Path) -> None:
    for what in (steps[1], members(steps[1:], None)):
        with pytest.raises(UserError, match="is no adapter, and --base"):
            inspect(what, base=steps[0])
    inspect(members([adapter, steps[0]], None), base=steps[0])


def test_a_checkpoint_twice_in_an_average_is_refused(steps: list[Path], tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(steps[0])
    with pytest.raises(UserError, match=r"step-800 is in the average twice.*weight"):
        inspect(members([steps[0], steps[1], tmp_path / "latest"], None))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace(".layers.0.", ".layers.0._fsdp_wrapped_module."),
        lambda name: re.sub(r"(lora_[AB])|(lm_head)", r"\1\2.policy", name).replace(
            "lm_head.", "lm_head.modules_to_save."
        ),
    ],
)
def test_names_of_an_adapter_may_have_those_of_wrappers_and_its_own(
    adapter: Path, tmp_path: Path, wrapped: Callable[[str], str]
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    state = files.load_file(copy / "adapter_model.safetensors")
    files.save_file({wrapped(n): t for n, t in state.items()}, copy / "adapter_model.safetensors")

    expected = tensors(adapter.with_name("adapter-merged"))
    merged = reading.source(inspect(copy))
    assert merged.tensors.keys() == expected.keys()
    assert all(torch.equal(merged.read(name), expected[name]) for name in expected)


def test_an_adapter_counts_before_what_accelerate_saves_of_fsdp(
    adapter: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    torch.save(files.load_file(copy / "adapter_model.safetensors"), copy / "pytorch_model_fsdp.bin")
    assert inspect(copy).format is CheckpointFormat.ADAPTER
    (copy / "pytorch_model_fsdp.bin").rename(copy / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no config\.json"):  # it may be a whole model
        inspect(copy)


@pytest.mark.parametrize("shape", [(0,), (16,)])
def test_an_adapter_whose_parts_zero_did_not_gather_is_refused(
    adapter: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    state = files.load_file(copy / "adapter_model.safetensors")
    files.save_file(
        {name: torch.zeros(shape) for name in state}, copy / "adapter_model.safetensors"
    )
    with pytest.raises(UserError, match=r"of the shape \[\d+\]: ZeRO 3 and FSDP.*not gathered"):
        inspect(copy)


def test_two_adapters_in_one_file_are_refused(steps: list[Path], tmp_path: Path) -> None:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    held = {
        f"{module}.lora_{side}.{name}.weight": torch.zeros(2, 2)
        for side in "AB"
        for name in ("default", "ref")
    }
    with pytest.raises(UserError, match="has several adapters"):
        inspect(written_adapter(tmp_path / "both", steps[0], held))


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


def test_the_base_of_adapters_is_told_only_if_it_is_that_of_all(
    steps: list[Path], tmp_path: Path
) -> None:
    held = {"base_model.model.model.norm.weight": tensors(steps[0])["model.norm.weight"]}
    one, two, three = (
        written_adapter(tmp_path / str(number), steps[number // 2], held) for number in range(3)
    )
    assert checkpoints.base_of(inspect(members([one, two], None))) == steps[0]
    assert checkpoints.base_of(inspect(members([one, three], None))) is None
