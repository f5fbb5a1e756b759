"""A checkpoint as judge: what is said of it before anything is submitted."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.runs import Workspace
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.judge_checkpoint import named
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError


def settings(**of_judge: Any) -> Settings:
    return Settings.model_validate({"judge": of_judge})


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


def test_it_needs_a_cluster_with_jobs(tmp_path: Path, chat: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "prompts: {rating: '{{ answer }}'}\npatterns: (.)\nscale: [0, 9]"
    )
    suite = tmp_path / "s.yaml"
    suite.write_text("datasets: [{name: d, task: gsm8k, rubric: r.yaml}]")
    done = Workspace(tmp_path).call(
        "run", tiny_model(), "--suite", suite, "--cluster", "ray", status=2,
        COORDINATE_EVAL_JUDGE_CHECKPOINT=str(chat),
    )  # fmt: skip
    assert "give a server of it, with --judge-url and --judge-model" in " ".join(
        done.stderr.split()
    )
    assert not (tmp_path / "runs").exists()
