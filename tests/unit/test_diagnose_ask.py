"""`coordinate-eval diagnose --ask`: a model votes on what no rule knows, and the user confirms."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.judges import Judge, Reply, fails, says
from typer.testing import CliRunner, Result

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.incidents.causes import learned_file
from coordinate_eval.coordinator.inputs.settings import DiagnosisSettings, Settings
from coordinate_eval.diagnosis.asking import MOST_CURE, MOST_LINE, MOST_LINES, VOTES
from coordinate_eval.diagnosis.rules import Rule, SiteRules, read_site, write_site
from coordinate_eval.errors import CoordinateError, UserError

LOG = "frobnicator 12 begins\nfrob.FrobException: frobnicator 12 has lost its quux at 0x7f3a\n"


class Site:
    """A site with a log that no rule knows."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "a.log"
        self.log.write_text(LOG)
        self.rules = folder / "diagnosis.yaml"
        self.learned = folder / "diagnosis-learned.yaml"

    def diagnose(self, *words: str, url: str = "http://127.0.0.1:1/v1", log: str = "") -> Result:
        env = {
            "COORDINATE_EVAL_DIAGNOSIS_RULES": str(self.rules),
            "COORDINATE_EVAL_JUDGE_BASE_URL": url,
            "COORDINATE_EVAL_JUDGE_MODEL": "wise",
            "COLUMNS": "200",
        }
        return CliRunner().invoke(app, ["diagnose", log or str(self.log), *words], env=env)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def answer(reason: str = "Network Error", line: object = 2, cure: str = "find the quux") -> Reply:
    return says("Well. " + json.dumps({"reason": reason, "line": line, "cure": cure}))


def test_most_answers_become_a_rule_once_confirmed(site: Site) -> None:
    with Judge(lambda _, n: answer() if n % VOTES else answer("Key Error", 1)) as judge:
        asked = site.diagnose("--ask", url=judge.url)
    assert asked.exit_code == 1
    assert f"wise says, {VOTES - 1} times of {VOTES}: Network Error" in asked.stderr
    assert "do: find the quux" in asked.stderr
    assert "Unknown" in site.diagnose().stdout, "nobody has confirmed it"
    confirmed = site.diagnose("--confirm")
    assert confirmed.exit_code == 0, confirmed.output
    assert "Network Error (infrastructure)" in confirmed.stdout
    other = site.log.with_name("b.log")
    other.write_text("[rank4]: frob.FrobException: frobnicator 77 has lost its quux at 0x1\n")
    assert "do: find the quux" in site.diagnose(log=str(other)).stdout
    learned = read_site(site.learned)
    assert (len(learned.rules), learned.proposed) == (1, [])
    with pytest.raises(UserError, match="nothing was proposed"):
        raise site.diagnose("--confirm").exception or AssertionError


@pytest.mark.parametrize(
    "reply",
    [
        says("I do not know."),
        answer("Gremlins"),
        answer(line=99),
        answer(line=True),
        answer(line="2"),
        says("{" * 5000),
        says('{"reason": ' + "[" * 15_000 + "}"),
        says('{"reason": ["Key Error"], "line": 2}'),
    ],
)
def test_answers_that_are_none_propose_nothing(site: Site, reply: Reply) -> None:
    with Judge(lambda body, n: reply) as judge:
        done = site.diagnose("--ask", url=judge.url)
    assert "no reason has more than half" in done.stderr
    assert not site.learned.exists()


def test_what_is_sent_and_what_comes_back_are_bounded_and_printable(site: Site) -> None:
    site.log.write_text(
        "".join(f"{chr(97 + n % 26) * (n + 9)} Error: \x1b[2J\n" for n in range(999))
    )
    sent: list[dict[str, Any]] = []

    def behave(body: dict[str, Any], number: int) -> Reply:
        sent.append(body)
        return answer(line=1, cure="\x1b[2J" + "long " * 999)

    with Judge(behave) as judge:
        done = site.diagnose("--ask", url=judge.url)
    lines = sent[0]["messages"][1]["content"].splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_LINE + 10
    assert "\x1b" not in done.output
    assert "\x1b" not in json.dumps(sent, ensure_ascii=False)
    (proposed,) = read_site(site.learned).proposed
    assert len(proposed.cure or "") <= MOST_CURE + 3


def test_nothing_is_asked_where_a_rule_knows(site: Site) -> None:
    site.log.write_text("KeyError: 'x'\n")
    done = site.diagnose("--ask")
    assert done.exit_code == 0
    assert "Key Error" in done.stdout


def test_model_that_refuses_is_named_by_its_settings(site: Site) -> None:
    with Judge(lambda body, n: fails(401, "no")) as judge:
        error = site.diagnose("--ask", url=judge.url).exception
    assert isinstance(error, CoordinateError)
    assert "[judge] api_key_env" in str(error)


def test_asking_needs_a_model(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["diagnose", str(site.log), "--ask"])
    assert isinstance(done.exception, UserError)
    assert "[judge] base_url" in str(done.exception)


def test_the_newest_proposal_is_confirmed(site: Site) -> None:
    both = [
        Rule(name=f"learned-{n}", reason=reason, pattern="lost its quux")
        for n, reason in enumerate(("Key Error", "Network Error"))
    ]
    site.learned.write_text(write_site(SiteRules(proposed=both)))
    assert "Network Error" in site.diagnose("--confirm").stdout


def test_rules_are_learned_beside_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    site = Settings(diagnosis=DiagnosisSettings(rules=str(tmp_path / "diagnosis.yaml")))
    assert learned_file(site) == tmp_path / "diagnosis-learned.yaml"
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    own = tmp_path / "config" / "coordinate-eval" / "diagnosis-learned.yaml"
    assert learned_file(site) == own
