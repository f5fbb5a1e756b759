"""A checkpoint that judges, and a suite with answers for it, for tests of whole runs."""

import shutil
from pathlib import Path

import yaml

from tests.runs import TASKS, Workspace
from tests.tiny import tiny_model

TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)

RUBRIC = """\
prompts:
  rating:
  - {role: system, content: Rate the answer.}
  - {role: user, content: "{{ question }} {{ answer }}"}
patterns: '(\\d+)'
scale: [0, 100]
"""


def own_judge(workspace: Workspace) -> Path:
    """The tiny model with a chat template."""
    folder = workspace.folder / "a judge"
    if not folder.exists():
        shutil.copytree(tiny_model(), folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def judged_suite(workspace: Workspace) -> Path:
    """A dataset that a judge rates, and one that it does not."""
    (workspace.folder / "rating.yaml").write_text(RUBRIC)
    suite = {
        "include_path": [str(TASKS)],
        "datasets": [
            {"name": "judged", "task": "tiny_sums", "rubric": "rating.yaml"},
            {"name": "tiny_cloze", "task": "tiny_cloze"},
        ],
    }
    path = workspace.folder / "judged.yaml"
    path.write_text(yaml.safe_dump(suite))
    return path
