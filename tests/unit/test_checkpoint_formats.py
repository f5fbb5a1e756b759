"""Formats that engines do not load, each told in its own words."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file
from tests.checkpoints import of_torch, refused, sides

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.finding import find
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.unread import recognized
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import UserError

# What trainers leave in a folder, and words of what is said. A name with a slash is in a folder.
FORMATS: dict[str, tuple[tuple[str, ...], str]] = {
    "Megatron Core, unfinished": (
        ("__0_0.distcp", "__1_0.distcp", "common.pt", "metadata.json"), "try again afterwards",
    ),
    "Megatron Core, zarr": (
        ("common.pt", "metadata.json", "model.embedding/0.0"), "Megatron Core",
    ),
    "a rank of Megatron-LM": (("model_optim_rng.pt", "distrib_optim.pt"), "Megatron-LM"),
    "Megatron Core, begun": (("common.pt",), "try again afterwards"),
    "NeMo 2, unfinished": (("context/model.yaml", "weights/__0_0.distcp"), "try again afterwards"),
    "NeMo 2, zarr": (
        ("context/io.json", "weights/common.pt", "weights/model.embedding/0.0"), "nemo llm export",
    ),
    "NeMo 1": (("llama.nemo",), "tar -xf"),
    "NeMo 1, unpacked": (("model_config.yaml", "model_weights/x/0.0"), "OUT/model_weights"),
    "torch.distributed": (("__0_0.distcp", "__1_0.distcp", ".metadata.tmp"), "written last"),
    "LLM Foundry": (("ep0-ba1000-rank0.pt", "ep0-ba1000-rank1.pt"), "convert_composer_to_hf"),
    "DeepSpeed": (
        ("zero_to_fp32.py", "global_step10/x.pt", "global_step20/x.pt"), "DeepSpeed's checkpoints",
    ),
    "DeepSpeed, inside": (
        ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",), "files of ranks are missing",
    ),
    "verl": (
        ("model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt", "huggingface/config.json"),
        "verl.model_merger",
    ),
    "Llama 70B": (("consolidated.00.pth", "consolidated.01.pth"), "convert_llama_weights_to_hf"),
    "nanotron": (("checkpoint_metadata.json", "model/x", "model_config.json"), "nanotron"),
    "adapter": (("adapter_config.json", "tokenizer.json"), "not whole"),
    "adapter's weights": (("adapter_model.bin", "training_args.bin"), "adapter_config.json"),
    "GGUF": (("model-Q4_K_M.gguf",), "GGUF"),
    "Orbax": (("_CHECKPOINT_METADATA", "manifest.ocdbt", "d/x"), "Orbax"),
    "Flax": (("config.json", "flax_model.msgpack"), "from_flax"),
    "TensorFlow": (("tf_model.h5", "config.json"), "from_tf"),
    "TensorRT-LLM": (("config.json", "rank0.engine"), "TensorRT-LLM"),
    "ONNX": (("model.onnx", "config.json"), "ONNX"),
    "an exported program": (("model.pt2",), "torch.export"),
    "NumPy": (("model.npz",), "safetensors.numpy.save_file"),
    "diffusers": (("model_index.json", "unet/x"), "diffusers"),
}  # fmt: skip


def fill(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"not read")
    return folder


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_that_are_not_read_are_named_with_a_way_out(tmp_path: Path, kind: str) -> None:
    names, words = FORMATS[kind]
    folder = fill(tmp_path / "a 'step'", names)
    refused(folder, f"checkpoint {folder} is a", words)


def test_an_adapter_of_nemo_is_refused_with_its_export(tmp_path: Path) -> None:
    names = (".metadata", "common.pt", "__0_0.distcp", "adapter_metadata.json")
    folder = fill(tmp_path / "step", tuple(f"weights/{name}" for name in names))
    refused(folder, "an adapter of NeMo 2", f"path={folder} target=hf-peft")


@pytest.mark.parametrize("kind", ["DeepSpeed", "DeepSpeed, inside", "torch.distributed", "adapter"])
def test_weights_that_were_merged_count(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")
    folder = sides(fill(tmp_path / "step", FORMATS[kind][0]))
    torch.save({"a": torch.zeros(8)}, folder / "pytorch_model.bin")
    assert inspect(folder).weights == [str(folder / "pytorch_model.bin")]
    save_file({"a": numpy.zeros(8)}, folder / "model.safetensors")
    assert inspect(folder).weights == [str(folder / "model.safetensors")]


def test_a_save_without_its_metadata_is_not_finished(tmp_path: Path) -> None:
    folder = fill(sides(tmp_path), ("pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata"))
    refused(folder, "pytorch_model_fsdp_0 has no .metadata", "written last")


def test_one_shard_of_torch_is_a_whole_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    file = sides(tmp_path) / "pytorch_model-00001-of-00001.bin"
    torch.save({"a": torch.zeros(8)}, file)
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    assert inspect(tmp_path).weights == inspect(file).weights == [str(file)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model_optim_rng.pt", "Megatron-LM"),
        ("consolidated.01.pth", "Meta's own format"),
        ("adapter_model.bin", "adapter"),
        ("llama.gguf", "GGUF"),
    ],
)
def test_files_of_such_formats_are_named_as_well(tmp_path: Path, name: str, words: str) -> None:
    refused(fill(tmp_path, (name,)) / name, words)


def test_commands_name_folders_as_a_shell_reads_them() -> None:
    words, _ = recognized(Path("/no/a step"), ["model_world_size_2_rank_0.pt"])
    assert "--local_dir '/no/a step' --target_dir OUT" in words


def test_a_folder_with_the_name_of_a_file_is_pointed_at(tmp_path: Path) -> None:
    inside = fill(tmp_path, ("last.ckpt/.metadata", "last.ckpt/__0_0.distcp", "last.ckpt/meta.pt"))
    refused(tmp_path, f"give {inside / 'last.ckpt'}")


def test_checkpoints_below_are_pointed_at(tmp_path: Path) -> None:
    for name in ("step-9", "step-100", "logs"):
        sides(tmp_path / name)
    for name in ("step-9", "step-100"):
        (tmp_path / name / "model.safetensors").touch()
    refused(
        tmp_path,
        "has no weights itself. It holds 2 checkpoints",
        f"such as {tmp_path / 'step-100'}",
        "watch",
    )
    (tmp_path / "step-9/model.safetensors").unlink()
    refused(tmp_path, f"give {tmp_path / 'step-100'}")


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16060556376\n"
STAND_INS = {
    LFS: "is a Git LFS pointer to 15.0 GiB, not the file itself. In its repository run: git lfs",
    "# xet version 0\nfilesize = 5\nhash = 'a'\n": "a pointer of XetHub to 5 B",
    "/annex/objects/SHA256E-s1--0.safetensors\n": "a pointer of git-annex",
    "outs:\n- md5: 0\n  size: 1\n  path: model.safetensors\n": "a pointer of DVC",
    "<!DOCTYPE html>\n<html><title>Sign in</title>": "a web page",
    "\ufeff\n<html>": "a web page",
    '<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>': "an error of a storage",
    "Entry not found": "a refused download",
    '{"error":"Repository not found"}': "a refused download",
    "\0" * 5000: "begins with zeros",
}


@pytest.mark.parametrize("text", STAND_INS)
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "model.pt", "model.safetensors.index.json", "config.json",
     "tokenizer.json", "tokenizer.model", "generation_config.json"],
)  # fmt: skip
def test_what_stands_in_place_of_a_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    folder = sides(tmp_path / "step")
    if name != "model.pt":
        save_file({"a": numpy.zeros(8)}, folder / "model.safetensors")
    (folder / name).write_text(text, encoding="utf-8")
    refused(folder, f"{folder / name} ", STAND_INS[text])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer.model"])
def test_an_empty_file_is_told(tmp_path: Path, name: str) -> None:
    folder = sides(tmp_path)
    save_file({"a": numpy.zeros(8)}, folder / "model.safetensors")
    (folder / name).write_bytes(b"")
    refused(folder, f"{folder / name} is empty")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("../../blobs/0123", "Copy it together with its target"),
        ("../.git/annex/objects/aa/bb/SHA256E-s9--0", "git annex get"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(tmp_path: Path, target: str, words: str) -> None:
    file = sides(tmp_path / "single") / "model.safetensors"
    file.symlink_to(target)
    refused(tmp_path / "single", f"{file} is a link to {target}, which is not there", words)
    folder = indexed(tmp_path / "sharded", {"a": "model-00001-of-00002.safetensors"})
    (folder / "model-00001-of-00002.safetensors").unlink()
    (folder / "model-00001-of-00002.safetensors").symlink_to(target)
    refused(folder, "is a link to", words)


def test_a_cut_file_is_told_with_its_sizes(tmp_path: Path) -> None:
    file = sides(tmp_path) / "model.safetensors"
    save_file({"a": numpy.zeros(1000)}, file)
    size = file.stat().st_size
    with file.open("rb+") as opened:
        opened.truncate(size - 10)
    refused(
        tmp_path, f"{file} is not whole: it has {size - 10:,} of {size:,} bytes", "copy or save"
    )


def indexed(folder: Path, shards: dict[str, str]) -> Path:
    """Write a checkpoint of two files, and an index that says of each tensor where it is."""
    sides(folder)
    for number, names in enumerate(("ab", "c"), 1):
        tensors: dict[str, Any] = {name: numpy.zeros(4) for name in names}
        save_file(tensors, folder / f"model-{number:05}-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    return folder


@pytest.mark.parametrize(
    ("shards", "index"),
    [
        (("model-1.safetensors", "model-2.safetensors"), "model.safetensors.index.json"),
        (
            ("consolidated-1-of-2.safetensors", "consolidated-2-of-2.safetensors"),
            "consolidated.safetensors.index.json",
        ),
    ],
)
def test_of_a_tensor_in_two_files_that_of_the_index_counts(
    tmp_path: Path, shards: tuple[str, str], index: str
) -> None:
    files = [tmp_path / name for name in shards]
    save_file({"a": numpy.zeros(4), "b": numpy.zeros(4)}, files[0])
    save_file({"a": numpy.ones(4), "c": numpy.ones(4)}, files[1])
    named = {"a": shards[0], "b": shards[0], "c": shards[1]}
    (tmp_path / index).write_text(json.dumps({"weight_map": named}))
    opened = safetensors_file.open_source(files, [tmp_path / index])
    assert opened.layout("a").boxes[0].file == files[0]
    (tmp_path / index).write_text(json.dumps({"weight_map": named | {"b": shards[1]}}))
    with pytest.raises(UserError, match="it is in"):
        safetensors_file.open_source(files, [tmp_path / index])
    (tmp_path / index).unlink()
    with pytest.raises(UserError, match="no index tells"):
        safetensors_file.open_source(files, [])


def test_an_index_of_another_save_is_told_from_a_save_that_goes_on(tmp_path: Path) -> None:
    old = {"a": "model-00001-of-00004.safetensors", "c": "model-00002-of-00004.safetensors"}
    folder = indexed(tmp_path / "stale", old)
    refused(folder, "does not fit the files beside it: 2 of 2 shards", "Save the checkpoint again")
    folder = indexed(tmp_path / "mixed", old | {"d": "model-00003-of-00004.safetensors"})
    refused(folder, "is incomplete", "does not fit its files: 3 of 3", "lack 1 tensor", "such as d")
    moved = {name: f"model-0000{n}-of-00002.safetensors" for name, n in (("a", 2), ("b", 1))}
    folder = indexed(tmp_path / "moved", moved)
    refused(folder, "promises a in", "it is in model-00001-of-00002.safetensors", "the index")
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    named = {"a": first, "b": first, "c": second}
    folder = indexed(tmp_path / "twice and tied", named | {"lm_head.weight": second})
    save_file({name: numpy.zeros(4) for name in "bc"}, folder / second)
    assert inspect(folder).weights == [str(folder / name) for name in (first, second)]
    folder = indexed(tmp_path / "single", old)
    for number in (1, 2):
        (folder / f"model-0000{number}-of-00002.safetensors").unlink()
    refused(folder, "is incomplete: 2 of 2 shards", "try again afterwards")
    save_file({name: numpy.zeros(4) for name in "abc"}, folder / "model.safetensors")
    refused(folder, "does not fit the files beside it", "Remove it")


@pytest.mark.parametrize(
    ("there", "given", "read"),
    [
        ("model.safetensors model_ema.safetensors", "model_ema.safetensors", None),
        ("model.safetensors model_ema.safetensors", "model.safetensors", "model.safetensors"),
        ("model.safetensors model_ema.safetensors", ".", "model.safetensors"),
        ("step-100.safetensors step-200.safetensors", "step-100.safetensors", None),
        ("step-100.safetensors", ".", "step-100.safetensors"),
        ("model.safetensors consolidated.safetensors", "consolidated.safetensors", None),
        ("consolidated.safetensors", "consolidated.safetensors", "consolidated.safetensors"),
        ("ft-model.safetensors.index.json model.safetensors", ".", "model.safetensors"),
        ("ft-model.safetensors.index.json optimizer.safetensors", ".", "ft-1-of-1.safetensors"),
        (
            "ft-model.safetensors.index.json model.safetensors",
            "ft-model.safetensors.index.json",
            "ft-1-of-1.safetensors",
        ),
        ("model.safetensors model.pt", "model.pt", None),
    ],
)
def test_a_file_beside_those_of_the_folder_is_itself_the_checkpoint(
    tmp_path: Path, there: str, given: str, read: str | None
) -> None:
    for name in there.split():
        if name.endswith(".json"):
            (tmp_path / name).write_text('{"weight_map": {"a": "ft-1-of-1.safetensors"}}')
            save_file({"a": numpy.zeros(4)}, tmp_path / "ft-1-of-1.safetensors")
        elif name.endswith(".pt"):
            of_torch(tmp_path)
        else:
            save_file({"a": numpy.zeros(4)}, tmp_path / name)
    (found,) = find(tmp_path / given).weights
    assert found == (tmp_path / (read or given)).resolve()


def test_which_of_several_files_of_other_names_counts_is_asked(tmp_path: Path) -> None:
    for step in (100, 200):
        save_file({"a": numpy.zeros(4)}, sides(tmp_path) / f"step-{step}.safetensors")
    refused(tmp_path, "'step-100.safetensors', 'step-200.safetensors'", "give that file")


def test_a_file_of_another_name_is_staged_under_one_that_engines_look_for(tmp_path: Path) -> None:
    save_file({"a": numpy.arange(4.0)}, sides(tmp_path / "run") / "step-100.safetensors")
    checkpoint = inspect(tmp_path / "run" / "step-100.safetensors")
    place = StagedWeights(str(tmp_path), "run", "node")
    with place.hold():
        assert place.copy(checkpoint)
        assert (place.folder / "model.safetensors").is_file()
    assert step_of(checkpoint.path) == 100
