"""Hostile programs in compiled languages: what attacks the compiler, and what it compiles."""

import json
from dataclasses import dataclass

import pytest

from coordinate_eval.evaluators.sandbox.sandbox import Level
from tests.hostile.place import GRACE_SECONDS, Places, Setting
from tests.languages import need, question
from tests.problems import PROBLEMS
from tests.random_examples import LONG

SECONDS = 20.0
SECONDS_WITHOUT_END = 3.0
LIBRARIES_SECONDS = 600.0
SETTINGS = [
    Setting("user", Level.BUBBLEWRAP),
    Setting("root", Level.NAMESPACES),
    *([Setting("user", Level.NAMESPACES), Setting("root", Level.BUBBLEWRAP)] * LONG),
]


@dataclass(frozen=True)
class Attack:
    """One program, which must not pass. `SECRET` stands for a file, `PORT` for a server."""

    language: str
    name: str
    text: str

    @property
    def seconds(self) -> float:
        """Return the time it gets; one that never ends uses it all."""
        return SECONDS_WITHOUT_END if self.name in ENDLESS else SECONDS


ENDLESS = ("includes-without-end", "never-compiles", "takes-all-threads", "takes-all-memory")
QUICK = ("reads-who-starts-it", "outlives", "connects", "writes-what-others-import")
"""What runs in the second setting of a short run, in languages whose libraries are not compiled."""


def _go(body: str, *imports: str) -> str:
    packages = "".join(f"import {name}\n" for name in ('"testing"', *imports))
    return f"package main\n{packages}{body}\n"


def _test(body: str) -> str:
    return f"func TestIt(t *testing.T) {{ {body} }}"


def _rust(condition: str) -> str:
    return f"#[test] fn it() {{ assert!({condition}); }}"


def _java(body: str) -> str:
    return (
        "import java.nio.file.*; public class Main { public static void main(String[] a) "
        f"throws Exception {{ {body} }} }}"
    )


