"""What the model wrote runs in the scoring of some tasks. It reaches nothing of this machine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from tests.random_examples import LONG
from tests.runs import PATIENCE_SECONDS, TASKS, until
from tests.scoring import (
    EVALUATES,
    KEEPS,
    NOBODY,
    Scored,
    make_scorable,
    start_scorer,
    wait_for,
    write_metric,
)

from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.evaluators.confined.run_files import ResponseFiles
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import Dataset

SECRET = "s3cret-of-the-user"


class User:
    """A user with a private key, a token and a listening service, and tasks that evaluate text."""

    def __init__(self, folder: Path, port: int, *, ordinary: bool, bubblewrap: bool) -> None:
        self.ordinary, self.bubblewrap, self.port = ordinary, bubblewrap, port
        self.root, self.home, self.tasks = folder / "run", folder / "home", folder / "tasks"
        self.key = self.home / ".ssh" / "id_ed25519"
        self.token = self.home / ".cache" / "huggingface" / "token"
        for file in (self.key, self.token):
            file.parent.mkdir(parents=True)
            file.write_text(SECRET)
        self.tasks.mkdir()
        if ordinary:
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        self.environ = {"HOME": str(self.home), "HF_TOKEN": SECRET, "A_KEY": SECRET}
        if not bubblewrap:
            self.environ["PATH"] = str(folder / "bin")

    def run(self, evil: Mapping[str, list[str]], gib: float = 2, after: str = KEEPS) -> RunDir:
        """A run of datasets that evaluate these texts. Before and after each is another one."""
        responses = {}
        for name, texts in evil.items():
            parts = {
                "before": (KEEPS, ["1", "2"]),
                name: (EVALUATES, texts),
                "after": (after, ["1"]),
            }
            for part, (metric, answers) in parts.items():
                dataset = part if part == name else f"{part}_{name}"
                write_metric(self.tasks, dataset, metric, len(answers))
                responses[dataset] = answers
        return make_scorable(self.root, self.tasks, responses, harness={"memory_gib": gib})

    def scored(self, evil: Mapping[str, list[str]], gib: float = 2, after: str = KEEPS) -> Scored:
        """What its scorer makes of it; of the other datasets what they are worth."""
        run_dir = self.run(evil, gib, after)
        scored = wait_for(start_scorer(run_dir, self.environ, ordinary=self.ordinary), run_dir)
        assert scored.status == 0, scored.said
        for name in evil:
            for other, worth in ((f"before_{name}", 0.5), (f"after_{name}", 1.0)):
                assert scored.results[other].results[other]["acc,none"] == worth, scored.said
        return scored


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a service on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


USERS = ("bubblewrap-root", "namespaces-ordinary", "bubblewrap-ordinary", "namespaces-root")
"""What confines, and whom. Each means of both is in the first two."""


@pytest.fixture
def user(request: pytest.FixtureRequest, service: int) -> Iterator[User]:
    means, _, who = request.param.partition("-")
    bubblewrap, ordinary = means == "bubblewrap", who == "ordinary"
    if not ordinary and os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory() as name:  # pytest's own is for its user alone
        folder = Path(name)
        folder.chmod(0o755)
        yield User(folder, service, ordinary=ordinary, bubblewrap=bubblewrap)


some_users = pytest.mark.parametrize("user", USERS if LONG else USERS[:2], indirect=True)


def tried_by(user: User, attacks: Mapping[str, str]) -> dict[str, str]:
    """Return every attack, or in a short run those of this one of the first two users by turns."""
    first = (user.bubblewrap, user.ordinary) == (True, False)
    names = list(attacks)
    return {name: attacks[name] for name in (names if LONG else names[0 if first else 1 :: 2])}


OS, SOCKET = "__import__('os')", "__import__('socket')"
ALL_OF_PROC = f"(p for p in {OS}.listdir('/proc') if p.isdigit())"


def quiet_attacks(user: User) -> dict[str, str]:
    """Expressions that are true if they reach what they must not."""
    return {
        "read a private key": f"open({str(user.key)!r}).read()",
        "see the home folder": f"{OS}.listdir({str(user.home)!r})",
        "run a command on the key": f"{OS}.system('cat {user.key} > /dev/null') == 0",
        "read the hub's token": f"open({str(user.token)!r}).read()",
        "write into the home folder": f"open({str(user.home / 'x')!r}, 'w')",
        "write another's results": f"open({str(user.root / 'results' / 'after_evil.json')!r}, 'w')",
        "write its own responses": f"open({str(user.root / 'outputs' / 'evil' / 'x')!r}, 'w')",
        "write its own results": f"open({str(user.root / 'results' / 'evil.json')!r}, 'w')",
        "write a task": f"open({str(user.tasks / 'evil_metric.py')!r}, 'a')",
        "read another's responses": f"{OS}.listdir({str(user.root / 'outputs' / 'after_evil')!r})",
        "read a variable": f"'{SECRET[:4]}' in str({OS}.environ)",
        "read others' variables": (
            f"any(b'{SECRET}' in open(f'/proc/{{p}}/environ', 'rb').read() for p in {ALL_OF_PROC})"
        ),
        "see the scorer": (
            f"any(b'_score' in open(f'/proc/{{p}}/cmdline', 'rb').read() for p in {ALL_OF_PROC})"
        ),
        "open a socket": f"{SOCKET}.create_connection(('127.0.0.1', {user.port}), 5)",
        "have a capability": (
            "int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16)"
        ),
        "change the kernel": "open('/proc/sys/kernel/core_pattern', 'w')",
        "press a key of the kernel": "open('/proc/sysrq-trigger', 'w')",
        "write a packages' folder": f"open({OS}.__file__, 'a')",
        "read the shadow file": "open('/etc/shadow').read()",
        "write into the mother": "open('/proc/1/mem', 'r+b')",
        "use the mother's files": (
            f"any({OS}.access(f'/proc/1/fd/{{n}}', 4) for n in {OS}.listdir('/proc/1/fd'))"
        ),
        "signal the mother": f"{OS}.kill(1, 0) is None",
        "become somebody else": f"{OS}.setuid(12345) is None",
    }


@pytest.mark.hostile
@some_users
def test_what_it_evaluates_reaches_nothing(user: User) -> None:
    attacks = quiet_attacks(user)
    texts = ["1"] + [f"{2**n} if {what} else 0" for n, what in enumerate(attacks.values(), 1)]
    # The run lies below /tmp, of which the process has one of its own.
    texts.append(f"0 * bool(open({str(user.root.parent / 'x')!r}, 'w'))")
    scored = user.scored({"evil": texts})
    assert scored.errors == {}, scored.said
    reached = round(scored.results["evil"].results["evil"]["acc,none"] * len(texts))
    assert reached % 2 == 1, "nothing was evaluated"
    assert [name for n, name in enumerate(attacks, 1) if reached >> n & 1] == []
    assert sorted(path.name for path in user.root.parent.iterdir()) == ["home", "run", "tasks"]


def write_to_all(what: str) -> str:
    """An expression that writes to every descriptor but the standard ones."""
    lines = ["for n in range(3, 50):", f" try: {OS}.write(n, {what})", " except OSError: pass"]
    return f"exec({chr(10).join(lines)!r})"


ENDING_ATTACKS = {
    "kill all": f"{OS}.kill(-1, 9)",
    "kill its parent": f"{OS}.kill({OS}.getppid(), 9)",
    "end itself": f"{OS}._exit(0)",
    "fork on": f"[[{OS}.fork() for n in range(8)], __import__('time').sleep(1000)]",
    "fill memory": "len([bytearray(b'x' * (64 << 20)) for n in range(1000)])",
    "fill memory in children": (
        f"[{OS}.fork() or [b'x' * (256 << 20), __import__('time').sleep(1000)] for n in range(30)]"
    ),
    "close all": f"{OS}.closerange(0, 1000)",
    "flood": write_to_all("b'x' * (5 << 20)"),
}


def forged(name: str, right: int) -> str:
    """A reply of the process of this dataset, and of one of another."""
    scores = f'{{"{name}":{{"acc,none":{right}}},"after_{name}":{{"acc,none":0}}}}'
    return f'{{"number":2,"results":{{"dataset":"{name}","items":2,"results":{scores}}}}}'


@pytest.mark.hostile
@some_users
def test_what_ends_its_process_or_forges_a_reply_concerns_its_own_dataset(user: User) -> None:
    ending = tried_by(user, ENDING_ATTACKS)
    evil = {f"evil{n}": [attack, "1"] for n, attack in enumerate(ending.values())}
    reply = f"{forged('writes', 1)}\n".encode()
    evil["writes"] = [write_to_all(repr(reply)), "0"]
    evil["prints"] = [
        f"[print({forged('prints', 1)!r}, flush=True), {OS}.system('echo x')] and 0",
        "0",
    ]
    scored = user.scored(evil, gib=1)
    for what, name in zip(ending, evil, strict=False):
        if name in scored.results:  # an error in its evaluation is a wrong answer
            assert scored.results[name].results[name]["acc,none"] == 0.5, what
        else:
            assert scored.errors[name].startswith("3 times, "), (what, scored.said)
    assert "was disturbed" in scored.errors["writes"]
    assert scored.results["prints"].results["prints"]["acc,none"] == 0.0


def test_scores_are_those_of_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with data at relative paths, few-shot examples, windows, votes and random numbers."""
    monkeypatch.chdir(TASKS)
    names = ["tiny_group", "tiny_mutual", "tiny_prose", "tiny_cloze", "tiny_votes", "tiny_guess"]
    texts = ["is 3.", "is 4.", "7"]
    run_dir = make_scorable(tmp_path / "run", TASKS, dict.fromkeys(names, texts))
    scored = wait_for(start_scorer(run_dir, {"HOME": str(tmp_path)}), run_dir)
    assert (scored.status, scored.errors) == (0, {}), scored.said
    evaluator = HarnessEvaluator(
        tokenizer=run_dir.model, max_length=1024, include_path=[str(TASKS)]
    )
    for name in names:
        dataset = Dataset(name=name, task=name)
        responses = ResponseFiles(tuple((run_dir.root / "outputs" / name).glob("*.jsonl")))
        found = scored.results[name]
        assert found.cpu_seconds > 0
        assert found.model_copy(update={"cpu_seconds": 0.0}) == evaluator.finish(
            dataset, responses, {}
        )


