"""Runs of two datasets whose trials and keepers run in this process, to be measured."""

from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Round,
    RoundNode,
    Run,
    read_run,
)
from coordinate_eval.records import (
    Checkpoint,
    CheckpointFormat,
    Dataset,
    EngineSettings,
    ItemRequests,
    Request,
    RequestKind,
    Shard,
    Suite,
)
from tests.run_dirs import write_requests

CHECKPOINT = Checkpoint(
    path="/c", identity="i", format=CheckpointFormat.SAFETENSORS, weights=[], files=[],
    bytes=2_000_000, parameters=1_000_000, dtype="bfloat16", max_length=64, attention_heads=1,
    kv_bytes_per_token=64,
)  # fmt: skip
ITEMS = 6


def request(dataset: str, item: int, index: int) -> Request:
    generates = dataset == "text"
    return Request(
        dataset=dataset, item=item, task=dataset, doc=item, index=index, prompt_hash="h",
        kind=RequestKind.GENERATE if generates else RequestKind.LOGLIKELIHOOD,
        tokens=[1, 2, 3], continuation=[] if generates else [4, 5], max_tokens=8 * generates,
    )  # fmt: skip


def measured_run(tmp_path: Path) -> RunDir:
    """Return a run of a generating and a scoring dataset, of three shards each, on one trial."""
    made = RunDir(tmp_path / "run")
    (tmp_path / "memory").mkdir()
    datasets = [Dataset(name="text", task="text"), Dataset(name="choice", task="choice")]
    settings = Settings(
        priors_dir=str(tmp_path / "priors"),
        engine=EngineSettings(name="simulated", args={"seconds_per_request": 0.001}),
        stage={"root": str(tmp_path / "memory")},  # type: ignore[arg-type]  # pydantic makes it one
    )
    shards = [
        Shard(dataset=d.name, start=s, stop=s + 2, gpu_seconds=1, metric_cpu_seconds=0)
        for d in datasets
        for s in range(0, ITEMS, 2)
    ]
    run = Run(
        id="step-1", nonce="abc", created=0, cluster="slurm", python="python", folder="/",
        checkpoint=CHECKPOINT, suite=Suite(name="s", digest="d", datasets=datasets),
        settings=settings, tensor_parallel=1, gpu_type="h100", max_length=64, staged_bytes=1,
        exclusive=False, asks=["text"], shards=shards,
    )  # fmt: skip
    _files.write_record(made.run, run)
    node = RoundNode(name="n", gpu_type="h100", trials=1)
    _files.write_record(made.round(0), Round(number=0, created=0, nodes=[node], minutes=30))
    _files.write(made.model / "config.json", '{"architectures": ["Llama"], "hidden_size": 64}')
    for dataset in datasets:
        asked = [[request(dataset.name, i, c) for c in range(2)] for i in range(ITEMS)]
        lines = [ItemRequests.of(item).line() for item in asked]
        write_requests(made, dataset.name, lines, requests=2 * ITEMS)
    return made


def record(run_dir: RunDir) -> Run:
    return read_run(run_dir)
