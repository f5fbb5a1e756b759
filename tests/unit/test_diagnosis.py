"""Why a job died: the root among what its logs say, whatever they hold."""

import io
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.failed_logs import FOLDER, cause_of, corpus, diagnosed, whole_corpus

from coordinate_eval.diagnosis.cause import UNKNOWN, Remedy
from coordinate_eval.diagnosis.compress import MOST_FOUND, MOST_PLAIN, Kept, _Reader, compress
from coordinate_eval.diagnosis.lines import MOST_PIECE, Piece, clean, pieces, without_prefix
from coordinate_eval.diagnosis.rules import SiteRules, needed_words, read_site, shipped, with_site
from coordinate_eval.errors import ForeignError, UserError

ANSWERED = ("kinds.yaml", "lines.yaml", "provoked.yaml", "reports.yaml", "written.yaml")
"""Files whose cases the rules must all get right. The benchmark counts the others, too."""

KNOWN_WRONG = {"loader-reset"}
"""The loader's process was killed, and only a broken connection says so."""


@pytest.mark.parametrize("file", ANSWERED)
def test_the_cause_of_each_job_of_the_corpus_is_found(file: str) -> None:
    for case in corpus(file):
        found = diagnosed(case.logs, case.end)
        if case.name not in KNOWN_WRONG:
            assert (found and found.reason) == case.reason, case.name


def test_a_line_that_is_all_of_a_log_names_its_reason() -> None:
    by_reason = yaml.safe_load((FOLDER.parent / "log_lines.yaml").read_text())
    for reason, lines in by_reason.items():
        for line in lines:
            found = diagnosed([line + "\n"])
            assert (found and found.reason) == reason, line


def test_root_comes_from_the_rank_that_has_it() -> None:
    case = next(each for each in corpus("written.yaml") if each.name == "cuda-oom-one-rank")
    for logs in (case.logs, case.logs[::-1], ["".join(case.logs)], ["".join(case.logs[::-1])]):
        found = diagnosed(logs)
        assert found is not None
        assert found.line.startswith("[rank1]: torch.OutOfMemoryError")
        assert "NCCL Timeout Error" in found.others


@pytest.mark.parametrize(
    "words",
    ["OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"],
)
def test_a_save_that_a_full_disk_ends_is_no_broken_checkpoint(words: str) -> None:
    text = (
        "[rank1]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([0, 1])\n[rank1]: Traceback (most recent call last): (RANK 0)\n"
        f'[rank1]:   File "filesystem.py", line 520, in create_stream\n[rank1]: {words}\n'
    )
    found = cause_of(text, end="FAILED NonZeroExitCode 1:0")
    assert (found.reason, found.line) == ("OS Error", f"[rank1]: {words}")


def test_error_after_the_time_limit_follows_from_it() -> None:
    limit = "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024 DUE TO TIME LIMIT ***\n"
    assert cause_of(limit + "ValueError: I/O operation on closed file\n").reason == "Time Limit"


def test_ranks_that_hang_until_the_time_limit_do_not_hide_the_rank_that_died() -> None:
    assert (
        cause_of("step 1 loss 2\nKeyError: 'x'\n", end="TIMEOUT TimeLimit 0:15").reason
        == "Key Error"
    )


def test_progress_after_an_error_shows_that_it_was_none() -> None:
    text = "RuntimeError: x\n" + "".join(f"step {n} loss 2.{n}\n" for n in range(9))
    assert diagnosed([text]) is None
    assert cause_of(text, end="FAILED NonZeroExitCode 1:0").reason == "Runtime Error"
    assert cause_of(text + "RuntimeError: x\n").reason == "Runtime Error"


