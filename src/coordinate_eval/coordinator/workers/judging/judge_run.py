"""A checkpoint of one's own as the judge: it answers in a run of its own, inside the first one's.

The dataset of that run is the questions of the first one. So the judge is staged, planned, pulled
and resumed as every checkpoint is, by jobs of its own, on GPUs that are free when the questions are
there.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    DATASET,
    TASK,
    begins_thinking,
    longest_answer,
    revision,
    settings_of_judge,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.inputs.suites.suite_yaml import shipped_folder
from coordinate_eval.coordinator.planning.new_run import new_run, read_inputs
from coordinate_eval.coordinator.report.results import read_results, reasons
from coordinate_eval.coordinator.report.state import (
    has_ended_incomplete,
    is_complete,
    is_supervised,
)
from coordinate_eval.coordinator.run import holds, jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run, read_run_if_there
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.coordinator.run.starting.create import create, submit_supervisor
from coordinate_eval.coordinator.workers.open_shards import read_requests
from coordinate_eval.errors import (
    ClusterError,
    CoordinateError,
    RunExists,
    SubmitLater,
    SubmitRefused,
    UserError,
)
from coordinate_eval.evaluators.judged.thinking import BEGIN
from coordinate_eval.records import Answer, Question, Response, Span


class JudgeRunEnded(CoordinateError):
    """The judge's run has ended without all answers; the text says why."""


