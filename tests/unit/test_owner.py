"""Files are used if they are the user's own, and nobody else can write to them.

Those of a second user are in tests/integration/test_other_users.py, which needs root.
"""

import grp
import os
import pwd
import struct
from pathlib import Path

import pytest
from tests import plans

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.plan import PlanEngine, PlanSuite
from coordinate_eval.coordinator.run.own import enter, own
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.starting.create import create
from coordinate_eval.errors import ForeignError, RecordError


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory that nobody else can write to."""
    made = RunDir(tmp_path / "run")
    _files.write(made.run, "{}")
    made.jobs_folder.mkdir()
    for folder in (made.root, made.jobs_folder):
        folder.chmod(0o755)
    made.run.chmod(0o644)
    return made


def test_ones_own_is_read(run: RunDir) -> None:
    assert own(run.root).root == run.root
    assert _files.read(run.run) == b"{}"


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_a_file_that_others_can_write_is_not_read(run: RunDir, mode: int) -> None:
    run.run.chmod(mode)
    for read in (_files.read, _files.read_json, lambda p: list(_files.lines(p)),
                 lambda p: list(_files.whole_lines(p))):  # fmt: skip
        with pytest.raises(ForeignError, match=f"mode {mode:04o}.*chmod"):
            read(run.run)


def test_links_and_pipes_are_not_read(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.run)
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("link", "is a link"), ("pipe", "no regular file")):
        with pytest.raises(ForeignError, match=words):
            _files.read(tmp_path / name)
    with pytest.raises(OSError, match="link"):
        _files.open_to_write(tmp_path / "link")


@pytest.mark.parametrize("place", ["", "jobs"])
def test_a_folder_that_others_can_write_is_refused(run: RunDir, place: str) -> None:
    (run.root / place).chmod(0o777)
    with pytest.raises(ForeignError, match="mode 0777"):
        own(run.root)


def test_a_folder_in_a_run_is_no_link(run: RunDir, tmp_path: Path) -> None:
    run.logs.symlink_to(tmp_path)
    with pytest.raises(ForeignError, match="is a link"):
        own(run.root)


def test_what_everybody_can_replace_is_refused(run: RunDir, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ForeignError, match=f"{tmp_path} has mode 0777"):
        own(run.root)
    for shared in (0o1777, 0o2770, 0o775):  # /tmp, and folders of a project
        tmp_path.chmod(shared)
        assert own(run.root).root == run.root


def test_a_missing_run_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        own(tmp_path / "nothing")


def test_ones_private_group_is_oneself(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each user has a group, files are group-writable by habit."""
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(
        ("ada", "x", 1000, os.getgid(), "", "/", "")))  # fmt: skip
    members: list[str] = []
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("ada", "x", gid, members)))
    run.run.chmod(0o664)
    os.chown(run.run, -1, os.getgid())
    try:
        _owner._private_group.cache_clear()
        assert _files.read(run.run) == b"{}"
        members.append("bob")
        _owner._private_group.cache_clear()
        with pytest.raises(ForeignError, match="mode 0664"):
            _files.read(run.run)
    finally:
        _owner._private_group.cache_clear()


def test_what_is_only_shown_may_be_anybodys(run: RunDir) -> None:
    run.run.chmod(0o666)
    run.root.chmod(0o777)
    with _owner.for_show():
        assert own(run.root).root == run.root
        assert _files.read(run.run) == b"{}"
    with pytest.raises(ForeignError):
        own(run.root)


def test_processes_work_in_an_empty_folder(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert enter(run.root).root == run.root
    assert Path.cwd() == run.work
    assert list(run.work.iterdir()) == []
    assert run.work.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's folder: what is made in it can be written by its group, whatever the umask.

    As after `setfacl -d -m u::rwx,g::rwx,o::rx`, in the form of linux/posix_acl_xattr.h.
    """
    entries = ((0x01, 7), (0x04, 7), (0x20, 5))
    packed = b"".join(struct.pack("<HHI", tag, rights, 0xFFFFFFFF) for tag, rights in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", struct.pack("<I", 2) + packed)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mode & 0o020
    return tmp_path


def test_a_run_in_a_projects_folder_is_ones_own(project: Path) -> None:
    place = plans.capacity(nodes=1, trials=1)
    plan = planner.plan_on_capacity(
        plans.CHECKPOINT,
        PlanSuite(name="s", digest="d"),
        PlanEngine(name="vllm", args={}),
        plans.costs(1),
        place,
    )
    run = plans.planned(plan, place).run
    made = create(project / "runs" / "run", run)
    _files.write(made.jobs_folder / "job.json", "{}")
    assert own(made.root).root == made.root
    assert [p for p in made.root.rglob("*") if p.stat().st_mode & 0o022] == []
    assert [path.name for path in made.root.parent.iterdir()] == ["run"]


def test_a_cache_in_a_projects_folder_is_ones_own(project: Path) -> None:
    _files.make_closed(project / "cache" / "requests")
    _files.write(project / "cache" / "requests" / "key.json", "{}")
    assert _files.read(project / "cache" / "requests" / "key.json") == b"{}"