def test_failure_that_says_nothing_is_unknown() -> None:
    found = cause_of("hello\nworld\n", end="FAILED NonZeroExitCode 1:0")
    assert (found.reason, found.line, found.number) == (UNKNOWN, "world", 2)
    assert diagnosed(["hello\n"]) is None
    assert diagnosed([""]) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("error: the frobnicator is lost\nbye\n", "error: the frobnicator is lost"),
        ("loading\nfailed to frobnicate the quux\nbye\n", "failed to frobnicate the quux"),
        ('Traceback\n  File "a.py", line 1, in f\n_quux.Empty\n', "_quux.Empty"),
        (
            "step 1 loss 2\nError in atexit._run_exitfuncs:\nfrob: ERROR: no quux\n",
            "frob: ERROR: no quux",
        ),
    ],
)
def test_what_sounds_like_a_failure_is_never_called_none(text: str, line: str) -> None:
    found = cause_of(text)
    assert (found.reason, found.line) == (UNKNOWN, line)


@pytest.mark.parametrize(
    "text",
    [
        "error: the frobnicator is lost\nTraining completed\n",
        "bash: foo: command not found\nstep 1 loss 2\n",
        "Training completed\ncp: cannot stat '/scratch/x': No such file or directory\n",
        "OSError: [Errno 5] x\nstep 1 loss 2\nsaving model to /out\n",
        "test error: 0.12\n0 failures\n",
    ],
)
def test_what_work_or_a_success_follows_ended_nothing(text: str) -> None:
    assert diagnosed([text]) is None


@pytest.mark.parametrize("text", ["", "all is well\n", "step 1 loss 2\nTraining completed\n"])
@pytest.mark.parametrize("end", ["FAILED", "FAILED NonZeroExitCode 1:0", "OUT_OF_ME+", "NODE_FAIL"])
def test_a_job_that_failed_has_a_cause_whatever_its_log_says(text: str, end: str) -> None:
    assert diagnosed([text], end) is not None


_PREFIXES = st.sampled_from(
    [
        "",
        "[rank3]: ",
        "(EngineCore_DP0 pid=77) ERROR 03-02 10:10:33 [core.py:720] ",
        "(RayWorker pid=4411, ip=10.0.0.1) ",
        "2025-08-21T15:04:45.450656877Z ",
        "Aug 17 18:42:18 host python[8052]: ",
        "worker-1: ",
        "[task 2025-07-01T05:06:30.005+00:00] [train] ",
        "  | ",
    ]
)
_FRAMES = st.sampled_from(
    [
        '  File "<string>", line 1, in <module>',
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "h5py/h5f.pyx", line 106, in h5py.h5f.open',
        '  File "/w/a.py", line 3, in f\n    raise MemoryError("CUDA out of memory")',
        '  File "/w/a.py", line 3, in f\n    raise E(\n    ~^\n        "No space left on device",',
        '  File "/w/a.py", line 3, in f\n    g(x)\n  [Previous line repeated 9 more times]',
    ]
)


@given(
    _PREFIXES,
    st.lists(_FRAMES, min_size=1, max_size=4),
    st.sampled_from(["KeyError: 'x'", "KeyError"]),
)
def test_an_exception_is_found_after_frames_of_any_form(
    prefix: str, frames: list[str], exception: str
) -> None:
    text = "\n".join(["Traceback (most recent call last):", *frames, exception])
    found = cause_of("".join(f"{prefix}{line}\n" for line in text.split("\n")))
    assert (found.reason, found.line) == ("Key Error", f"{prefix}{exception}".rstrip())


def test_indentation_that_was_lost_hides_no_exception() -> None:
    lines = [
        'File "/w/a.py", line 3, in f',
        'raise OSError("No space left on device")',
        "KeyError: 'x'",
    ]
    assert cause_of("\n".join(lines) + "\n").reason == "Key Error"


