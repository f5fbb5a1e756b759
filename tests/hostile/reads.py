"""The parts that read a checkpoint, in a process of their own: `python reads.py PART FOLDER...`.

For each folder it prints a line of JSON: the folder, and what the part came to. Like a user's own
command in `cd CKPT && coordinate-eval .`, it works in the folder.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coordinate_eval.errors import CoordinateError

TASKS = Path(__file__).parent / "tasks"


def copies(place: Path) -> Path:
    """The clean copies of a checkpoint's files, as they are made where prompts are built."""
    from coordinate_eval.coordinator.inputs.checkpoints import checkpoint, clean_files

    folder = Path(tempfile.mkdtemp(dir=place.parent))
    clean_files.copy(checkpoint.inspect(place).files, folder)
    return folder


def _prompt(folder: Path, *, chat: bool = False) -> list[int]:
    """The prompt of the task that loads the tokenizer itself, after a check of its own tokens."""
    from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
    from coordinate_eval.records import Dataset, Request

    evaluator = HarnessEvaluator(tokenizer=folder, max_length=500, include_path=[str(TASKS)])
    requests: list[Request] = []
    evaluator.build(Dataset(name="reads_tokenizer", chat_template=chat), requests.append)
    return requests[0].tokens


def build(place: Path) -> object:
    return _prompt(copies(place))


def build_uncleaned(place: Path) -> object:
    return _prompt(place)


def chat(place: Path) -> object:
    return _prompt(copies(place), chat=True)


def trusting(place: Path) -> object:
    """The harness's own loaders, which trust any code, and what a task may call beside them."""
    from coordinate_eval.evaluators.harness.session import harness_session

    with harness_session():
        import transformers
        from lm_eval.tasks.babilong import common_utils as babilong
        from lm_eval.tasks.ruler import common_utils as ruler
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        trusted: dict[str, Any] = {"trust_remote_code": True, "local_files_only": True}
        calls: list[Callable[[str], object]] = [
            ruler.get_tokenizer,
            babilong.get_tokenizer,
            *(
                lambda folder, kind=kind: getattr(transformers, kind).from_pretrained(
                    folder, **trusted
                )
                for kind in ("AutoConfig", "AutoTokenizer", "AutoProcessor", "AutoModelForCausalLM")
            ),
            transformers.AutoTokenizer.from_pretrained,  # asks on the terminal whether to trust
            lambda folder: transformers.pipeline("text-generation", folder, trust_remote_code=True),
            lambda folder: get_class_from_dynamic_module("hostile.Model", folder),
        ]
        return [_outcome(call, str(folder)) for folder in (copies(place), place) for call in calls]


def dry_run(place: Path) -> object:
    from typer.testing import CliRunner

    from coordinate_eval.coordinator.cli.app import app

    suite = place.parent / "suite.yaml"
    suite.write_text(
        f"include_path: [{TASKS}]\ndatasets: [{{name: reads, task: reads_tokenizer}}]\n"
    )
    # On a cluster file, a dry run would not run the task's code.
    options = ["--suite", str(suite), "--cluster", "local", "--dry-run", "--json"]
    done = CliRunner().invoke(app, ["run", ".", *options])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)["datasets"][0]["items"]


@contextlib.contextmanager
def staged(place: Path) -> Iterator[Path]:
    """The weights of a checkpoint as trials have them."""
    from coordinate_eval.coordinator.inputs.checkpoints import checkpoint
    from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights

    (memory := place.parent / "memory").mkdir()
    weights = StagedWeights(str(memory), "run", "node")
    with weights.hold():
        weights.copy(checkpoint.inspect(place), lambda _: None)
        yield weights.folder


def engine(name: str, place: Path) -> object:
    """A trial's start: the weights are staged, and the engine loads them."""
    from coordinate_eval.evaluators.engines.base import Loading, by_name

    with staged(place) as folder:
        by_name(name).start(Loading(folder, 1, 128, {})).close()
    return "started"


def engine_uncleaned(name: str, place: Path) -> object:
    from coordinate_eval.evaluators.engines.base import Loading, by_name

    by_name(name).start(Loading(place, 1, 128, {})).close()
    return "started"


def _outcome(call: Callable[[str], object], folder: str) -> str:
    try:
        return type(call(folder)).__name__
    except Exception as error:  # of a library
        return f"{type(error).__name__}: {error}"


PARTS: dict[str, Callable[[Path], object]] = {
    "build": build,
    "build, uncleaned": build_uncleaned,
    "chat": chat,
    "trusting": trusting,
    "dry run": dry_run,
    "transformers": lambda place: engine("transformers", place),
    "transformers, uncleaned": lambda place: engine_uncleaned("transformers", place),
    "vllm": lambda place: engine("vllm", place),
}


def main(part: str, *places: str) -> None:
    for place in places:
        os.chdir(place)
        try:
            said = PARTS[part](Path(place))
        except CoordinateError as error:
            said = f"refused: {error}"
        sys.stdout.write(json.dumps([place, said]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
