"""What engines compiled is used again: by the same user, for the same model, if it is whole."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.decisions import make_run

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.on_node import engine_cache
from coordinate_eval.coordinator.workers.on_node.engine_cache import EngineCache
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.coordinator.workers.signals import StopRequested
from coordinate_eval.coordinator.workers.trial import TrialRunner
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import base as engines


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


@pytest.fixture
def cache(node: Path, tmp_path: Path) -> EngineCache:
    return EngineCache(str(node), tmp_path / "cache", "key")


def settled(folder: Path, name: str, content: bytes) -> None:
    """A file that was written a while ago."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    os.utime(folder / name, (time.time() - 60,) * 2)


def kept(cache: EngineCache, **files: bytes) -> Path:
    """The archive of these files."""
    with cache.hold():
        for name, content in files.items():
            settled(cache.folder, f"a folder/{name}", content)
        cache.save()
    return cache._archive


def found(cache: EngineCache) -> dict[str, bytes]:
    """The files with which the next engine starts."""
    with cache.hold() as usable:
        assert usable
        files = [path for path in cache.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(cache.folder)): path.read_bytes() for path in files}


def test_the_next_run_has_the_files_at_the_same_place(cache: EngineCache, node: Path) -> None:
    kept(cache, one=b"1", two=b"2")
    assert list(node.iterdir()) == []  # the last process to leave has removed them
    assert found(cache) == {"a folder/one": b"1", "a folder/two": b"2"}


def test_who_is_stopped_while_the_files_are_unpacked_leaves_none(
    cache: EngineCache, node: Path, tmp_path: Path
) -> None:
    class Stopped(EngineCache):
        def _read(self, folder: Path) -> None:
            super()._read(folder)
            raise StopRequested

    kept(cache, one=b"1")
    with pytest.raises(StopRequested), Stopped(str(node), tmp_path / "cache", "key").hold():
        raise AssertionError("held")
    assert list(node.iterdir()) == []


def test_the_first_to_keep_files_wins(cache: EngineCache, tmp_path: Path) -> None:
    archive = kept(cache, one=b"1")
    kept(cache, two=b"2")
    assert found(cache) == {"a folder/one": b"1"}
    assert list(archive.parent.iterdir()) == [archive]


def replaced(cache: EngineCache, name: str, content: bytes) -> dict[str, bytes]:
    """The files that are kept after an engine has made another one."""
    with cache.hold():
        settled(cache.folder, name, content)
        cache.save()
    return found(cache)


def test_what_vllm_compiled_anew_is_kept_with_the_rest(cache: EngineCache) -> None:
    archive = kept(cache, one=b"1")
    compiled = f"{engine_cache.COMPILED}/another driver/rank_0_0"
    both = {"a folder/one": b"1", f"{compiled}/graph": b"2"}
    assert replaced(cache, f"{compiled}/graph", b"2") == both
    assert list(archive.parent.iterdir()) == [archive]
    # What a start leaves among what it has found is no reason to write all anew.
    assert replaced(cache, f"{compiled}/found", b"") == both


def test_what_another_node_has_kept_meanwhile_stays(cache: EngineCache, tmp_path: Path) -> None:
    kept(cache, one=b"1")
    (tmp_path / "there").mkdir()
    there = EngineCache(str(tmp_path / "there"), tmp_path / "cache", "key")
    here, other = (f"{engine_cache.COMPILED}/{name}" for name in ("here", "there"))
    with cache.hold():
        replaced(there, other, b"2")
        settled(cache.folder, here, b"3")
        cache.save()
    assert found(cache) == {"a folder/one": b"1", other: b"2"}