@given(st.text(max_size=400), st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str, prefix: str) -> None:
    frame = f'{prefix}  File "a.py", line 3, in f\n'
    diagnosed([frame + text + "\n" + frame + prefix + "KeyError\n"])


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: couldn't chdir to `/old': No such file or directory",
        "/etc/profile.d/lang.sh: line 19: warning: setlocale: LC_CTYPE: cannot change locale",
        "bash: /etc/profile.d/modules.sh: Permission denied",
        "/home/u/.bashrc: line 3: conda: command not found",
        "ERROR: ld.so: object 'libxalt_init.so' from LD_PRELOAD cannot be preloaded: ignored.",
        "perl: warning: Setting locale failed.",
        "mesg: ttyname failed: Inappropriate ioctl for device",
        "tput: No value for $TERM and no -T specified",
        "manpath: can't set the locale; make sure $LC_* and $LANG are correct",
        "bash: error importing function definition for `BASH_FUNC_module'",
        "Unable to init server: Could not connect: Connection refused",
        "slurmstepd: error: Could not run slurm task_prolog [/nfs/a]: No such file or directory",
        "slurmstepd: pyxis: could not remove squashfs: No such file or directory",
    ],
)
def test_lines_of_every_job_name_no_cause(line: str) -> None:
    own = (
        'Traceback (most recent call last):\n  File "<string>", line 1\nRuntimeError: two groups\n'
    )
    found = cause_of(f"{line}\n{own}")
    assert (found.reason, found.others) == ("Runtime Error", ())
    assert diagnosed([f"{line}\nstep 1 loss 2\nTraining completed\n"]) is None
    unknown = cause_of(f"{line}\n", end="FAILED NonZeroExitCode 1:0")
    assert unknown.reason == UNKNOWN


@pytest.mark.parametrize(
    "noise",
    [
        "/etc/profile.d/lmod.sh: line 12: tput: command not found",
        "/var/spool/slurmd/job1/slurm_script: line 4: conda: command not found",
        "touch: cannot touch '/home/me/.last': Permission denied",
        "ls: cannot access '/opt/old': No such file or directory",
        "ulimit: open files: cannot modify limit: Operation not permitted",
        'Lmod has detected the following error: The following module(s) are unknown: "a/1"',
        "slurmstepd: error: Unable to create TMPDIR [/local/u]: Permission denied",
        "slurmstepd: error: task/cgroup: unable to add task[pid=1] to memory cg '(null)'",
        "[n1:123] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 169",
        "CommandNotFoundError: Your shell has not been properly configured",
    ],
)
@pytest.mark.parametrize("file", ["written.yaml", "reports.yaml"])
def test_what_every_job_of_a_site_prints_hides_no_cause(file: str, noise: str) -> None:
    kinds = {rule.name: rule.kind for rule in shipped().all}
    of_shells = {f"{word} Error" for word in ("File Not Found", "Permission", "Import", "Syntax")}
    of_shells |= {"Called Process Error", UNKNOWN}
    for case in corpus(file):
        alone = diagnosed(case.logs, case.end)
        if alone is None or alone.reason in of_shells or kinds[alone.rule] == "echo":
            continue  # it looks like the noise, or shows no sign of having come further
        found = diagnosed([f"{noise}\n{case.logs[0]}", *case.logs[1:]], case.end)
        assert (found and found.reason) == case.reason, case.name


def test_a_line_of_a_shell_gives_way_to_a_later_exception_alone() -> None:
    shell = "/var/spool/slurmd/job1/slurm_script: line 4: module: command not found\n"
    for after, reason in (
        ("AssertionError: odd\n", "Assertion Error"),
        ("frob.FrobError: x\n", UNKNOWN),
        ("subprocess.CalledProcessError: Command 'x' returned 1\n", "File Not Found Error"),
        ("srun: error: n1: task 0: Exited with exit code 127\n", "File Not Found Error"),
    ):
        found = cause_of(shell + after)
        assert found.reason == reason


