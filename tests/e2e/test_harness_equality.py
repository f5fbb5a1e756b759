"""The numbers are those of the `lm_eval` command on the same model, tasks and options."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
pytest.importorskip("torch")

from lm_eval.utils import make_table
from tests.decisions import make_run
from tests.reference import lm_eval
from transformers import PreTrainedTokenizerFast

from coordinate_eval import _files
from coordinate_eval.coordinator.report.formats import lm_eval_results
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetResults,
    Question,
    Request,
    RequestKind,
    Response,
    Suite,
)

T = TypeVar("T")

FIXTURES = Path(__file__).parents[1] / "fixtures"
TASKS = FIXTURES / "tasks"
CONTEXT = 192  # tokens; some prompts of the fixtures are longer
DATASETS = [
    "tiny_group",
    "tiny_mutual",
    "tiny_written",  # a tag
    "tiny_cloze",
    "tiny_prose",
    "tiny_code",
]


def _lessons() -> list[tuple[str, str]]:
    """Prompts and how they go on, learnt by heart, so that some answers are right."""

    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (TASKS / "data" / name).read_text().splitlines()]

    lessons = [
        (row["question"], " " + row["choices"][row["gold"]]) for row in rows("choice_train.jsonl")
    ]
    sums = [(f"Question: {row['question']}\nAnswer:", row["answer"]) for row in rows("sums.jsonl")]
    shots = "".join(f"{question} {answer}\n\n" for question, answer in sums[:2])
    lessons += [(shots + question, f" {answer}\n\n") for question, answer in sums[2:]]
    lessons += [("", row["text"]) for row in rows("cloze.jsonl")]
    lessons += [(row["prompt"], row["solution"] + "\n#") for row in rows("code.jsonl")]
    return [(prompt, answer) for prompt, answer in lessons if len(prompt) < 250]


def _train_tokenizer(texts: list[str], folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # not typed there
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    fast.save_pretrained(folder)
    return fast


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers that has learnt some of the fixtures."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoint")
    lessons = _lessons()
    tokenizer = _train_tokenizer([prompt + answer for prompt, answer in lessons], folder)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # not typed there
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    rows = [
        [*tokenizer.encode(prompt), *tokenizer.encode(answer, add_special_tokens=False), 1]
        for prompt, answer in lessons
    ]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [1] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    for _ in range(100):
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which the data paths of the tasks are good."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(TASKS / "data", folder / "data")
    shutil.copytree(TASKS / "code_eval", folder / "code_eval")
    return folder


@pytest.fixture(scope="module")
def theirs(checkpoint: Path, workplace: Path) -> dict[str, Any]:
    """What the harness's own command says of all datasets, request by request."""
    options = ("--batch_size", "1", "--log_samples")
    return lm_eval(checkpoint, DATASETS, *options, include=TASKS, folder=workplace)


