"""What settings say of a judge, before anything is submitted; and its part in a run's name."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import NODES, ROUND, make_run
from tests.judges import Judge, Reply, fails, says
from tests.plans import CHECKPOINT
from tests.run_dirs import write_index

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.inputs import judge
from coordinate_eval.coordinator.inputs.layers import load
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.inputs.suites.suite import runnable
from coordinate_eval.coordinator.planning.judge_plan import questions_to_judge
from coordinate_eval.coordinator.planning.plan import Cost, Plan
from coordinate_eval.coordinator.report.time_ledger import read_time_ledger
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_job
from coordinate_eval.coordinator.run.claiming.work import all_portions, given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.run.starting.create import existing, run_id
from coordinate_eval.coordinator.supervisor.refused import refuse
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged import endpoint
from coordinate_eval.evaluators.judged.prompts import judge_question
from coordinate_eval.records import Answer, Dataset, Message, Rubric, Suite
from coordinate_eval.slurm.environment import of_job

PROMPT = [Message(role="user", content="Rate {{ answer }}.")]
RUBRIC = Rubric(name="r", prompts={"one": PROMPT, "two": PROMPT}, patterns=[r"(\d)"])
PAIR = RUBRIC.model_copy(update={"pair": True})
JUDGED = Dataset(name="b", task="b", rubric=RUBRIC, items=10)
PAIRED = Dataset(name="c", task="c", rubric=PAIR, items=10)
ALONE = Suite(name="s", digest="d", datasets=[Dataset(name="a", task="a")])
ALL = Suite(name="s", digest="d", datasets=[*ALONE.datasets, JUDGED, PAIRED])
URL = "http://host:8000/v1"


def settings(**of_judge: Any) -> Settings:
    return Settings.model_validate({"judge": of_judge}, extra="forbid")


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({}, {"b": "base_url and model", "c": "base_url and model"}),
        ({"base_url": URL, "model": "m"}, {"c": "baseline"}),
        ({"checkpoint": "/ckpt"}, {"c": "baseline"}),
        ({"base_url": URL, "model": "m", "baseline": "/answers"}, {}),
    ],
)
def test_what_no_judge_can_rate_is_left_out(
    given: dict[str, str], left_out: dict[str, str]
) -> None:
    kept, reasons = runnable(ALL, JudgeSettings.model_validate(given))
    assert list(reasons) == list(left_out)
    assert all(words in reasons[name] for name, words in left_out.items())
    assert [d.name for d in kept.datasets] == [n for n in "abc" if n not in left_out]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"base_url": URL}, "judge.model is not"),
        ({"model": "m"}, "judge.base_url is not"),
        ({"base_url": "host", "model": "m"}, "no address"),
        ({"base_url": URL, "model": "m", "api_key_env": "NOT_THERE"}, "NOT_THERE"),
        ({"base_url": URL, "model": "m", "max_requests": 19}, r"20 questions \(b 20\).*19"),
        (
            {"base_url": URL, "model": "m", "baseline": "/b", "max_requests": 59},
            r"60 questions \(b 20, c 40\)",
        ),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        judge.check(JudgeSettings.model_validate(given), ALL, {})
    judge.check(JudgeSettings.model_validate(given), ALONE, {})


def test_a_run_is_named_after_its_judge_where_it_has_one(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.jsonl"
    baseline.write_text("{}\n")
    given = {"base_url": URL, "model": "m"}
    alone = run_id(CHECKPOINT, ALONE, Settings())
    assert run_id(CHECKPOINT, ALONE, settings(**given, baseline=str(baseline))) == alone
    ids = [
        run_id(CHECKPOINT, ALL, settings(**given, **more))
        for more in ({}, {"revision": "2"}, {"baseline": str(baseline)})
    ]
    baseline.write_text("{} \n")
    ids.append(run_id(CHECKPOINT, ALL, settings(**given, baseline=str(baseline))))
    assert len({alone, *ids}) == 5
    elsewhere = settings(base_url="http://elsewhere/v1", model="m")
    assert run_id(CHECKPOINT, ALL, elsewhere) == ids[0]


def test_a_directory_with_the_run_of_another_judge_is_refused(tmp_path: Path) -> None:
    first, other = (settings(base_url=URL, model=name) for name in ("m", "n"))
    run = make_run(suite=ALL, settings=first, shards=[], id=run_id(CHECKPOINT, ALL, first))
    _files.write_record(RunDir(tmp_path).run, run)
    assert existing(tmp_path, CHECKPOINT, ALL, first) is not None
    with pytest.raises(UserError, match="was made with judge m"):
        existing(tmp_path, CHECKPOINT, ALL, other)


def test_a_judge_may_move_and_stays_the_same(tmp_path: Path) -> None:
    before = settings(base_url=URL, model="m", max_requests=5, baseline="/b").judge
    now = judge.moved(before, settings(base_url="http://new/v1", max_requests=9).judge)
    assert (now.base_url, now.max_requests, now.model) == ("http://new/v1", 9, "m")
    assert now.baseline == "/b"
    assert judge.moved(before, settings(base_url="http://new/v1", model="n").judge) == before
    run_dir = RunDir(tmp_path)
    _files.write_record(run_dir.run, make_run(settings=Settings(judge=before)))
    _files.write_record(run_dir.judge_settings, now)
    assert read_run(run_dir).settings.judge == now


def test_a_relative_baseline_is_one_of_the_commands_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, _ = load({"judge.baseline": "answers.jsonl"})
    assert found.judge.baseline == str(tmp_path / "answers.jsonl")


def test_only_the_judges_job_and_the_supervisor_get_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")

    def passed(job: Job) -> dict[str, str]:
        return of_job(os.environ, (), job.needs, job.without)

    run, run_dir = make_run(settings=settings(api_key_env="JUDGE_KEY")), RunDir(Path("/r"))
    node = ROUND.nodes[0]
    assert node.name == NODES[0]
    others = [
        jobs.keeper_job(run, run_dir, ROUND, node),
        jobs.trials_job(run, run_dir, ROUND, node),
        jobs.node_job(run, run_dir, ROUND, node),
        *(
            pullers_job(run, run_dir, kind, 0, 1, time.time())
            for kind in Pullers
            if kind is not Pullers.JUDGE
        ),
    ]
    for job in others:
        assert "JUDGE_KEY" not in passed(job), job.name
    both = [
        pullers_job(run, run_dir, Pullers.JUDGE, 0, 1, time.time()),
        jobs.supervisor_job(run, run_dir, 1, time.time()),
    ]
    for job in both:
        assert "JUDGE_KEY" in passed(job)
        assert "sk-secret" not in job.model_dump_json()


def test_only_a_supervisor_keeps_what_proves_the_user_to_the_scheduler() -> None:
    run_dir, (node, *_) = RunDir(Path("/r")), ROUND.nodes
    by_server = make_run(settings=settings(base_url="http://judge/v1", model="judge"))
    by_checkpoint = make_run(settings=settings(checkpoint="/judge"))
    for run in (by_server, by_checkpoint):
        assert jobs.supervisor_job(run, run_dir, 1, time.time()).submits
        for kind in Pullers:
            assert not pullers_job(run, run_dir, kind, 0, 1, time.time()).submits, kind
        for make in (jobs.keeper_job, jobs.trials_job, jobs.node_job):
            assert not make(run, run_dir, ROUND, node).submits


def judged_run(run_dir: RunDir, **of_judge: Any) -> Any:
    for name, judged in (("a", False), ("b", True)):
        write_index(
            run_dir, name, 1, generate_requests=1, max_output_tokens=1, longest_output_tokens=1,
            asks=judged, judged=judged,
        )  # fmt: skip
    return make_run(settings=settings(**{"model": "judge"} | of_judge), asks=["b"], judged=["b"])


def test_a_judge_that_refuses_costs_its_datasets_and_no_others(tmp_path: Path) -> None:
    with Judge(models=["other"]) as server:
        run = judged_run(RunDir(tmp_path / "1"), base_url=server.url)
        (said,) = refuse(RunDir(tmp_path / "1"), run)
    assert "it has other" in said
    with Judge(models=["judge"], key="sk-right") as server:
        run = judged_run(RunDir(tmp_path / "2"), base_url=server.url)
        (said,) = refuse(RunDir(tmp_path / "2"), run)
    assert "refuses the key" in said
    for number in "12":
        assert given_up(RunDir(tmp_path / number)) == {"b"}


def test_a_judge_without_room_for_its_answers_costs_its_datasets(tmp_path: Path) -> None:
    rated = ALL.model_copy(update={"datasets": [*ALONE.datasets, JUDGED]})
    for number, context in enumerate((RUBRIC.max_tokens, RUBRIC.max_tokens + 1)):
        run_dir = RunDir(tmp_path / str(number))
        with Judge(models=["judge"], context=context) as server:
            run = judged_run(run_dir, base_url=server.url)
            said = refuse(run_dir, run.model_copy(update={"suite": rated}))
        assert given_up(run_dir) == ({"b"} if number == 0 else set())
        assert len(said) == (number == 0)
    assert "a context of 2,048 tokens" in RunDir(tmp_path / "0").dataset_error("b").read_text()


def tried(folder: Path, server: Judge, **of_rubric: Any) -> tuple[list[str], set[str]]:
    """Check what is said of a judge asked a question of a rubric, and what is given up."""
    run_dir = RunDir(folder)
    rubric = RUBRIC.model_copy(
        update={"patterns": [r"\[\[(\d+)\]\]"], "scale": (1, 10)} | of_rubric
    )
    run = judged_run(run_dir, base_url=server.url)
    write_index(
        run_dir, "b", 1, generate_requests=1, asks=True, judged=True,
        judge_example=judge_question("", rubric, PROMPT).content,
    )  # fmt: skip
    judged = JUDGED.model_copy(update={"rubric": rubric})
    suite = ALL.model_copy(update={"datasets": [*ALONE.datasets, judged]})
    return refuse(run_dir, run.model_copy(update={"suite": suite})), given_up(run_dir)


def test_a_judge_is_asked_a_question_of_each_rubric_with_its_parameters(tmp_path: Path) -> None:
    with Judge(lambda *_: says("[[8]]"), models=["judge"]) as server:
        assert tried(tmp_path, server, max_tokens=77, temperature=0.5) == ([], set())
    (body,) = server.asked
    assert (body["max_tokens"], body["temperature"]) == (77, 0.5)
    assert body["messages"][0]["content"] == PROMPT[0].content


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 2048. This model supports at most 1024 completion tokens",
        "'messages[0].role' does not support 'system' with this model",
        "This model's maximum context length is 2048 tokens",
    ],
)
def test_a_judge_that_takes_no_such_question_costs_no_gpu(tmp_path: Path, said: str) -> None:
    with Judge(lambda *_: fails(400, said), models=["judge"]) as server:
        (event,), lost = tried(tmp_path, server)
    assert lost == {"b"}
    assert event.startswith("not run: b. the judge answers no such questions: ")
    assert said[:40] in RunDir(tmp_path).dataset_error("b").read_text()


@pytest.mark.parametrize(
    ("reply", "event"),
    [
        (says("[[8]]"), None),
        (says("[[85]]"), "has a rating that the rubric does not allow: '[[85]]'"),
        (says("Eight."), "has no verdict: 'Eight.'"),
        (says("<think>[[8]]", finish_reason="length"), "is thinking without an end"),
        (says(None, finish_reason="length"), "has no words: if it thinks, raise max_tokens"),
        (says("", finish_reason="content_filter"), None),
        (fails(503), "does not answer"),
        (says([]), "does not answer"),
    ],
)
def test_what_a_judge_says_to_a_trial_question_is_told_and_costs_nothing(
    tmp_path: Path, reply: Reply, event: str | None
) -> None:
    with Judge(lambda *_: reply, models=["judge"]) as server:
        events, lost = tried(tmp_path, server)
    assert lost == set()
    assert len(events) == (event is not None)
    assert event is None or event in events[0]


def test_a_judge_with_a_fixed_temperature_is_told_of_and_asked(tmp_path: Path) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        odd = fails(400, "invalid temperature: only 1 is allowed for this model")
        return odd if "temperature" in body else says("[[8]]")

    with Judge(behave, models=["judge"]) as server:
        assert tried(tmp_path, server) == (
            ["the judge of b is asked without temperature, which its server does not support"],
            set(),
        )


def test_a_judge_that_thinks_for_long_has_taken_its_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "TRIAL_SECONDS", 0.1)
    with Judge(lambda *_: Reply(after_seconds=1e6), models=["judge"]) as server:
        assert tried(tmp_path, server) == ([], set())


def test_a_judge_that_has_answered_everything_is_not_asked_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run = judged_run(run_dir, base_url="http://127.0.0.1:9/v1")
    for portion in all_portions(run):
        _files.write(run_dir.published("answers", portion), "")
    assert refuse(run_dir, run) == []


def test_a_key_in_place_of_its_variables_name_is_not_taken() -> None:
    with pytest.raises(UserError, match=r"judge\.api_key_env") as caught:
        load({"judge.api_key_env": "sk-a-secret"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "given", ["http://u:secret@h/v1", "http://h/?key=secret", "http://h#secret"]
)
def test_an_address_with_a_secret_is_not_taken(given: str) -> None:
    with pytest.raises(UserError, match=r"judge\.base_url.*variable") as caught:
        load({"judge.base_url": given})
    assert "secret" not in str(caught.value)


def test_a_judge_that_does_not_answer_yet_costs_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with Judge() as server:
        run = judged_run(run_dir, base_url=server.url)
        assert refuse(run_dir, run) == []
    (said,) = refuse(run_dir, run)
    assert "connection refused" in said
    with Judge(lambda *_: fails(503)) as server:
        (said,) = refuse(run_dir, judged_run(run_dir, base_url=server.url))
    assert "HTTP 503" in said
    assert given_up(run_dir) == set()


def test_what_a_judge_did_is_told_apart_from_programs(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run = make_run(asks=["a", "b"], judged=["b"], created=0)
    again, other = (
        Answer(id=text, passed=True, result="[[5]]", seconds=3, tokens=100) for text in "xy"
    )
    kept = other.model_copy(update={"id": "z", "kept": True, "tokens": 0, "seconds": 0})
    program = Answer(id="p", passed=True, result="passed", seconds=7)
    answered = zip(all_portions(run), ([program], [program], [again, other, kept]), strict=True)
    for portion, answers in answered:
        _files.write(run_dir.questions(portion), "")
        lines = "".join(answer.line() for answer in answers)
        _files.write(run_dir.published("answers", portion), lines)
    found = read_time_ledger(run_dir, run, ended=True)
    assert found.cpu_seconds["metrics"] == 14
    assert found.judge is not None
    assert found.judge.model_dump() == {
        "questions": 2,
        "kept": 1,
        "tokens": 200,
        "seconds": 6,
        "gpu_seconds": 0,
    }


def test_a_plan_tells_how_many_questions_the_judge_gets() -> None:
    run = make_run(suite=ALL, judged=["b", "c"])
    costs = [Cost(name=n, items=7, gpu_seconds=1, metric_cpu_seconds=0) for n in "abc"]
    plan = Plan.model_construct(datasets=costs)
    assert questions_to_judge(run, plan) == {"b": 14, "c": 28}
