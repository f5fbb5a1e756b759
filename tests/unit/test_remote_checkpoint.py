"""Checkpoints in a store: found, described and staged as the same files of a folder are."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from fsspec import register_implementation
from tests.stores import Shelf, new_shelf, put
from tests.tiny import sharded, tiny_model

from coordinate_eval.coordinator.inputs.checkpoints import kept_files, remote, store
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect, named
from coordinate_eval.coordinator.inputs.checkpoints.mixed import adapter
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import members, up_to
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, look
from coordinate_eval.coordinator.inputs.folders import check_new, check_writable
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.workers.on_node import fetching
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import StoreSilent, UserError
from coordinate_eval.records import Checkpoint

URL = "shelf://bucket/a run's 'best'/step-1000"


@pytest.fixture(autouse=True)
def _shelf() -> Iterator[None]:
    new_shelf()
    remote.forget()
    yield
    new_shelf()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("transformers")
    return sharded(Path(shutil.copytree(tiny_model(), tmp_path / "step-1000")))


@pytest.fixture
def found(folder: Path, tmp_path: Path) -> Checkpoint:
    return inspect(put(folder, URL), cache=tmp_path / "cache")


def staged(place: StagedWeights) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes() for file in place.folder.iterdir() if file.stem != "manifest"
    }


def test_it_is_described_as_its_folder_without_its_weights(folder: Path, found: Checkpoint) -> None:
    said = {"path", "weights", "files", "identity"}
    assert found.model_dump(exclude=said) == inspect(folder).model_dump(exclude=said)
    assert found.path == URL
    assert found.remote
    assert [Path(file).read_bytes() for file in found.files] == [
        (folder / Path(file).name).read_bytes() for file in found.files
    ]
    assert all(start == 0 and end <= remote.HEAD_BYTES for name, start, end in Shelf.read
               if name.endswith(".safetensors"))  # fmt: skip
    assert len({(name, start) for name, start, _ in Shelf.read}) == len(Shelf.read)  # each once
    assert named(found) == remote.located(URL)
    assert inspect(Path(f"{URL}/")) == inspect(Path(URL))


def test_it_is_staged_as_its_folder(folder: Path, found: Checkpoint, root: Path) -> None:
    place = StagedWeights(str(root), "run", "node")
    reports: list[int] = []
    with place.hold():
        assert place.copy(found, reports.append)
        from_store = staged(place)
    other = StagedWeights(str(root), "run", "other")
    with other.hold():
        assert other.copy(inspect(folder))
        assert from_store == staged(other)
    assert reports[-1] == found.bytes


def test_an_object_that_changed_is_refused(folder: Path, found: Checkpoint, root: Path) -> None:
    place = StagedWeights(str(root), "run", "node")
    name = found.weights[0]

    def change(path: str, start: int) -> None:
        Shelf.before = None
        Shelf().pipe(name, bytes(len(Shelf().cat(name))))

    Shelf.before = change
    for _ in range(2):  # while it is copied, and before
        with place.hold():
            with pytest.raises(UserError, match="changed after it was submitted"):
                place.copy(found)
            assert not place.folder.exists()
    Shelf().rm(name)
    with place.hold(), pytest.raises(UserError, match="was deleted before it was copied"):
        place.copy(found)


def test_copies_of_its_small_files_are_mended_and_missed_by_name(
    found: Checkpoint, tmp_path: Path, root: Path
) -> None:
    copy = next(Path(file) for file in found.files if file.endswith("tokenizer.json"))
    whole = copy.read_bytes()
    copy.write_bytes(b"\0" * len(whole))
    assert inspect(Path(URL), cache=tmp_path / "cache") == found
    assert copy.read_bytes() == whole
    copy.unlink()
    place = StagedWeights(str(root), "run", "node")
    with pytest.raises(UserError, match=r"tokenizer\.json, which .* Submit it again"), place.hold():
        place.copy(found)


def test_who_goes_on_fetches_the_rest_alone(
    found: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "RANGE_BYTES", 16 << 10)
    paths = list(map(remote.located, found.weights))

    def fail(path: str, start: int) -> None:
        if path.endswith(paths[-1].name) and start:
            raise PermissionError("expired")

    Shelf.before = fail
    with pytest.raises(UserError, match=r"expired.*Give the credentials"):
        fetching.fetch_files(paths, tmp_path, lambda _: None)
    before = {(name, start) for name, start, _ in Shelf.read}
    Shelf.before = None
    Shelf.read.clear()
    reports: list[int] = []
    fetching.fetch_files(paths, tmp_path, reports.append)
    assert Shelf.read
    assert not before & {(name, start) for name, start, _ in Shelf.read if start}
    assert reports[-1] == found.bytes
    for path in paths:
        assert (tmp_path / path.name).read_bytes() == Shelf().cat(str(path))
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob("*.ranges"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("shelf://bucket/none", "does not exist: the store has no such bucket"),
        ("unheard://bucket/run", "fsspec knows no protocol unheard"),
        ("https://host/run", "not in an object store"),
        ("dir://::file:///etc", "not in an object store"),
        ("simplecache::s3://bucket/run", "^simplecache::s3://bucket/run is not in an object"),
    ],
)
def test_what_cannot_be_read_is_said(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        inspect(Path(url))


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:pass@bucket/run",
        "s3://user:with/slash/pass@bucket/run",
        "S3://user:pass@bucket/run",
        "simplecache::s3://user:pass@bucket/run",
        "s3://bucket/run?X-Amz-Signature=pass",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UserError, match="has a password or a query") as raised:
        inspect(Path(url))
    assert "pass@" not in str(raised.value)
    assert "slash" not in str(raised.value)
    assert "=pass" not in str(raised.value)


def test_a_store_that_tells_no_version_is_refused(folder: Path, tmp_path: Path) -> None:
    Shelf.tagging = False
    with pytest.raises(UserError, match=r"tells no version of shelf://.*Copy the checkpoint"):
        inspect(put(folder, URL), cache=tmp_path)


def test_a_port_is_no_password() -> None:
    assert str(remote.located("hdfs://host:8020/a@b/run")) == "hdfs://host:8020/a@b/run"


def test_a_folder_of_many_checkpoints_is_said_after_a_few_requests() -> None:
    for step in range(30):
        Shelf().pipe(f"shelf://bucket/runs/step-{step}/model.safetensors", b"weights")
    with pytest.raises(UserError, match="20 or more checkpoints") as raised:
        inspect(Path("shelf://bucket/runs"))
    assert "coordinate-eval watch shelf://bucket/runs" in str(raised.value)
    assert len(Shelf.listed) < 30
    assert max(saved.step or 0 for saved in look(Path("shelf://bucket/runs"), Pattern(None))) == 29


def test_a_folder_of_more_names_than_any_checkpoint_has_is_refused() -> None:
    Shelf().pipe("shelf://bucket/runs/a/model.safetensors", b"weights")
    Shelf.crowded = "/bucket/runs"
    with pytest.raises(UserError, match=r"shelf://bucket/runs has more than 50,000 names"):
        inspect(Path("shelf://bucket/runs"))
    with pytest.raises(UserError, match=r"no config\.json"):  # it is above, and may hold anything
        inspect(Path("shelf://bucket/runs/a"))


def test_what_is_saved_in_a_store_is_seen_as_in_a_folder(tmp_path: Path) -> None:
    for name in ("step-1/a", "step-1/STABLE", "step-2/a", "step-2/rank-0/b", "logs/c", "step-3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    url = put(tmp_path, "shelf://bucket/run")

    def found() -> list[tuple[str, int | None, str | None]]:
        return [(each.path.name, each.step, each.lacks) for each in look(url, Pattern(None))]

    assert found() == [("step-2", 2, "STABLE"), ("step-1", 1, None)]
    assert found() == [(s.path.name, s.step, s.lacks) for s in look(tmp_path, Pattern(None))]
    before = {each.path: each.state for each in look(url, Pattern(None))}
    Shelf().pipe("shelf://bucket/run/step-2/rank-0/b", b"step-2/rank-0/c")
    after = {each.path: each.state for each in look(url, Pattern(None))}
    assert [path.name for path in after if after[path] != before[path]] == ["step-2"]
    with pytest.raises(UserError, match=r"shelf://bucket/none cannot be read: the store has noth"):
        look(Path("shelf://bucket/none"), Pattern(None))


def test_an_average_is_staged_as_that_of_folders(folder: Path, tmp_path: Path, root: Path) -> None:
    pytest.importorskip("torch")
    urls = [put(folder, f"shelf://bucket/run/step-{step}") for step in (10, 20)]
    soup = "average: [step-10, ../run/step-20]"
    Shelf().pipe("shelf://bucket/run/soup.yaml", soup.encode())
    (tmp_path / "soup.yaml").write_text(f"average: [{', '.join(map(str, urls))}]")
    found = inspect(members(urls, None), cache=tmp_path)
    place = r"shelf://bucket/run/average of 2: step-10…step-20 \([0-9a-f]{6}\)"
    assert re.fullmatch(place, found.path)
    assert found.remote
    assert inspect(up_to(urls[1], 2), cache=tmp_path) == found
    for file in (Path("shelf://bucket/run/soup.yaml"), tmp_path / "soup.yaml"):
        assert inspect(file, cache=tmp_path).identity == found.identity
    other = members([urls[0], folder, Path("shelf://other/step-20")], None)
    assert str(other.place).startswith("shelf://other/average of 3: step-10…step-20")
    kept = StagedWeights(str(root), "run", "node")
    with kept.hold():
        assert kept.copy(found)
        averaged = staged(kept)
    alone = StagedWeights(str(root), "run", "other")
    with alone.hold():
        assert alone.copy(inspect(folder))
        whole = staged(alone)
    assert averaged["config.json"] == whole["config.json"]
    assert _tensors(averaged, tmp_path) == _tensors(whole, tmp_path)


def _tensors(files: dict[str, bytes], folder: Path) -> dict[str, list[float]]:
    """Read the tensors of safetensors, of which there may be several files."""
    load = pytest.importorskip("safetensors.torch").load
    return {
        name: tensor.float().flatten().tolist()
        for file, content in files.items()
        if file.endswith(".safetensors")
        for name, tensor in load(content).items()
    }


def test_a_file_above_says_what_stands_in(folder: Path, tmp_path: Path) -> None:
    whole = inspect(put(folder, "shelf://bucket/model"), cache=tmp_path)
    url = put(folder, "shelf://bucket/all/run/step-10")
    for file in list(Shelf.store):
        if file.startswith("/bucket/all/") and not file.endswith((".safetensors", ".index.json")):
            del Shelf.store[file]
    with pytest.raises(UserError, match=r"no config\.json.*coordinate-eval\.yaml"):
        inspect(url, cache=tmp_path)
    said = b"config: ../model/config.json\ntokenizer: shelf://bucket/model\n"
    Shelf().pipe("shelf://bucket/all/coordinate-eval.yaml", said)
    assert inspect(url, cache=tmp_path).files == whole.files  # copies are known by content
    for path in ("/etc/passwd", "../../../../etc/passwd"):
        Shelf().pipe("shelf://bucket/all/coordinate-eval.yaml", f"tokenizer: {path}".encode())
        with pytest.raises(UserError, match="names no local files"):
            inspect(url, cache=tmp_path)


def test_copies_that_no_run_needs_are_removed_after_a_day(
    found: Checkpoint, tmp_path: Path
) -> None:
    kept_files.remove_unused(tmp_path / "cache", [], 0)
    (folder,) = {Path(file).parent for file in found.files}
    assert folder.is_dir()
    os.utime(folder, (0, 0))
    kept_files.remove_unused(tmp_path / "cache", found.all_files, 0)
    assert folder.is_dir()
    kept_files.remove_unused(tmp_path / "cache", [], 0)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["/{}", "a::file", "x/../a::file:/{}"])
def test_names_in_a_store_lead_to_no_local_file(tmp_path: Path, name: str) -> None:
    """Local files are read as such alone, which checks whose they are and where links lead."""
    secret = tmp_path / "secret"
    secret.write_text("of somebody")
    Shelf().pipe("shelf://bucket/run/a", b"content")
    path = remote.located("shelf://bucket/run") / name.format(str(secret)[1:])
    assert not path.exists()
    assert not list(path.parent.iterdir()) or str(path.parent) == "shelf://bucket/run"
    with pytest.raises(FileNotFoundError):
        remote.fetch(remote.RemotePath(path), 0, 2)


def test_the_local_base_of_an_adapter_is_checked_as_a_local_folder(tmp_path: Path) -> None:
    said = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path)}
    Shelf().pipe("shelf://bucket/run/adapter_config.json", json.dumps(said).encode())
    config = adapter.AdapterConfig(remote.located("shelf://bucket/run/adapter_config.json"))
    base = adapter.find_base(config, None)
    assert base == tmp_path
    assert not isinstance(base, remote.RemotePath)


def test_runs_need_a_file_system() -> None:
    with pytest.raises(UserError, match="setting runs_dir: s3:/bucket/runs is in a store"):
        check_writable(Settings(runs_dir="s3://bucket/runs"), "runs_dir")
    with pytest.raises(UserError, match="run directory s3:/bucket/run is in a store"):
        check_new(Path("s3://bucket/run"))


def test_a_store_that_fails_is_said(folder: Path, found: Checkpoint, tmp_path: Path) -> None:
    def fail(path: str, start: int) -> None:
        raise PermissionError("403 for https://key@host/x?sig=secret")

    Shelf.before = fail
    with pytest.raises(UserError, match="credentials") as raised:
        inspect(Path(URL), cache=tmp_path)
    assert "secret" not in str(raised.value)
    assert "key" not in str(raised.value)


def test_what_torch_saved_is_read_in_ranges(folder: Path, tmp_path: Path, root: Path) -> None:
    torch = pytest.importorskip("torch")
    load = pytest.importorskip("safetensors.torch").load_file
    tensors = {k: v for file in folder.glob("*.safetensors") for k, v in load(file).items()}
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save(tensors, folder / "model.pt")
    found = inspect(put(folder, URL), cache=tmp_path / "cache")
    looked = sum(end - start for name, start, end in Shelf.read if name.endswith(".pt"))
    assert looked < 1 << 19
    made = []
    for name, checkpoint in {"node": found, "other": inspect(folder)}.items():
        place = StagedWeights(str(root), "run", name)
        with place.hold():
            assert place.copy(checkpoint)
            made.append(staged(place))
    read = sum(end - start for name, start, end in Shelf.read if name.endswith(".pt"))
    assert read <= 2 * looked + found.bytes  # the headers twice, and each tensor once
    assert made[0] == made[1]
    assert json.loads(made[0]["config.json"])


def test_a_store_that_does_not_answer_is_said_and_asked_no_more() -> None:
    silent = Event()
    with pytest.raises(StoreSilent, match=r"bucket/run cannot be read.*no answer.*Check the"):
        store.ask("shelf://bucket/run", silent.wait, seconds=0.01)
    silent.set()
    with pytest.raises(StoreSilent, match=r"bucket/run cannot be read"):
        remote.located("shelf://bucket/other").exists()
    assert not Shelf.listed
    remote.forget()
    assert not remote.located("shelf://bucket/other").exists()


def test_a_range_that_is_cut_short_once_is_asked_for_again(folder: Path, tmp_path: Path) -> None:
    def fail(path: str, start: int) -> None:
        Shelf.before = None
        raise OSError("12 bytes came instead of 14")

    Shelf.before = fail
    assert inspect(put(folder, URL), cache=tmp_path)


class _OfAzure(Exception):
    status_code = 403


@pytest.mark.parametrize(
    "error",
    [
        OSError("Forbidden: https://storage.googleapis.com/b/bucket/o"),
        _OfAzure("This request is not authorized"),
        RuntimeError("Unable to locate credentials"),
    ],
)
def test_a_refusal_in_the_words_of_any_package_is_told_from_a_failure(error: Exception) -> None:
    Shelf().pipe("shelf://bucket/run/a", b"content")

    def fail(path: str, start: int) -> None:
        raise error

    Shelf.before = fail
    with pytest.raises(UserError, match="with this user's credentials") as raised:
        remote.fetch(remote.RemotePath("shelf:/bucket/run/a"), 0, 2)
    assert not isinstance(raised.value, StoreSilent)
    assert remote.located("shelf://bucket/run").exists()


class _Lying(Shelf):
    """A store of S3's protocol with one page, which is that of every listing."""

    protocol = ("lying",)
    req_kw: dict[str, str] = {}  # noqa: RUF012
    page: dict[str, object] = {}  # noqa: RUF012

    def connect(self) -> None:
        """Do nothing: it is connected."""

    def split_path(self, path: str) -> tuple[str, str, None]:
        return "bucket", path, None

    def call_s3(self, *_: object, **__: object) -> dict[str, object]:
        return self.page


@pytest.mark.parametrize(
    "page",
    [
        {"Contents": [{"Key": "run/a", "Size": 1}], "IsTruncated": True},
        {"Contents": [{"Key": "run/a", "Size": 1}], "IsTruncated": True,
         "NextContinuationToken": "the same"},
        {"Contents": [{"Key": "run/a"}]},
        {"CommonPrefixes": [{}]},
    ],
)  # fmt: skip
def test_a_listing_that_makes_no_sense_is_a_store_that_does_not_answer(
    page: dict[str, object],
) -> None:
    register_implementation("lying", _Lying, clobber=True)
    _Lying.page = page
    with pytest.raises(StoreSilent, match=r"lying://bucket/run cannot be read"):
        list(remote.located("lying://bucket/run").iterdir())
