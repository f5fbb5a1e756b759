"""The cache of requests: built once, used while it is true, and never torn."""

import copy
import errno
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.request_caches import MAX_LENGTH, Home, requests
from tests.runs import PATIENCE_SECONDS

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.checkpoints.model import fit
from coordinate_eval.coordinator.prompts import request_cache
from coordinate_eval.coordinator.prompts.building import Progress, build_all
from coordinate_eval.coordinator.prompts.request_cache import Builder, Built, link
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import ForeignError, UserError
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    ItemRequests,
)

BUILD = """
import sys
from pathlib import Path
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.prompts.request_cache import Builder

cache, model, file, length = sys.argv[1:]
wanted = suite.load(file)
builder = Builder(Path(cache), checkpoint.inspect(Path(model)), wanted, "simulated", int(length))
print(builder.get(wanted.datasets[0]).index.key)
print("lm_eval" in sys.modules)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="module")
def first_built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Path]:
    """A home whose prompts are built, and a copy of all of its files."""
    folder = tmp_path_factory.mktemp("built")
    home = Home(folder / "home")
    home.get()
    return home, Path(shutil.copytree(home.folder, folder / "copy"))


@pytest.fixture
def built_home(first_built: tuple[Home, Path]) -> Home:
    """This home, with all that lies there as it was when its prompts had been built."""
    home, files = first_built
    shutil.rmtree(home.folder)
    shutil.copytree(files, home.folder)
    return copy.copy(home)


def test_offsets_find_every_item(built_home: Home) -> None:
    built = built_home.get()
    content = built.requests.read_bytes()
    offsets = built.index.offsets
    assert len(offsets) == built.index.items + 1 == 11
    assert offsets[-1] == len(content)
    for item, (begin, end) in enumerate(itertools.pairwise(offsets)):
        assert ItemRequests.model_validate_json(content[begin:end]).item == item
    assert built.index.requests == len(requests(built))
    assert built.index.key == built.requests.stem


def build_apart(home: Home) -> subprocess.Popen[str]:
    """Another command that builds the same."""
    args = [home.cache, home.model, home.suite_file(), MAX_LENGTH]
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, *map(str, args)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("nested", [False, True])
def test_prompts_with_tokens_that_the_model_lacks_are_refused(
    built_home: Home, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "check", lambda *_: None)  # which sees it before prompts do
    largest = max(max(r.tokens + r.continuation) for r in requests(built_home.get()))
    file = built_home.model / "config.json"
    config = json.loads(file.read_text())

    def vocabulary(size: int) -> None:
        own = {"text_config": {"vocab_size": size}} if nested else {"vocab_size": size}
        file.write_text(json.dumps(config | own))

    vocabulary(largest + 1)  # the tokenizer may have tokens that no prompt has
    assert built_home.builder().find(built_home.dataset) is not None
    vocabulary(largest)
    assert built_home.builder().find(built_home.dataset) is None
    with pytest.raises(UserError) as raised:
        built_home.get()
    said = f"the token id {largest}, and the model has 0 to {largest - 1} (vocab_size in {file})"
    assert said in str(raised.value)
    assert "--tokenizer" in str(raised.value)


def test_two_who_build_at_once_and_one_who_comes_later(home: Home) -> None:
    both = [build_apart(home), build_apart(home)]
    keys = [process.communicate(timeout=PATIENCE_SECONDS)[0].split()[0] for process in both]
    assert keys[0] == keys[1]
    assert [path.suffix for path in home.entries()] == [".json", ".jsonl"]
    before = [path.read_bytes() for path in home.entries()]
    key, loaded = build_apart(home).communicate(timeout=PATIENCE_SECONDS)[0].split()
    assert (key, loaded) == (keys[0], "False")  # the harness was not even imported
    assert [path.read_bytes() for path in home.entries()] == before


@pytest.mark.parametrize("storage", ["knows no locks", "never frees one"])
def test_storage_whose_locks_do_not_work_stops_nobody(
    home: Home, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    code = errno.ENOLCK if storage == "knows no locks" else errno.EAGAIN

    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(request_cache, "LOCK_SECONDS", 0.2)
    assert home.get().index.items == 10


def test_who_builds_for_a_run_that_has_the_requests_changes_nothing(built_home: Home) -> None:
    run_dir = RunDir(built_home.folder / "run")
    run_dir.requests_folder.mkdir(parents=True)
    first = built_home.get()
    link(first, run_dir, "cloze")
    edit_data(built_home)  # since then
    later = built_home.get()
    assert later.index.items < first.index.items
    link(later, run_dir, "cloze")
    index = _files.read_record(run_dir.requests_index("cloze"), DatasetRequests)
    assert index == first.index
    assert run_dir.requests("cloze").stat().st_size == index.offsets[-1]


def test_a_tokenizer_that_changes_before_it_is_copied_builds_nothing(home: Home) -> None:
    builder = home.builder()
    edit_tokenizer(home)
    with pytest.raises(UserError, match="the tokenizer changed"):
        builder.get(home.dataset)
    assert not home.entries()


def test_what_building_took_lies_with_what_was_built(home: Home) -> None:
    builder = home.builder()
    assert builder.find(home.dataset) is None
    began = time.time()
    made = builder.get(home.dataset)
    assert made.index.built is not None
    assert made.index.built >= began
    assert made.index.build_cpu_seconds is not None
    assert made.index.build_cpu_seconds > 0
    assert builder.find(home.dataset) == made  # from the cache, with the same figures


def test_it_is_said_what_is_built_and_how_long_it_may_take(home: Home) -> None:
    told: list[str] = []

    def tell(progress: Progress) -> None:
        if not progress.ended:
            told.append(str(progress))

    def build() -> None:
        build_all(home.builder, home.suite().datasets, processes=2, tell=tell)

    home.dataset = home.dataset.model_copy(update={"items": 10})
    build()
    build()  # from the cache
    assert told == ["cloze, 0 of 1 are ready, about 10.0 s left"]


def test_the_next_checkpoint_of_a_model_builds_nothing(built_home: Home) -> None:
    first = built_home.get()
    built_at = first.requests.stat().st_mtime_ns
    weights = built_home.model / "model.safetensors"
    weights.touch()
    assert built_home.get() == first
    assert first.requests.stat().st_mtime_ns == built_at


def edit_task(home: Home) -> None:
    path = home.tasks / "cloze.yaml"
    path.write_text(path.read_text() + 'description: "Fill in. "\n')


def edit_data(home: Home) -> None:
    lines = home.data.read_text().splitlines(keepends=True)
    home.data.write_text("".join(lines[:-1]))


def edit_tokenizer(home: Home) -> None:
    path = home.model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][-1] | {"content": "<x>", "id": 9999})
    path.write_text(json.dumps(tokenizer))


def ask_for_fewer_items(home: Home) -> None:
    home.dataset = home.dataset.model_copy(update={"limit": 5})


def shorten(home: Home) -> None:
    home.max_length = 64


def change_engine(home: Home) -> None:
    home.engine = "vllm"


@pytest.mark.parametrize(
    "change", [edit_task, edit_data, edit_tokenizer, ask_for_fewer_items, shorten, change_engine]
)
def test_what_requests_are_made_from_counts(
    built_home: Home, change: Callable[[Home], None]
) -> None:
    before = built_home.get()
    change(built_home)
    after = built_home.get()
    assert after.index != before.index
    assert built_home.get() == after


def test_a_tokenizer_that_is_exchanged_after_it_was_inspected_is_not_read(home: Home) -> None:
    secret = home.folder / "secret"
    secret.write_text("{}")
    secret.chmod(0o600)
    inspected = home.inspect()
    (home.model / "tokenizer.json").unlink()
    (home.model / "tokenizer.json").symlink_to(secret)
    with pytest.raises(UserError, match="may be somebody's secret"):
        Builder(home.cache, inspected, home.suite(), home.engine, home.max_length)


def test_no_copy_lies_where_everybody_can_exchange_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.folder / "everybody's"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(ForeignError, match="everybody can put another in its place"):
        home.get()
    assert not list(folder.iterdir())


def test_what_requests_are_not_made_from_does_not_count(built_home: Home) -> None:
    before = built_home.get()
    built_home.dataset = built_home.dataset.model_copy(update={"items": 10, "splittable": False})
    assert built_home.get() == before


def tear_index(built: Built) -> None:
    path = built.requests.with_suffix(".json")
    path.write_bytes(path.read_bytes()[:100])


def lose_index(built: Built) -> None:
    built.requests.with_suffix(".json").unlink()


def lose_requests(built: Built) -> None:
    built.requests.unlink()


def tear_requests(built: Built) -> None:
    built.requests.write_bytes(built.requests.read_bytes()[:-10])


@pytest.mark.parametrize("tear", [tear_index, lose_index, lose_requests, tear_requests])
def test_torn_entries_are_built_again(built_home: Home, tear: Callable[[Built], None]) -> None:
    built = built_home.get()
    content = built.requests.read_bytes()
    tear(built)
    again = built_home.get()
    took = {"built": built.index.built, "build_cpu_seconds": built.index.build_cpu_seconds}
    assert again.index.model_copy(update=took) == built.index
    assert again.requests.read_bytes() == content


def test_what_cannot_be_built_leaves_nothing(home: Home) -> None:
    home.dataset = Dataset(name="cloze", task="no_such_task")
    with pytest.raises(UserError, match="no_such_task"):
        home.get()
    home.dataset = Dataset(name="cloze", items=3)
    with pytest.raises(UserError, match="has no task"):
        home.get()
    assert list((home.cache / f"requests-{os.geteuid()}").iterdir()) == []
