"""A checkpoint as judge: what is said of it before anything is submitted."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.judged_runs import SERVER, checkpoint_judged, judged_run
from tests.plans import CHECKPOINT, changed, offer
from tests.reviewer import NODES
from tests.runs import Workspace
from tests.tiny import tiny_model

from coordinate_eval.clusters.protocol import Busy
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    begins_thinking,
    named,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.judge_plan import judge_of, nodes_of_judge, plan_judge
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.plan import JudgeWork
from coordinate_eval.coordinator.planning.plan_run import (
    nodes_for,
    plan_run,
)
from coordinate_eval.coordinator.supervisor.placing import write_plan
from coordinate_eval.coordinator.supervisor.placing.write_plan import NothingFree
from coordinate_eval.errors import UserError
from coordinate_eval.records import Dataset, EngineSettings, Message, Rubric

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster.yaml"


def settings(**of_judge: Any) -> Settings:
    return Settings.model_validate({"judge": of_judge}, extra="forbid")


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A checkpoint with a chat template."""
    folder = tmp_path / "chat-7b"
    shutil.copytree(tiny_model(), folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def test_it_is_named_by_its_folder_and_told_apart_by_its_contents(chat: Path) -> None:
    judge = named(settings(checkpoint=str(chat))).judge
    assert judge.name.startswith("chat-7b@")
    (chat / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert named(settings(checkpoint=str(chat))).judge.name != judge.name
    assert named(settings(base_url="http://host/v1")) == settings(base_url="http://host/v1")


@pytest.mark.parametrize("other", [{"base_url": "http://host/v1"}, {"model": "gpt"}])
def test_a_server_besides_is_refused(chat: Path, other: dict[str, str]) -> None:
    with pytest.raises(UserError, match="either a checkpoint or a server"):
        named(settings(checkpoint=str(chat), **other))


def test_it_needs_a_chat_template() -> None:
    with pytest.raises(UserError, match="has no chat template"):
        named(settings(checkpoint=str(tiny_model())))


OF_GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
)


def test_a_system_message_is_not_lost(chat: Path) -> None:
    """Some templates refuse it, and others leave it out: most rubrics have their rules there."""
    user, system = (Message(role=role, content="{{ answer }}") for role in ("user", "system"))
    plain = Rubric(name="plain", prompts={"p": [user]}, patterns=["(.)"])
    ruled = Rubric(name="ruled", prompts={"p": [system, user]}, patterns=["(.)"])
    given = settings(checkpoint=str(chat))
    for text, why in (
        (OF_GEMMA, "refuses a system message .*System role not supported"),
        ("{{ messages[-1].content }}", "leaves a system message out"),
    ):
        (chat / "chat_template.jinja").write_text(text)
        assert named(given, [plain]).judge.model == "chat-7b"
        with pytest.raises(UserError, match=f"{why}.*, with which rubric 'ruled' begins"):
            named(given, [plain, ruled])
    (chat / "chat_template.jinja").write_text(OF_GEMMA)
    with pytest.raises(UserError, match="refuses a system message"):
        named(given)


@pytest.mark.parametrize(
    ("end", "begins"),
    [
        ("", False),
        ("<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("[THINK]", True),
        ("<|open|>think<|sep|>", True),  # Kimi K3
        ("<|channel>thought\n<channel|>", False),  # Gemma 4
        ("<|begin_assistant|>\nHere are my reasoning steps:\n", True),  # Apriel 1.6
        ("<|start|>assistant", False),  # gpt-oss
    ],
)
def test_it_is_known_whether_its_template_begins_its_thinking(
    chat: Path, end: str, begins: bool
) -> None:
    (chat / "chat_template.jinja").write_text("{{ messages[0].content }}{{ '" + end + "' }}")
    assert begins_thinking(inspect(chat)) == begins


def test_an_engine_without_a_server_is_refused(chat: Path) -> None:
    given = settings(checkpoint=str(chat))
    slow = given.model_copy(update={"engine": EngineSettings(name="transformers")})
    with pytest.raises(UserError, match="the engine transformers has none"):
        named(slow)


def rated(folder: Path) -> Path:
    """A suite with one dataset, which a judge rates."""
    (folder / "r.yaml").write_text(
        "prompts: {rating: '{{ answer }}'}\npatterns: (.)\nscale: [0, 9]"
    )
    suite = folder / "s.yaml"
    suite.write_text("datasets: [{name: d, task: gsm8k, items: 1319, rubric: r.yaml}]")
    return suite


def test_a_dry_run_shows_what_its_job_comes_to(tmp_path: Path, chat: Path) -> None:
    done = Workspace(tmp_path).call(
        "run", tiny_model(), "--suite", rated(tmp_path), "--cluster", CLUSTER, "--dry-run",
        COORDINATE_EVAL_JUDGE_CHECKPOINT=str(chat), COLUMNS="200",
    )  # fmt: skip
    assert "up to 1,319 questions to chat-7b@" in done.stdout
    assert re.search(r"in a job of its own on \d+ GPUs?: it answers from about", done.stdout)
    assert re.search(r"last score +after about", done.stdout)


def test_a_dry_run_counts_the_judge_s_time_beside_the_plan(tmp_path: Path, chat: Path) -> None:
    def shown(**environ: str) -> dict[str, Any]:
        done = Workspace(tmp_path).call(
            "run", tiny_model(), "--suite", rated(tmp_path), "--cluster", CLUSTER, "--dry-run",
            "--json", status=0, **environ,
        )  # fmt: skip
        plan: dict[str, Any] = json.loads(done.stdout)
        return plan

    alone = shown()
    own = shown(COORDINATE_EVAL_JUDGE_CHECKPOINT=str(chat))
    server = shown(
        COORDINATE_EVAL_JUDGE_BASE_URL="http://host/v1",
        COORDINATE_EVAL_JUDGE_MODEL="m",
    )
    assert "judge" not in alone
    assert own["estimate"] == server["estimate"] == alone["estimate"]
    assert own["judge"]["questions"] == server["judge"]["questions"] == 1319
    assert own["judge"]["gpus"] > 0
    assert own["judge"]["end_seconds"] > own["estimate"]["makespan_seconds"]
    assert server["judge"]["gpus"] == 0
    # Each answer is taken to last ten seconds, and 32 questions are asked at the same time.
    assert server["judge"]["end_seconds"] - server["judge"]["begin_seconds"] >= 1319 * 10 / 32


def test_one_on_free_gpus_of_another_type_waits_for_no_trial_to_end(tmp_path: Path) -> None:
    run, there = checkpoint_judged(tmp_path), offer(NODES, metric_cpus=8)
    long = Dataset(name="long", task="long", items=100_000)
    suite = run.suite.model_copy(update={"datasets": [*run.suite.datasets, long]})
    run = run.model_copy(update={"suite": suite})
    found = plan_judge(run, there, {})
    assert found is not None
    assert found.gpu_type == NODES[0].gpu_type
    none_free = [Busy(name=n.name, why="", gpus=n.gpus, gpu_type=n.gpu_type) for n in NODES]
    queued = plan_judge(run, replace(there, nodes=[], busy=none_free), {})
    assert queued is not None
    assert queued.gpu_type == ""

    def begins(gpu_type: str) -> float:
        every, seconds = JudgeWork(questions=1, gpus=1000), dict.fromkeys(found.seconds, 1e5)
        asked = Judging(every, seconds, gpu_type)
        plan = plan_run(run, there, nodes_for(run, there), {}, judging=asked).plan
        assert plan.judge is not None
        return plan.judge.begin_seconds

    assert begins("another") < begins(found.gpu_type) == begins("")


def test_one_that_fits_on_no_gpu_is_refused_before_a_run_is_made(
    tmp_path: Path, chat: Path
) -> None:
    config = json.loads((chat / "config.json").read_text())
    (chat / "config.json").write_text(json.dumps(config | {"head_dim": 10**7}))
    done = Workspace(tmp_path).call(
        "run", tiny_model(), "--suite", rated(tmp_path), "--cluster", CLUSTER, "--dry-run",
        COORDINATE_EVAL_JUDGE_CHECKPOINT=str(chat), status=2,
    )  # fmt: skip
    assert "chat-7b" in done.stderr
    assert "GiB" in done.stderr


def test_a_judge_that_is_gone_when_the_run_is_planned_ends_it_or_leaves_out_what_it_rates(
    tmp_path: Path,
) -> None:
    run, there = checkpoint_judged(tmp_path), offer(NODES, metric_cpus=8)
    shutil.rmtree(tmp_path / "chat")
    why = f"the judge cannot be used: checkpoint {tmp_path / 'chat'} does not exist"
    with pytest.raises(UserError, match=re.escape(why)):
        write_plan._with_judging(run, there, {})
    lenient = run.model_copy(update={"strict": False})
    with pytest.raises(UserError, match=re.escape(why)):  # nothing else is to be run
        write_plan._with_judging(lenient, there, {})
    datasets = [*run.suite.datasets, Dataset(name="plain", task="plain", items=9)]
    suite = run.suite.model_copy(update={"datasets": datasets})
    left, judging, said = write_plan._with_judging(
        lenient.model_copy(update={"suite": suite}), there, {}
    )
    assert ([dataset.name for dataset in left.suite.datasets], judging) == (["plain"], None)
    assert said.startswith(why)


@pytest.mark.parametrize("strict", [True, False])
def test_a_large_judge_waits_for_nodes_that_are_promised_to_another_run(
    tmp_path: Path, strict: bool
) -> None:
    """Where only nodes without their GPUs are listed, the run waits: it neither ends nor loses a
    dataset."""
    run = checkpoint_judged(tmp_path).model_copy(update={"strict": strict})
    judge = judge_of(run)
    large = replace(judge, checkpoint=changed(CHECKPOINT, bytes=14 * 10**10, parameters=7 * 10**10))
    promised = [node.busy("promised to your run other") for node in NODES]
    chosen = nodes_of_judge(large, offer([], promised))
    assert (chosen.gpus_per_trial, chosen.nodes[0].gpu_type) == (2, "h200")
    larger = replace(large, checkpoint=changed(CHECKPOINT, bytes=10**14, parameters=5 * 10**13))
    with pytest.raises(UserError, match="GiB"):
        nodes_of_judge(larger, offer(NODES))
    config = json.loads((tmp_path / "chat" / "config.json").read_text())
    (tmp_path / "chat" / "config.json").write_text(json.dumps(config | {"head_dim": 10**7}))
    with pytest.raises(NothingFree, match="no place for the judge"):
        write_plan._with_judging(run, offer([], [Busy(name="n1", why="in use")]), {})


def test_a_judge_for_which_no_node_has_room_now_is_planned_all_the_same(tmp_path: Path) -> None:
    run = checkpoint_judged(tmp_path)
    full = [node.model_copy(update={"memory_gib": 1.0}) for node in NODES]
    found = plan_judge(run, offer(full, metric_cpus=8), {})
    assert found is not None
    assert (found.work.gpus, found.gpu_type) == (1, "")


def test_a_server_that_is_asked_more_at_once_is_sooner_done(tmp_path: Path) -> None:
    found = plan_judge(judged_run(tmp_path, **SERVER, concurrency=10), offer([], metric_cpus=8), {})
    assert found is not None
    assert found.seconds == {"rated": pytest.approx(100), "other": pytest.approx(50)}