def test_line_of_code_is_no_error() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
    assert (
        cause_of(text + '    raise ValueError("CUDA out of memory")\nIndexError: 3\n').reason
        == "Index Error"
    )


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: KeyError: 'x'",
        "3: KeyError: 'x'",
        "[1,3]<stderr>:KeyError: 'x'",
        "(EngineCore_DP0 pid=77) ERROR 03-02 10:10:33 [core.py:720] KeyError: 'x'",
        "(RayTrainWorker pid=4411, ip=10.0.0.1) KeyError: 'x'",
        "2024-01-01 10:00:00,123 - ERROR - KeyError: 'x'",
        "[2024-01-01 10:00:00,123] [ERROR] KeyError: 'x'",
        "\x1b[31mKeyError\x1b[0m: 'x'",
        "ray.exceptions.RayTaskError(KeyError): ray::f()",
        "2024-08-23 18:54:03.939 | ERROR    | forge.train:read:12 - KeyError: 'x'",
        "ERROR:megatron.core:KeyError: 'x'",
        "[2025-08-08 09:09:09 DP1 TP3] Scheduler hit an exception: KeyError: 'x'",
        "May 16, 2026 @ 20:46:57.892    [rank8]:KeyError: 'x'",
        "Fri Sep 25 16:52:53 2020[0]<stderr>:KeyError: 'x'",
        "Aug 17 18:42:18 host python[8052]: KeyError: 'x'",
        "stdout: KeyError: 'x'",
        "worker-3: KeyError: 'x'",
        "train.py:33: KeyError: 'x'",
        "omegaconf.errors.ConfigKeyError: Key 'x' is not in struct",
    ],
)
def test_prefixes_hide_no_exception(line: str) -> None:
    assert cause_of(line + "\n").reason == "Key Error"


def test_hostile_content_is_bounded_and_printable() -> None:
    long = b"x" * (3 * MOST_PIECE) + b"\r" + b"50%|##| 1/2 [00:01<00:01, 1.0it/s]\r" * 5000
    content = (
        b"\xff\xfe\x00" + long + b"\n\x1b]0;title\x07\x1b[2JMemoryError\xff\n" + bytes(range(256))
    )
    assert max(len(each.content) for each in pieces(io.BytesIO(content))) <= MOST_PIECE
    left = compress(io.BytesIO(content), shipped())
    assert left.bytes == len(content)
    assert "\x1b" not in left.text()
    assert clean(b"\x1b[31ma\x1b[0m\x08\x00") == "a"


def test_line_without_an_end_stays_in_pieces() -> None:
    class Endless(io.RawIOBase):
        left = 64

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"y" * size if self.left else b""

    given = pieces(Endless())  # type: ignore[arg-type]  # only read
    assert max(len(each.content) for each in given) <= MOST_PIECE


def test_number_of_a_line_is_the_editors() -> None:
    content = b"a\r\n\r\nbar 1\rbar 2\nIndexError: 3"
    assert [each.number for each in pieces(io.BytesIO(content))] == [1, 3, 3, 4]


def test_what_is_left_is_bounded_with_the_first_and_the_last_error() -> None:
    letters = [
        f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(9000)
    ]
    lines = [f"KeyError: '{each}'" for each in letters] + [f"note {each}" for each in letters]
    left = compress(io.BytesIO("\n".join(lines).encode()), shipped())
    assert len(left.kept) <= 2 * MOST_FOUND + 4 * MOST_PLAIN
    assert left.kept[0].text == "KeyError: 'aaa'"
    assert left.kept[-1].text == f"note {letters[-1]}"
    assert any(each.text == f"KeyError: '{letters[-1]}'" for each in left.kept)


def test_lines_of_one_template_are_counted() -> None:
    content = b"".join(b"Connection refused by 10.0.0.%d\n" % (n % 250) for n in range(1000))
    (kept,) = compress(io.BytesIO(content), shipped()).kept
    assert (kept.count, kept.first, kept.last) == (1000, 1, 1000)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("disk quota", {"disk quota"}),
        ("(?i)Quota|ENOSPC", {"quota", "enospc"}),
        ("[Oo]ut of (mem|time)", {"out of mem", "out of time"}),
        (r"\d+%\|", None),
        ("a?b*", None),
        ("(?:abcd){2}x", {"abcd"}),
    ],
)
def test_words_that_a_line_must_have(pattern: str, words: set[str] | None) -> None:
    assert needed_words(pattern) == (None if words is None else frozenset(words))