class _Engine:
    """One forward pass a request, without batches."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")

    def answer(self, request: Request) -> Response:
        import torch

        with torch.inference_mode():
            if request.kind is RequestKind.LOGLIKELIHOOD:
                whole = torch.tensor([request.tokens + request.continuation])
                logits = self._model(whole[:, :-1]).logits[0, len(request.tokens) - 1 :]
                target = whole[0, len(request.tokens) :]
                logprobs = logits.log_softmax(-1).gather(1, target[:, None])
                greedy = bool((logits.argmax(-1) == target).all())
                return respond(
                    request, logprob=float(logprobs.sum()), greedy=greedy,
                    tokens=len(target), finish="scored",
                )  # fmt: skip
            prompt = torch.tensor([request.tokens])
            out = self._model.generate(
                prompt, max_new_tokens=request.max_tokens, do_sample=False, pad_token_id=1
            )[0, prompt.shape[1] :]
        text = str(self._tokenizer.decode(out, skip_special_tokens=True))
        return respond(request, text=text, tokens=len(out), finish="length")


def _run_trusted(question: Question) -> Answer:
    """Execute a program of `tiny_code`: harmless."""
    try:
        exec(question.content, {})
    except Exception as error:
        return Answer(id=question.id, passed=False, result=f"failed: {error}", seconds=0)
    return Answer(id=question.id, passed=True, result="passed", seconds=0)


class _Run:
    """build → engine → questions of shards → finish, each step through JSON."""

    def __init__(self, checkpoint: Path) -> None:
        self._engine = _Engine(checkpoint)
        self._checkpoint = checkpoint
        self._answers: dict[str, tuple[list[Response], dict[str, Answer]]] = {}

    def evaluator(self) -> HarnessEvaluator:
        return HarnessEvaluator(
            tokenizer=self._checkpoint, max_length=CONTEXT, include_path=[str(TASKS)]
        )

    def score(self, dataset: Dataset) -> DatasetResults:
        return self.answered(dataset, HarnessEvaluator.finish)

    def answered(
        self,
        dataset: Dataset,
        ask: Callable[[HarnessEvaluator, Dataset, list[Response], dict[str, Answer]], T],
    ) -> T:
        """Return what a method of the evaluator says of the responses and answers."""
        if dataset.name not in self._answers:
            self._answers[dataset.name] = self._answer(dataset)
        return ask(self.evaluator(), dataset, *self._answers[dataset.name])

    def _answer(self, dataset: Dataset) -> tuple[list[Response], dict[str, Answer]]:
        lines: list[str] = []
        built = self.evaluator().build(dataset, lambda request: lines.append(request.line()))
        requests = [Request.model_validate_json(line) for line in lines]
        assert len(requests) == built.requests
        assert [request.item for request in requests] == sorted(r.item for r in requests)
        assert {request.item for request in requests} == set(range(built.items))
        responses = [
            Response.model_validate_json(self._engine.answer(request).line())
            for request in requests
        ]
        random.Random(1).shuffle(responses)
        metric = self.evaluator()
        answers = {
            question.id: _run_trusted(question)
            for start in range(0, built.items, 4)
            if built.asks
            for question in metric.questions(
                dataset, [one for one in responses if start <= one.item < start + 4]
            )
        }
        return responses, answers


@pytest.fixture(scope="module")
def run(checkpoint: Path, workplace: Path) -> Iterator[_Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        yield _Run(checkpoint)


def _assert_same(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, float):
            assert ours[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name
        else:
            assert ours[name] == value, name


@pytest.fixture(scope="module")
def ours(run: _Run) -> list[DatasetResults]:
    """All datasets, scored by this program."""
    return [run.score(Dataset(name=name)) for name in DATASETS]


def test_every_number_is_the_command_s(ours: list[DatasetResults], theirs: dict[str, Any]) -> None:
    together = {key: value for results in ours for key, value in results.results.items()}
    assert together.keys() == theirs["results"].keys()
    for task, metrics in theirs["results"].items():
        _assert_same(together[task], metrics, 1e-6)
    versions = {key: value for results in ours for key, value in results.versions.items()}
    assert versions == theirs["versions"]
    groups = {key: value for results in ours for key, value in results.groups.items()}
    for group, metrics in theirs["groups"].items():
        _assert_same(groups[group], metrics, 1e-6)
    # The comparison would be worth little on a model that is always wrong.
    assert together["tiny_sums"]["exact_match,flexible-extract"] > 0
    assert 0 < together["tiny_code"]["pass@1,create_test"] < 1
    assert together["tiny_cloze"]["acc,none"] > 0


def test_the_results_file_is_the_command_s(
    ours: list[DatasetResults], theirs: dict[str, Any], tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    suite = Suite(name="s", digest="d", datasets=[Dataset(name=n, task=n) for n in DATASETS])
    made = make_run(suite=suite, shards=[])
    for found in ours:
        _files.write_record(run_dir.dataset_results(found.dataset), found)
    written = lm_eval_results(made, collect_results(run_dir, made), ours)
    environment = {"pretty_env_info", "transformers_version", "upper_git_hash", "eot_token_id"}
    environment |= {f"tokenizer_{which}_token" for which in ("pad", "eos", "bos")}
    assert theirs.keys() - environment == written.keys() | {"samples"}
    assert written["config"].keys() <= theirs["config"].keys()
    for name in ("group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples"):
        assert written[name] == theirs[name], name
    for name in ("results", "groups"):
        for task, metrics in theirs[name].items():
            _assert_same(written[name][task], metrics, 1e-5)
    assert written["configs"].keys() == theirs["configs"].keys()
    assert written["lm_eval_version"] == theirs["lm_eval_version"]
    for column in ("results", "groups"):
        assert make_table(written, column) == make_table(theirs, column)


def test_options_mean_what_they_mean_to_the_command(
    run: _Run, checkpoint: Path, workplace: Path
) -> None:
    theirs = lm_eval(
        checkpoint, ["tiny_group", "tiny_sums"],
        "--batch_size", "1", "--num_fewshot", "3", "--limit", "5",
        "--gen_kwargs", "max_gen_toks=12", "--apply_chat_template",
        "--system_instruction", "Be brief.",
        include=TASKS, folder=workplace,
    )["results"]  # fmt: skip
    for task in ("tiny_group", "tiny_sums"):
        dataset = Dataset(
            name=f"{task}_with_options",
            task=task,
            num_fewshot=3,
            limit=5,
            gen_kwargs={"max_gen_toks": 12},
            chat_template=True,
            fewshot_as_multiturn=True,  # the command's default with a chat template
            system_instruction="Be brief.",
        )
        for name, metrics in run.score(dataset).results.items():
            leaf = name.removeprefix(dataset.name).removeprefix("/") or task
            _assert_same(metrics, theirs[leaf], 1e-6)


def test_samples_are_those_that_the_command_logs(run: _Run, theirs: dict[str, Any]) -> None:
    ours: dict[str, list[dict[str, Any]]] = {}
    for name in DATASETS:
        for noted in run.answered(Dataset(name=name), HarnessEvaluator.noted):
            logged = noted.logged()
            ours.setdefault(logged.task, []).append(json.loads(logged.content))
    assert ours.keys() == theirs["samples"].keys()
    assert len(ours) > len(DATASETS)
    for task, samples in theirs["samples"].items():
        for mine, sample in zip(ours[task], samples, strict=True):
            assert list(mine) == list(sample)
            for field, value in sample.items():
                assert _rounded(mine[field]) == _rounded(value), (task, field)


def _rounded(value: Any) -> Any:
    """Return a value with its numbers rounded, also those that are written as text."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    try:
        return value if isinstance(value, bool) else pytest.approx(float(value), rel=1e-5)
    except (TypeError, ValueError):
        return value