def test_the_mother_shares_no_memory_that_a_child_could_write() -> None:
    prepared = (
        "from pathlib import Path\n"
        "from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator\n"
        "HarnessEvaluator(tokenizer=Path('/'), max_length=1).prepare()\n"
        "import evaluate, sklearn.metrics, torch, transformers\n"
        "print('rw-s' in Path('/proc/self/maps').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", prepared], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


LOOKS = '''"""A metric that is right where nothing is left of another dataset."""
import os


def score(doc, results):
    left = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())]
    left += [p for p in ("/tmp/left", "/tmp/home/left", "/dev/shm/left") if os.path.exists(p)]
    return {"acc": float(not left)}
'''
LEAVES = {
    "files": "[open(f'{p}/left', 'w').close() for p in ('/tmp', '/tmp/home', '/dev/shm')]",
    "closed folders": f"[{OS}.chmod(p, 0) for p in ('/tmp/home', '/tmp', '/dev/shm')]",
    "deep folders": f"[({OS}.mkdir('x'), {OS}.chdir('x')) for n in [*'/', *range(3000)] "
    f"if n != '/' or {OS}.chdir('/tmp')]",
    "processes": f"[{OS}.setsid() if {OS}.fork() == 0 else 0, {OS}.fork(), "
    f"[0 for n in iter(int, 1)] if {OS}.getsid(0) == {OS}.getpid() else 0]",
    "moved mounts": f"[{OS}.rename(f'/tmp/{{n}}', f'/tmp/{{n}}x') for n in {OS}.listdir('/tmp')]",
}


