"""The store of observations: whole files, nothing twice, nothing foreign."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval.priors import store as module
from coordinate_eval.priors.observations import (
    DatasetSeen,
    Seen,
    StageSeen,
    Subject,
    TrialSeen,
    dump,
    parse,
    subject,
)
from coordinate_eval.priors.roofline import Conditions, Model
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Dataset

ON = Conditions(
    engine="vllm", gpu="h100",
    model=Model(parameters=7, bytes=14, kv_bytes_per_token=1, tensor_parallel=1),
)  # fmt: skip


def seen(run: str, dataset: str = "arc", requests: int = 10) -> DatasetSeen:
    return DatasetSeen(
        run=run, time=5.0, conditions=ON, dataset=dataset,
        subject=Subject(task=dataset, settings="x"), shards=1, items=5, requests=requests,
        prompt_tokens=100, output_tokens=0, scored_tokens=3, longest_output_tokens=0,
        gpu_seconds=2.5,
    )  # fmt: skip


def started(run: str) -> TrialSeen:
    return TrialSeen(run=run, time=5.0, conditions=ON, trial="n-0", start_seconds=12.0)


def staged(run: str) -> StageSeen:
    return StageSeen(
        run=run, time=5.0, conditions=ON, node="n", storage="/ckpts", bytes=14, seconds=2.0,
        at_once=1.5, converted=True,
    )  # fmt: skip


def test_what_is_put_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "not there yet")
    assert store.read() == []
    all_of_it: list[Seen] = [
        seen("a"), seen("a", "gsm8k"), started("a"), staged("a"), seen("b")
    ]  # fmt: skip
    assert store.put(all_of_it) == 2
    assert sorted(map(dump, store.read())) == sorted(map(dump, all_of_it))
    assert {p.name for p in store.folder.iterdir()} == {"a.jsonl", "b.jsonl"}


def test_a_resumed_run_replaces_what_it_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put([seen("a")])
    assert store.put([seen("a", requests=20), seen("a", "gsm8k")]) == 1
    assert sorted(s.requests for s in store.read() if isinstance(s, DatasetSeen)) == [10, 20]
    assert store.put([seen("a")]) == 0
    assert len(store.read()) == 2


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put([seen("a")])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"kind": "weather"}\nno json\n\n{"kind": "dataset"}\n' + dump(seen("a"))[:50])
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\n" + dump(seen("b")).encode())
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / ".c.jsonl.tmp").write_text(dump(seen("c")))
    (tmp_path / "d.jsonl").mkdir()
    assert sorted(s.run for s in store.read()) == ["a", "b"]


def test_only_the_newest_runs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWEST_RUNS", 2)
    store = Store(tmp_path)
    for number in range(5):
        store.put([seen(f"run{number}")])
        os.utime(tmp_path / f"run{number}.jsonl", (number, number))
    assert {s.run for s in store.read()} == {"run3", "run4"}


def test_of_what_cannot_be_read_little_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.put([seen("r1")])
    [line] = (tmp_path / "r1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "r2.jsonl").write_bytes(b"x\n" * 999 + line + b"x\n" * 2 + line)  # one too many
    tried: list[bytes] = []

    def noted(line: bytes) -> Seen:
        tried.append(line)
        return parse(line)

    monkeypatch.setattr(module, "parse", noted)
    assert len(store.read()) == 2
    assert len(tried) == 1 + 999 + 1 + 1


def test_of_all_files_together_so_much_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.put([seen("r1"), seen("r2"), seen("r3")])
    for number in (1, 2, 3):
        os.utime(tmp_path / f"r{number}.jsonl", (number, number))
    size = (tmp_path / "r1.jsonl").stat().st_size
    monkeypatch.setattr(module, "MOST_BYTES_IN_ALL", 2 * size)
    assert [one.run for one in store.read()] == ["r3", "r2"]


def test_many_write_at_once(tmp_path: Path) -> None:
    runs = [f"run{number}" for number in range(16)]
    threads = [
        threading.Thread(target=lambda run=run: Store(tmp_path).put([seen(run), started(run)]))
        for run in [*runs, *runs]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(s.run for s in Store(tmp_path).read()) == sorted([*runs, *runs])


def test_lines_of_a_newer_version_can_have_more_in_them() -> None:
    line = dump(seen("a")).replace('"run":"a"', '"run":"a","weather":"fine"')
    assert parse(line) == seen("a")


def test_a_run_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="letters"):
        Store(tmp_path / "store").put([seen("../x")])
    assert list(tmp_path.iterdir()) == []


def test_the_subject_of_a_dataset_is_what_it_asks() -> None:
    arc = Dataset(name="arc", task="arc_easy", num_fewshot=5)
    assert subject(arc) == subject(arc.model_copy(update={"name": "my-arc", "limit": 10}))
    assert subject(arc) != subject(arc.model_copy(update={"num_fewshot": 0}))
    assert subject(arc) != subject(arc.model_copy(update={"gen_kwargs": {"max_gen_toks": 9}}))
    assert subject(Dataset(name="x", items=3)).task == "x"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _without_an_end(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 36)  # which takes no space


@pytest.mark.parametrize("leave", [_pipe, Path.mkdir, _link_to_itself, _without_an_end])
def test_what_others_leave_in_the_store_hides_no_file(
    tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    store = Store(tmp_path)
    store.put([seen("a")])
    leave(tmp_path / "b.jsonl")
    assert [one.run for one in store.read()] == ["a"]
    assert store.put([seen("c")]) == 1
    assert sorted(one.run for one in store.read()) == ["a", "c"]


def test_a_pipe_in_place_of_a_runs_file_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    os.mkfifo(tmp_path / "b.jsonl")
    assert store.put([seen("b")]) == 1
    assert [one.run for one in store.read()] == ["b"]
