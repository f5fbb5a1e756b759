"""Write the suite, its tasks, their data, and a checkpoint."""

import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks._instances import played
from benchmarks.full_shape.forms import SCORED, Call, Config, Row
from benchmarks.full_shape.text import VOCABULARY, Text, tokenizer
from benchmarks.full_shape.written import PROGRAM, WRITTEN
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.catalogue import Entry
from coordinate_eval.records import Dataset

MAX_LENGTH = 65_536
"""Tokens of context of the checkpoint: longer than any prompt of the suite."""

_DRAWN_FROM = 1000
_LEAST_ITEMS = 2
_HIDDEN, _LAYERS, _HEADS = 64, 2, 2

_FORM = {
    **dict.fromkeys(("mmlu", "cmmlu", "ceval", "agieval", "mathqa", "commonsense_qa"), "letters"),
    **dict.fromkeys(("pubmedqa", "boolq", "rte", "cb", "wsc"), "judged"),
    **dict.fromkeys(("hellaswag", "piqa", "copa", "xcopa"), "endings"),
    **dict.fromkeys(("arc_easy", "arc_challenge", "openbookqa", "social_iqa"), "listed"),
    **dict.fromkeys(("race", "bbq"), "article"),
    **dict.fromkeys(("winogrande", "wsc273"), "blank"),
    **dict.fromkeys(("nq_open", "triviaqa"), "short"),
    **dict.fromkeys(("mmlu_pro", "gaokao_bench", "bbh", "gsm8k", "gsm_plus"), "worked"),
    **dict.fromkeys(("svamp", "theoremqa", "mgsm"), "worked"),
    **dict.fromkeys(("math", "math500", "aime24"), "maths"),
    **dict.fromkeys(("humaneval", "humaneval_plus", "mbpp", "mbpp_plus", "cruxeval"), "program"),
    **dict.fromkeys(("drop", "squadv2", "coqa"), "spans"),
    **dict.fromkeys(("longbench_narrativeqa", "longbench_hotpotqa"), "spans"),
    **dict.fromkeys(("longbench_gov_report", "longbench_dureader"), "summary"),
    **dict.fromkeys(("longbench_lcc", "truthfulqa_gen"), "summary"),
    "xnli": "sentences",
    "blimp": "pair",
    "multirc": "correct",
    "truthfulqa_mc": "true",
    "record": "entities",
    "lambada_openai": "last word",
    "flores_en_fr": "translated",
    "ruler_niah": "found",
    "ifeval": "instructed",
}


class Amount(NamedTuple):
    """The part of the full shape that is made."""

    items: Mapping[str, int]
    """Items by dataset; a dataset that is not named is left out."""
    length: float = 1.0
    """Tokens of a prompt, as a share of the catalogue's."""
    program_seconds: Mapping[str, float] = MappingProxyType({})
    """By dataset whose answers are programs: seconds that each sleeps, whatever was answered."""


class Made(NamedTuple):
    """The files that were written."""

    suite: Path
    checkpoint: Path


class _Leaf(NamedTuple):
    """One task: its name, and which items of the dataset it has."""

    name: str
    items: range


def scaled(scale: float) -> Amount:
    """Return the full shape with `scale` times the items, at least two in each leaf task."""
    least = {name: _LEAST_ITEMS * entry.tasks for name, entry in catalogue.entries().items()}
    return Amount(
        {
            name: min(entry.items, max(least[name], round(entry.items * scale)))
            for name, entry in catalogue.entries().items()
        }
    )


def make(folder: Path, amount: Amount) -> Made:
    """Write a suite of this much of the full shape, and a checkpoint for it.

    Raises:
        FileExistsError: `folder` exists.
    """
    folder.mkdir(parents=True)
    tasks = folder / "tasks"
    shutil.copytree(Path(__file__).parent / "tasks", tasks)
    datasets = []
    for number, dataset in enumerate(suite.load("base").datasets):
        if dataset.name not in amount.items:
            continue
        if dataset.name not in played():
            datasets.append({"name": dataset.name})
            continue
        _write_dataset(folder, Text(number), dataset, catalogue.entries()[dataset.name], amount)
        given = dataset.model_dump(exclude_defaults=True)
        datasets.append(given | {"task": dataset.name})
    path = folder / "suite.yaml"
    content = {"name": "full-shape", "include_path": [str(tasks)], "datasets": datasets}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return Made(path, write_checkpoint(folder / "checkpoint"))