@pytest.mark.hostile
@some_users
def test_nothing_of_one_dataset_reaches_the_next(user: User) -> None:
    leaves = tried_by(user, LEAVES)
    evil = {f"evil{n}": [f"{leave} and 1", "1"] for n, leave in enumerate(leaves.values())}
    scored = user.scored(evil, after=LOOKS)
    # A checkout below /tmp is among what some close or move, to their own harm.
    harmed = evil.keys() if Path(sys.prefix).is_relative_to("/tmp") else set()
    assert scored.errors.keys() <= harmed, (list(leaves), scored.said)


@pytest.mark.hostile
@some_users
@pytest.mark.parametrize("does", ["while_true", "leaves"])
def test_nothing_outlives_the_scorer(user: User, does: str) -> None:
    name = f"ce{os.getpid()}"
    stays = (
        f"[open('/proc/self/comm', 'w').write({name!r}), "
        f"__import__('signal').signal(15, 1), {OS}.setsid() if {OS}.fork() == 0 else 0, "
        f"{OS}.fork(), "
    )
    ends = "[0 for n in iter(int, 1)]]" if does == "while_true" else "0] and 1"
    run_dir = user.run({"evil": [stays + ends]})
    scorer = start_scorer(run_dir, user.environ, ordinary=user.ordinary)
    if does == "while_true":
        until(lambda: _named(name), "the program")
        scorer.send_signal(signal.SIGKILL)
    scorer.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: not _named(name), "all of its processes ended")


def _named(name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() == name:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@some_users
def test_a_file_that_confinement_hides_is_named(user: User) -> None:
    hidden = user.home / "right answers.txt"
    hidden.write_text("1")
    hidden.chmod(0o644)
    write_metric(user.tasks, "reads", f"open({str(hidden)!r}).close()\n{KEEPS}", 1)
    run_dir = make_scorable(user.root, user.tasks, {"reads": ["1"]})
    done = wait_for(start_scorer(run_dir, user.environ, ordinary=user.ordinary), run_dir)
    assert f"{hidden} is there, and hidden: scoring is confined" in done.errors["reads"]
    assert "include_path" in done.errors["reads"]


def test_degenerate_answers_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TASKS)
    texts = ["is 3.", "", "three " * 40, "это три, потому что один и два"]
    run_dir = make_scorable(tmp_path / "run", TASKS, {"tiny_sums": texts, "tiny_choice": ["x"]})
    scored = wait_for(start_scorer(run_dir, {"HOME": str(tmp_path)}), run_dir)
    assert (scored.status, scored.errors) == (0, {}), scored.said
    found = scored.results["tiny_sums"].outputs
    assert found is not None
    shares = [found.empty, found.repeated, found.other_script, found.cut]
    assert [round(4 * share / found.responses) for share in shares] == [1, 1, 1, 0]
    assert scored.results["tiny_choice"].outputs is None