class JudgeRun:
    """The run in which a checkpoint answers some questions. Any number of processes may hold it."""

    def __init__(self, run_dir: RunDir, run: Run, questions: Sequence[Question]) -> None:
        """Find the run that has these questions, or name a new one.

        Args:
            run_dir: the run that asks.
            run: what it is; its settings name the judge's checkpoint.
            questions: those that are to be answered, without duplicates, in any order. A run that
                has others too will do: some of its answers may have been taken over before.
        """
        self._asking_dir, self._asking = run_dir, run
        self._questions = sorted(questions, key=lambda question: question.id)
        ids = [question.id for question in self._questions]
        digest = hashlib.sha256("".join(ids).encode()).hexdigest()[:10]
        self._folder, self._ids = run_dir.judge_folder / digest, ids
        for folder in sorted(run_dir.judge_folder.glob("*")):
            with contextlib.suppress(FileNotFoundError):
                known = [json.loads(line)["id"] for line in _files.lines(_questions_in(folder))]
                if set(ids) <= set(known):
                    self._folder, self._ids = folder, known
        self._dir = RunDir(self._folder / "run")
        self._read: set[Span] = set()
        self._begins: str | None = None
        """The text before answers, if its prompts begin the thinking."""

    @property
    def root(self) -> Path:
        """Return the run directory."""
        return self._dir.root

    def try_to_start(self) -> str:
        """Do what `start` does. Return why it is to be tried again later, empty if it is done.

        Raises:
            UserError: the judge's checkpoint has changed, or cannot be used.
            SubmitRefused: the scheduler would refuse the supervisor again.
        """
        try:
            self.start()
        except ClusterError as error:
            if isinstance(error, SubmitRefused) and not isinstance(error, SubmitLater):
                raise
            words = str(error).partition("\n")[0]
            return f"the scheduler will be asked again about the judge's run: {words}"
        return ""

    def start(self) -> None:
        """Create the run, and see to its supervisor unless it has one. Go on with a stopped one.

        Where jobs belong to the process that supervises the run that asks, this is its supervisor.
        For a run that asks and is cancelled, also meanwhile, nothing is begun.

        Raises:
            UserError: the judge's checkpoint has changed, or cannot be used.
            ClusterError: the scheduler refuses the supervisor, or is silent.
        """
        settings = settings_of_judge(self._asking.settings)
        run = read_run_if_there(self._dir) or self._create(settings)
        if is_complete(self._dir) or self._is_cancelled():
            return
        over = has_ended_incomplete(self._dir)
        if over:
            resumes.note(self._dir, by_hand=True)
        cluster = clusters.by_name(self._asking.cluster, settings)
        if cluster.local:
            return
        with cluster:
            tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(run)))
            if over or not is_supervised(self._dir, run, tasks):
                if unlaunched := holds.unlaunched_supervisors(run, tasks):
                    cluster.cancel(unlaunched)
                self._submit(run, cluster)

    def _submit(self, run: Run, cluster: Cluster) -> None:
        """Submit a supervisor, unless the run that asks is cancelled. End it if that is, meanwhile.

        Whoever cancels that one may look for this one too early to find it.
        """
        if self._is_cancelled():
            return
        with contextlib.suppress(ClusterError, UserError):  # those of the run that asks will do
            run = run.model_copy(update={"limits": cluster.limits()})
        job_id = None
        try:
            job_id = submit_supervisor(self._dir, run, cluster).job_id
        finally:  # without an answer, the job may be there
            if self._is_cancelled() and job_id is not None:
                cluster.cancel([job_id])

    def _is_cancelled(self) -> bool:
        """Return whether the run that asks is cancelled, and pass that on to this one."""
        with contextlib.suppress(OSError):  # such as a full disk
            _files.touch(self._asking_dir.root)
        cancelled = self._asking_dir.cancelled.exists()
        if cancelled:
            _files.write(self._dir.cancelled, "")
        return cancelled

    def new_answers(self) -> Iterator[Answer]:
        """Yield the answers that were published since the last call, to any question of the run.

        A question that was cut to fit into the judge's context is one that it refuses.
        """
        run = read_run(self._dir)
        if self._begins is None:
            self._begins = BEGIN if begins_thinking(run.checkpoint) else ""
        ledger = Ledger(self._dir, "outputs")
        spans = [shard.span for shard in run.shards]
        for span in set(spans) - set(ledger.unpublished(spans)) - self._read:
            self._read.add(span)
            asked = {request.item: request for request in read_requests(self._dir, span)}
            for line in _files.lines(self._dir.published("outputs", span)):
                response = Response.model_validate_json(line)
                request = asked[response.item]
                room = run.max_length - request.max_tokens
                fits = len(request.tokens) < room
                yield Answer(
                    id=self._ids[response.item],
                    passed=fits,
                    result=f"{self._begins}{response.text or ''}"
                    if fits
                    else f"refused: the question takes more than the {room} tokens that the "
                    f"judge's context of {run.max_length} has for one",
                    seconds=0.0,
                    tokens=len(request.tokens) + response.tokens,
                    cut=fits and response.finish == "length",
                )

    def check_goes_on(self) -> None:
        """Check that the run has not ended without all answers.

        Raises:
            JudgeRunEnded: the run has ended without all answers.
        """
        if has_ended_incomplete(self._dir):
            why = "; ".join(reasons(read_results(self._dir))) or "it says no reason"
            raise JudgeRunEnded(f"the judge's run in {self.root} ended without all answers: {why}")

    def _create(self, settings: Settings) -> Run:
        judge = self._asking.settings.judge
        tasks = self._folder / "tasks"
        tasks.mkdir(parents=True, exist_ok=True)
        inputs = read_inputs(
            settings,
            suite.parse(_SUITE, where="suite.yaml", folder=self._folder),
            Path(judge.checkpoint or ""),
        )
        if revision(inputs.checkpoint) != judge.revision:
            raise UserError(
                f"the judge {judge.checkpoint} has changed since this run began, so its answers "
                "would not be of one judge: start a new run"
            )
        most = longest_answer(inputs.max_length)
        file = _questions_in(self._folder)
        _files.create(file, "".join(_line(question, most) for question in self._questions))
        _files.write(tasks / "judge_questions.yaml", _task(file))
        _files.write(self._folder / "suite.yaml", _SUITE)
        made = new_run(
            inputs,
            self._asking.cluster,
            exclusive=self._asking.exclusive,
            limits=self._asking.limits,
        )
        with contextlib.suppress(RunExists):  # another job was first
            create(self.root, made)
        return read_run(self._dir)


_SUITE = json.dumps(
    {
        "name": "judge",
        "include_path": ["tasks"],
        "datasets": [{"name": DATASET, "task": TASK, "chat_template": True}],
    },
    indent=1,
)


def _questions_in(folder: Path) -> Path:
    """Return the file of a judge's run with its questions, in the order of its items."""
    return folder / "tasks" / "questions.jsonl"


def _task(questions: Path) -> str:
    """Return the task of these questions, as YAML: JSON, but for its tag."""
    shipped = shipped_folder() / "tasks" / "judge_questions.yaml"
    content = {
        "include": str(shipped),
        "task": TASK,
        "dataset_kwargs": {"file": str(questions)},
    }
    return json.dumps(content, indent=1) + "\n"


def _line(question: Question, most_tokens: int) -> str:
    """Return a question as a document of the task, with an answer of at most so many tokens."""
    content = json.loads(question.content)
    sampling = {
        "max_gen_toks": min(content["max_tokens"], most_tokens),
        "temperature": content["temperature"],
        "do_sample": content["temperature"] > 0,
    }
    document = {"id": question.id, "messages": content["messages"], "sampling": sampling}
    return json.dumps(document) + "\n"