def write_checkpoint(folder: Path) -> Path:
    """Write a checkpoint of a small Llama, all of whose weights are zero, with its tokenizer."""
    folder.mkdir()
    tokenizer().save(str(folder / "tokenizer.json"))
    _json(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token="<s>",  # noqa: S106  # not a secret
        eos_token="</s>",  # noqa: S106  # as above
        model_max_length=MAX_LENGTH,
    )
    _json(
        folder / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=MAX_LENGTH,
        torch_dtype="float16",
        bos_token_id=0,
        eos_token_id=1,
    )
    header: dict[str, Any] = {}
    end = 0
    for name, shape in _tensors():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    words = json.dumps(header).encode()
    weights = struct.pack("<Q", len(words)) + words + bytes(end)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def _tensors() -> Iterator[tuple[str, list[int]]]:
    yield "model.embed_tokens.weight", [VOCABULARY, _HIDDEN]
    yield "lm_head.weight", [VOCABULARY, _HIDDEN]
    yield "model.norm.weight", [_HIDDEN]
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{at}.self_attn.{name}.weight", [_HIDDEN, _HIDDEN]
        for name in ("gate_proj", "up_proj"):
            yield f"{at}.mlp.{name}.weight", [2 * _HIDDEN, _HIDDEN]
        yield f"{at}.mlp.down_proj.weight", [_HIDDEN, 2 * _HIDDEN]
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{name}.weight", [_HIDDEN]


def _write_dataset(
    folder: Path, text: Text, dataset: Dataset, entry: Entry, amount: Amount
) -> None:
    """Write the tasks of a dataset and their data."""
    leaves = list(_leaves(entry.dataset, amount.items[entry.dataset]))
    for leaf in leaves:
        config = _task(folder / "data", text, dataset, entry, amount, leaf)
        (folder / "tasks" / f"{leaf.name}.yaml").write_text(_yaml(config))
    if len(leaves) > 1:
        filters = [each["name"] for each in config.get("filter_list", [])]
        total = {"weight_by_size": True} | ({"filter_list": filters} if filters else {})
        group = {
            "group": entry.dataset,
            "task": [leaf.name for leaf in leaves],
            "aggregate_metric_list": [
                {"metric": metric["metric"], **total} for metric in config["metric_list"]
            ],
            "metadata": {"version": 1.0},
        }
        (folder / "tasks" / f"{entry.dataset}.yaml").write_text(_yaml(group))


def _leaves(dataset: str, items: int) -> Iterator[_Leaf]:
    """Yield the leaf tasks of a dataset; their numbers of items differ by one at most."""
    count = catalogue.entries()[dataset].tasks
    for number in range(count):
        name = dataset if count == 1 else f"{dataset}_{number + 1:02}"
        begin, end = items * number // count, items * (number + 1) // count
        yield _Leaf(name, range(begin, end))


def _task(
    data: Path, text: Text, dataset: Dataset, entry: Entry, amount: Amount, leaf: _Leaf
) -> Config:
    """Return the configuration of a leaf task whose data were written."""
    name, shots = entry.dataset, entry.num_fewshot
    form = (SCORED if entry.kind == "loglikelihood" else WRITTEN)[_FORM[name]]
    answer = 0 if entry.kind == "loglikelihood" else form.answer
    tokens = amount.length * entry.prompt_tokens / (shots + 1 - answer)
    extra = {"seconds": amount.program_seconds.get(name, 0.0)} if form is PROGRAM else {}

    def row(item: int) -> Row:
        # Numbers of choices that differ by one at most and have the catalogue's mean.
        each = entry.requests_per_item
        return form.row(text, tokens, int((item + 1) * each) - int(item * each)) | extra

    files = {"test": _parquet(data / leaf.name / "test.parquet", [row(i) for i in leaf.items])}
    shown: Config = {}
    if shots and dataset.num_fewshot is not None:
        first = _FORM[name] == "letters"
        examples = [row(i) for i in range(shots if first else _DRAWN_FROM)]
        files["train"] = _parquet(data / leaf.name / "train.parquet", examples)
        shown = {"fewshot_split": "train", "training_split": "train"}
        shown |= {"fewshot_config": {"sampler": "first_n"}} if first else {}
    elif shots:
        samples = [row(i) | {"few_shot": "1"} for i in range(shots)]
        shown = {"fewshot_config": {"sampler": "first_n", "samples": samples}}
    choices = round(entry.requests_per_item)
    scored = entry.kind == "loglikelihood"
    return {
        "task": leaf.name,
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        **form.config(choices if scored else entry.max_output_tokens),
        **({"repeats": choices} if not scored and choices > 1 else {}),
        "num_fewshot": shots,
        **shown,
        "metadata": {"version": 1.0},
    }


def _parquet(path: Path, rows: list[Row]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def _yaml(config: Config) -> str:
    """Return YAML, whose strings, lists and mappings may be JSON's, with calls of functions."""
    return "".join(f"{key}: {_flow(value)}\n" for key, value in config.items())


def _flow(value: object) -> str:
    if isinstance(value, Call):
        return f"!function {value}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)


def _json(path: Path, **content: object) -> None:
    path.write_text(json.dumps(content, indent=1))
