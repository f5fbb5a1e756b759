"""Scripts that lie where a data set or a metric is looked for by its name are not run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.checkpoints import HOSTILE, make, marked

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.evaluators.harness.session import harness_session
from coordinate_eval.records import Dataset

SHADOWS = next(each for each in HOSTILE if each.name == "shadows")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of which everything is named like a metric or a data set."""
    folder = make(SHADOWS, tmp_path / "here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.mark.parametrize(
    "name", ["planted", "./planted", "planted/planted.py", "evaluate-metric/planted", "exact_match"]
)
def test_a_metric_in_the_working_folder(name: str, here: Path) -> None:
    import evaluate
    from lm_eval.api.registry import get_metric

    with harness_session():
        with pytest.raises(UserError, match=r"is not run as a metric") as refused:
            evaluate.load(name)
        assert str(here) in str(refused.value)
        assert get_metric(name, hf_evaluate_metric=True) is None
    assert not marked(here)


def test_a_task_that_asks_for_it(here: Path) -> None:
    (here / "data.jsonl").write_text(json.dumps({"question": "1 + 1 =", "answer": "2"}) + "\n")
    (here / "asks.yaml").write_text(
        "task: asks\ndataset_path: json\ndataset_kwargs: {data_files: {test: data.jsonl}}\n"
        "output_type: generate_until\ntest_split: test\n"
        'doc_to_text: "{{question}}"\ndoc_to_target: "{{answer}}"\n'
        "metric_list: [{metric: planted, aggregation: mean, higher_is_better: true}]\n"
    )
    evaluator = HarnessEvaluator(tokenizer=here, max_length=500, include_path=[str(here)])
    with pytest.raises(UserError, match=r"metric 'planted' of task 'asks' is not one of"):
        evaluator.build(Dataset(name="asks"), lambda _: None)
    assert not marked(here)


def test_a_metric_that_is_given_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import evaluate

    # An engine that was started in this process before has closed the usual folder.
    monkeypatch.setattr("evaluate.config.HF_MODULES_CACHE", str(tmp_path / "modules"))
    # And one that has loaded a metric before looks for others where that was.
    monkeypatch.syspath_prepend(tmp_path / "modules")
    for name in [name for name in sys.modules if name.partition(".")[0] == "evaluate_modules"]:
        monkeypatch.delitem(sys.modules, name)
    script = tmp_path / "own.py"
    script.write_text(
        "import datasets\nimport evaluate\n"
        "class Own(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        kind = datasets.Features({'predictions': datasets.Value('int64'),"
        " 'references': datasets.Value('int64')})\n"
        "        return evaluate.MetricInfo(description='', citation='', features=kind)\n"
        "    def _compute(self, predictions, references):\n"
        "        return {'own': 1.0}\n"
    )
    with harness_session():
        metric = evaluate.load(str(script))
    assert metric.compute(predictions=[1], references=[1]) == {"own": 1.0}


def test_a_loading_script(here: Path) -> None:
    import datasets
    import datasets.load

    with harness_session():
        for name in ("planted", "./planted", "planted/planted.py", str(here / "planted")):
            with pytest.raises((RuntimeError, ValueError, FileNotFoundError, UserError)):
                datasets.load_dataset(name)
        # What versions that take scripts do at their end, with the script's module.
        with pytest.raises(UserError, match=r"loading script planted\.planted is not run"):
            datasets.load.import_main_class("planted.planted")
        found = datasets.load_dataset("text", data_files=str(here / "config.json"))
    assert found["train"].num_rows > 0
    assert not marked(here)


_CHILD = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
for kind in (AutoConfig, AutoModelForCausalLM, AutoTokenizer):
    try:
        kind.from_pretrained(sys.argv[1], trust_remote_code=True)
    except OSError as error:
        print(error)
"""


def test_a_child_of_an_engine(tmp_path: Path) -> None:
    """Child processes of an engine have only the environment, and transformers as it is."""
    own = next(each for each in HOSTILE if each.name == "own model")
    folder = make(own, tmp_path / "CKPT")
    for more, runs in ((own_code.environment(), False), ({}, True)):
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, folder],
            env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert bool(marked(folder)) == runs, done.stderr
        assert (own_code.NOWHERE in done.stdout) != runs, done.stdout + done.stderr
