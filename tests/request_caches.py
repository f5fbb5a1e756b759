"""Somebody's cache of requests, and all that its requests are made from."""

import json
import os
import shutil
from pathlib import Path

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.prompts.request_cache import Builder, Built
from coordinate_eval.records import (
    Checkpoint,
    Dataset,
    ItemRequests,
    Request,
    Suite,
)
from tests.runs import TASKS
from tests.tiny import tiny_model

MAX_LENGTH = 512


class Home:
    """Somebody's tasks, tokenizer and cache, each to be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.model = Path(shutil.copytree(tiny_model(), folder / "model"))
        self.tasks = folder / "tasks"
        self.tasks.mkdir()
        self.data = self.tasks / "cloze.jsonl"
        shutil.copyfile(TASKS / "data" / "cloze.jsonl", self.data)
        task = (TASKS / "tiny_cloze.yaml").read_text()
        (self.tasks / "cloze.yaml").write_text(task.replace("data/cloze.jsonl", str(self.data)))
        self.dataset = Dataset(name="cloze", task="tiny_cloze")
        self.max_length = MAX_LENGTH
        self.engine = "simulated"

    def builder(self) -> Builder:
        """What a new command builds with."""
        return Builder(self.cache, self.inspect(), self.suite(), self.engine, self.max_length)

    def get(self) -> Built:
        """The requests as a new command would find or build them."""
        return self.builder().get(self.dataset)

    def suite(self) -> Suite:
        return Suite(name="s", digest="d", include_path=[str(self.tasks)], datasets=[self.dataset])

    def inspect(self) -> Checkpoint:
        return checkpoints.inspect(self.model)

    def own(self, code: str) -> None:
        """Have the task make its texts with `text` of this code."""
        path = self.tasks / "cloze.yaml"
        text = path.read_text().replace("""doc_to_text: "{{text.rsplit(' ', 1)[0]}}\"""", "")
        path.write_text(f"{text}doc_to_text: !function own.text\n")
        (self.tasks / "own.py").write_text(code)

    def suite_file(self) -> Path:
        path = self.folder / "suite.yaml"
        content = {"include_path": ["tasks"], "datasets": [{"name": "cloze", "task": "tiny_cloze"}]}
        path.write_text(json.dumps(content))
        return path

    def entries(self) -> list[Path]:
        """Files of the cache but its locks: requests and their descriptions, torn ones too."""
        folder = self.cache / f"requests-{os.geteuid()}"
        return sorted(path for path in folder.iterdir() if path.suffix != ".lock")


def requests(built: Built) -> list[Request]:
    """The requests that were built, in order."""
    lines = built.requests.read_bytes().splitlines()
    return [
        request
        for line in lines
        for request in ItemRequests.model_validate_json(line).of_dataset(built.index.dataset)
    ]