ATTACKS = [
    Attack("cpp", "includes-a-secret", '#include "SECRET"\nint main() {}'),
    Attack("cpp", "assembles-a-secret", 'asm(".incbin \\"SECRET\\"");\nint main() {}'),
    Attack("cpp", "includes-without-end", '#include "/dev/urandom"\nint main() {}'),
    Attack(
        "cpp",
        "never-compiles",
        "template<int n, int m> struct T { static const long v = T<n - 1, m * 2>::v + "
        "T<n - 1, m * 2 + 1>::v; };\n"
        "template<int m> struct T<0, m> { static const long v = m; };\n"
        "static_assert(T<40, 1>::v == 0);\nint main() {}",
    ),
    Attack("cpp", "compiles-to-gigabytes", "char big[1ul << 31] = {1};\nint main() {}"),
    Attack(
        "cpp",
        "reads-a-secret",
        '#include <fstream>\nint main() { std::ifstream in("SECRET"); return !in.good(); }',
    ),
    Attack(
        "cpp",
        "reads-who-starts-it",
        "#include <fcntl.h>\n#include <unistd.h>\n#include <sys/ptrace.h>\n#include <string>\n"
        'int main() { auto folder = "/proc/" + std::to_string(getppid()); '
        "return ptrace(PTRACE_ATTACH, getppid(), 0, 0) != 0 "
        '&& open((folder + "/mem").c_str(), O_RDWR) < 0 '
        '&& open((folder + "/fd").c_str(), O_RDONLY) < 0; }',
    ),
    Attack(
        "cpp",
        "outlives",
        "#include <unistd.h>\n#include <cstdlib>\nint main() { if (fork() == 0) { setsid(); "
        "for (int i = 0; i < 256; i++) close(i); sleep(1000); } return 1; }",
    ),
    Attack(
        "go",
        "embeds-a-secret",
        _go("//go:embed SECRET\nvar s string\nfunc TestIt(t *testing.T) {}", '_ "embed"'),
    ),
    Attack("go", "compiles-c", _go('// #include "SECRET"\nimport "C"\n' + _test("_ = 1"))),
    Attack(
        "go",
        "reads-a-secret",
        _go(_test('if _, e := os.ReadFile("SECRET"); e != nil { t.Fatal(e) }'), '"os"'),
    ),
    Attack(
        "go",
        "connects",
        _go(
            _test('if _, e := net.Dial("tcp", "127.0.0.1:PORT"); e != nil { t.Fatal(e) }'), '"net"'
        ),
    ),
    Attack(
        "go",
        "writes-what-others-import",
        _go(
            _test(
                'if e := os.WriteFile(os.Getenv("GOCACHE")+"/x", nil, 0o666); e != nil '
                "{ t.Fatal(e) }"
            ),
            '"os"',
        ),
    ),
    Attack("java", "reads-a-secret", _java('Files.readString(Path.of("SECRET"));')),
    Attack("java", "connects", _java('new java.net.Socket("127.0.0.1", PORT);')),
    Attack(
        "java",
        "takes-all-threads",
        _java(
            "for (;;) new Thread(() -> { try { Thread.sleep(100000); } "
            "catch (Exception e) { } }).start();"
        ),
    ),
    Attack(
        "java",
        "outlives",
        _java(
            'new ProcessBuilder("/usr/bin/setsid", "/bin/sleep", "1000").start(); System.exit(1);'
        ),
    ),
    Attack("js", "reads-a-secret", "require('fs').readFileSync('SECRET')"),
    Attack(
        "js",
        "writes-what-others-import",
        "require('fs').writeFileSync(process.env.NODE_PATH + '/x', 'x')",
    ),
    Attack("js", "connects", "require('net').connect(PORT, '127.0.0.1', () => process.exit(0))"),
    Attack(
        "js",
        "outlives",
        "require('child_process').spawn('/bin/sleep', ['1000'], "
        "{detached: true, stdio: 'ignore'}).unref(); process.exitCode = 1",
    ),
    Attack("js", "takes-all-memory", "const all = []; for (;;) all.push(Buffer.alloc(1 << 26, 1))"),
    Attack("rust", "includes-a-secret", _rust('include_str!("SECRET").len() > 0')),
    Attack(
        "rust",
        "assembles-a-secret",
        'std::arch::global_asm!(".incbin \\"SECRET\\"");\n' + _rust("true"),
    ),
    Attack("rust", "includes-without-end", _rust('include_bytes!("/dev/zero").len() > 0')),
    Attack(
        "rust",
        "writes-what-others-import",
        _rust(
            'std::fs::write(concat!(env!("CARGO_HOME"), "/../target/debug/deps/x"), "x").is_ok()'
        ),
    ),
    Attack("rust", "is-a-secret", '#[path = "SECRET"] mod secret;\n' + _rust("true")),
    Attack("rust", "reads-variables-of-the-compiler", _rust('option_env!("TOKEN").is_some()')),
    Attack(
        "rust",
        "never-compiles",
        "const fn f(n: u64) -> u64 { let mut i = 0; while i < n { i += 1 } i }\n"
        "const N: u64 = f(u64::MAX);\n" + _rust("N > 0"),
    ),
]


@pytest.mark.hostile
@pytest.mark.parametrize("language", sorted({attack.language for attack in ATTACKS}))
def test_a_right_program_passes_where_attacks_are_tried(places: Places, language: str) -> None:
    need(language)
    right, most = question(PROBLEMS[0], language), LIBRARIES_SECONDS + GRACE_SECONDS
    answer, broken = places.at(SETTINGS[0]).run_in(
        language, right.content, right.timeout_seconds, right.timeout_seconds + most
    )
    assert (answer["passed"], broken) == (True, []), answer


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("setting", "attack"),
    [
        pytest.param(setting, attack, id=f"{setting}-{attack.language}-{attack.name}")
        for setting in SETTINGS
        for attack in ATTACKS
        if LONG
        or setting == SETTINGS[0]
        or (attack.name in QUICK and attack.language not in ("go", "rust"))
    ],
)
def test_attacks(places: Places, setting: Setting, attack: Attack) -> None:
    need(attack.language)
    answer, broken = places.at(setting).run_in(
        attack.language, attack.text, attack.seconds, LIBRARIES_SECONDS + GRACE_SECONDS
    )
    assert not broken, broken
    assert not answer["passed"]
    assert "error" not in answer, json.dumps(answer)