def test_words_skip_no_rule() -> None:
    rules = shipped()
    cases = whole_corpus()
    for said in {
        without_prefix(line) for case in cases for log in case.logs for line in log.split("\n")
    }:
        tried = (r for r, pattern in rules.of_lines if pattern.search(said))
        assert rules.find(said) == next(tried, None), said


def test_every_rule_has_a_reason_and_a_cure() -> None:
    rules = shipped()
    names = [rule.name for rule in rules.all]
    assert len(names) == len(set(names))
    assert all(rules.of(rule).cure for rule in rules.all)


def test_own_rules_and_filters_come_first(tmp_path: Path) -> None:
    path = tmp_path / "diagnosis.yaml"
    path.write_text(
        "reasons:\n  Site Error: {category: infrastructure, then: wait, cure: call us}\n"
        "rules:\n- {name: ours, pattern: 'quux', reason: Site Error}\n"
        "filters: {startup: ['^motd'], harmless: ['^frobd: '], success: ['^frobbed']}\n"
    )
    rules = with_site(read_site(path))
    found = diagnosed(["motd: hello\nKeyError: 'quux'\n"], rules=rules)
    assert found is not None
    assert (found.reason, found.cure) == ("Site Error", "call us")
    assert diagnosed(["frobd: error: no quuz\nx\n"], rules=rules) is None
    assert diagnosed(["frob: error: no quuz\nfrobbed\n"], rules=rules) is None
    assert "motd" not in compress(io.BytesIO(b"motd: hello\nx\n"), rules).text()
    assert read_site(tmp_path / "none.yaml") == SiteRules()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rules: [{name: a, reason: Key Error, pattern: '('}]", "no regular expression"),
        ("rules: [{name: a, reason: Key Error}]", "either a pattern or an exception"),
        ("rules: [{name: a, reason: Nobody, pattern: x}]", "'Nobody', which is none"),
        ("rulez: []", "rulez"),
        ("rules: {", "no YAML"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "diagnosis.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=why):
        with_site(read_site(path))


def test_rules_that_others_can_write_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "diagnosis.yaml"
    path.write_text("{}")
    path.chmod(0o666)
    with pytest.raises(ForeignError):
        read_site(path)


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'x'", Remedy.STOP),
        ("PermissionError: [Errno 13] Permission denied: '/x'", Remedy.STOP),
        ("torch.OutOfMemoryError: CUDA out of memory.", Remedy.LESS_LOAD),
        ("NVRM: Xid (PCI:0000:9c:00): 79, GPU has fallen off the bus.", Remedy.ANOTHER_NODE),
        ("OSError: [Errno 28] No space left on device", Remedy.WAIT),
        ("ValueError: x", Remedy.ANOTHER_NODE),
        ("frob.FrobException: x", Remedy.ANOTHER_NODE),
    ],
)
def test_what_is_done_follows_from_the_cause(log: str, remedy: Remedy) -> None:
    assert cause_of(log + "\n").remedy is remedy


def test_of_lines_that_drop_out_no_text_is_kept() -> None:
    reader = _Reader(shipped())
    many = 4 * MOST_PLAIN + 100
    for number in range(many):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        reader.take(Piece(number + 1, f"a line of {word}".encode()))
    kept = [each for each in reader._known.values() if isinstance(each, Kept)]
    assert len(kept) == many
    assert sum(bool(each.text) for each in kept) == 4 * MOST_PLAIN
    assert len(reader.end().kept) == 4 * MOST_PLAIN