def test_files_that_have_become_too_many_are_compiled_anew(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = kept(cache, one=b"1")
    monkeypatch.setattr(engine_cache, "MOST_BYTES", 3)
    assert replaced(cache, f"{engine_cache.COMPILED}/graph", b"234") == {}
    assert not archive.exists()


def test_files_are_shared_and_removed_by_the_last(cache: EngineCache, tmp_path: Path) -> None:
    kept(cache, one=b"1")
    with cache.hold():
        settled(cache.folder, "compiled meanwhile", b"2")
        assert "compiled meanwhile" in found(cache)
        assert cache.folder.exists()
    assert not cache.folder.exists()


def test_files_that_are_being_written_are_not_kept(cache: EngineCache) -> None:
    with cache.hold():
        settled(cache.folder, "old", b"1")
        (cache.folder / "new").write_bytes(b"to")
        os.utime(cache.folder / "new", (time.time() + 60,) * 2)  # this test may take its time
        cache.save()
    assert not cache._archive.exists()


def test_too_many_bytes_are_not_kept(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_cache, "MOST_BYTES", 3)
    assert not kept(cache, one=b"1234").exists()
    assert "not kept" in capsys.readouterr().out


def test_only_the_keys_used_last_stay(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_cache, "MOST_KEPT", 2)
    caches = [EngineCache(str(node), tmp_path / "cache", name) for name in "abc"]
    for age, each in zip((50, 99, 0), caches, strict=True):
        archive = kept(each, one=b"1")
        os.utime(archive, (time.time() - age,) * 2)
    assert [each._archive.exists() for each in caches] == [True, False, True]


@pytest.mark.parametrize("how", ["writable", "torn", "link"])
def test_what_cannot_be_trusted_is_not_used(cache: EngineCache, how: str) -> None:
    archive = kept(cache, one=b"1")
    if how == "writable":
        archive.chmod(0o666)
    elif how == "torn":
        archive.write_bytes(archive.read_bytes()[:1000])
    else:
        archive.rename(archive.with_name("elsewhere"))
        archive.symlink_to("elsewhere")
    assert found(cache) == {}


def test_a_torn_archive_is_replaced(cache: EngineCache) -> None:
    archive = kept(cache, one=b"1")
    archive.write_bytes(archive.read_bytes()[:1000])
    kept(cache, one=b"1")
    assert found(cache) == {"a folder/one": b"1"}


def test_a_file_that_an_engine_removes_meanwhile_ends_no_trial(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: Path) -> None:
        raise FileNotFoundError(path)

    with cache.hold():
        settled(cache.folder, "one", b"1")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "lstat", gone)
            cache.save()
    assert found(cache) == {}


def test_files_with_which_no_engine_starts_are_forgotten(cache: EngineCache) -> None:
    kept(cache, one=b"1")
    cache.forget()
    assert found(cache) == {}
    cache.forget()


@pytest.mark.parametrize(
    ("words", "stay"),
    [
        ("vLLM failed: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("Free memory on device (20/139 GiB) is less than desired GPU memory utilization", True),
        ("vLLM failed: cannot load module graph_3.so", False),
    ],
    ids=["memory", "others fill the GPU", "a compiled file"],
)
def test_want_of_gpu_memory_says_nothing_of_what_was_compiled(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch, words: str, stay: bool
) -> None:
    run_dir = RunDir(tmp_path / "run")
    folders = {"cache_dir": str(tmp_path / "cache"), "stage": {"root": str(node)}}
    run = make_run(settings=folders)
    _files.write_record(run_dir.run, run)
    _files.write(run_dir.model / "config.json", "{}")
    # Nothing is set here that another test would see.
    monkeypatch.setenv("SOME_CACHE", "")
    compiles = SimpleNamespace(cache_variables=lambda _: {"SOME_CACHE": ""})
    monkeypatch.setattr(engines, "by_name", lambda _: compiles)
    key = engine_cache.key_of(
        run.settings, run.tensor_parallel, run.max_length, run_dir.model / "config.json"
    )
    archive = kept(EngineCache(str(node), tmp_path / "cache", key), one=b"1")
    runner = TrialRunner(run_dir, "n1-0", "n1", 0, time.time() + 60)
    with pytest.raises(EngineError), runner._compiled_files():
        raise EngineError(words)
    assert archive.exists() == stay


def test_what_killed_trials_leave_is_removed_by_the_next_keeper(
    cache: EngineCache, node: Path
) -> None:
    user = cache.folder.parent.parent
    with StagedWeights(str(node), "run", "node").hold():
        cache.folder.mkdir(parents=True)
        cache.folder.with_name("key.lock").touch()
        weights = StagedWeights(str(node), "another", "node")
        with weights.hold():
            assert weights.remove_abandoned() == [cache.folder]
        assert not (user / "engines").exists()


def test_a_key_is_that_of_the_model_and_not_of_the_checkpoint(tmp_path: Path) -> None:
    def key(gpus: int = 1, **entries: object) -> str:
        config = tmp_path / "config.json"
        config.write_text(json.dumps({"hidden_size": 64} | entries))
        return engine_cache.key_of(Settings(), gpus, 4096, config)

    assert key(_name_or_path="step-1") == key(_name_or_path="step-2")
    assert len({key(), key(gpus=8), key(hidden_size=128)}) == 3
