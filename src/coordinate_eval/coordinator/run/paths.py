"""Every path of a run directory, folders too; docs/run-directory.md tells who writes what."""

from pathlib import Path

from coordinate_eval.records import Span


class RunDir:
    """The paths of one run. Nothing here reads or writes a file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # The run as a whole.

    @property
    def run(self) -> Path:
        """Return the file of `Run`: what is fixed at its creation, without what planning adds."""
        return self.root / "run.json"

    @property
    def planned(self) -> Path:
        """Return the file of `Planned`: what planning adds to `run`."""
        return self.root / "planned.json"

    @property
    def plan(self) -> Path:
        """Return the file of the `Plan` that the run follows."""
        return self.root / "plan.json"

    @property
    def reviewed(self) -> Path:
        """Return the file of the `Plan` that the user gave to be followed, if any."""
        return self.root / "reviewed.json"

    @property
    def report(self) -> Path:
        """Return the page for people: what the run made of its plan."""
        return self.root / "report.html"

    @property
    def results(self) -> Path:
        """Return the file of the scores, or of what is missing and why."""
        return self.root / "results.json"

    @property
    def first_signal(self) -> Path:
        """Return the file of `FirstSignal`: rough scores from a slice of each dataset."""
        return self.root / "first-signal.json"

    @property
    def judge(self) -> Path:
        """Return the file of `JudgeProgress`: how far the judge is."""
        return self.root / "judge.json"

    @property
    def judge_settings(self) -> Path:
        """Return the file of the `JudgeSettings` of the last resume, in place of those in `run`."""
        return self.root / "judge-settings.json"

    @property
    def waiting(self) -> Path:
        """Return the file of `Waiting`: why the run gets no nodes now."""
        return self.root / "waiting.json"

    def hook(self, name: str) -> Path:
        """Return the file of `HookEnd`: how `after_run` ended, or what tells of alarms."""
        return self.root / f"{name}.json"

    @property
    def refused(self) -> Path:
        """Return the file of `Refusals`: jobs that the scheduler refuses now."""
        return self.root / "refused.json"

    @property
    def cancelled(self) -> Path:
        """Return the file that says that the run was cancelled, and why if nobody asked for it."""
        return self.root / "cancelled"

    @property
    def resumed(self) -> Path:
        """Return the file of `Resumed`: failures from before its time no longer count."""
        return self.root / "resumed"

    @property
    def handed_over(self) -> Path:
        """Return the file of `HandedOver`: no job can supervise this run."""
        return self.root / "handed-over.json"

    @property
    def model(self) -> Path:
        """Return the folder of the checkpoint's configuration and tokenizer, for scoring."""
        return self.root / "model"

    @property
    def logs(self) -> Path:
        """Return the folder of the output of every job."""
        return self.root / "logs"

    @property
    def work(self) -> Path:
        """Return the empty folder that is the working directory of the run's processes."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        """Return the folder that is the home of jobs in containers; there is none before them."""
        return self.root / "home"

    @property
    def baselines_folder(self) -> Path:
        """Return the folder of the answers with which a judge compares those of the checkpoint."""
        return self.root / "baselines"

    def baseline(self, dataset: str) -> Path:
        """Return the file of the baseline's answers to a dataset's questions."""
        return self.baselines_folder / f"{dataset}.jsonl"

    # Rounds, jobs, and the processes that jobs run.

    def round(self, number: int) -> Path:
        """Return the file of a `Round`: nodes that were asked for together."""
        return self.root / "rounds" / f"{number}.json"

    def first_round(self, digest: str) -> Path:
        """Return the file of round 0 for the plan of this digest, until the run follows a plan."""
        return self.root / "rounds" / f"plan-{digest[:16]}.json"

    @property
    def jobs_folder(self) -> Path:
        """Return the folder of `job`."""
        return self.root / "jobs"

    def job(self, name: str) -> Path:
        """Return the file of `Submitted`: a job's id, or the scheduler's refusal."""
        return self.jobs_folder / f"{name}.json"

    @property
    def supervisors_folder(self) -> Path:
        """Return the folder of `supervisor`."""
        return self.root / "supervisor"

    def supervisor(self, epoch: int) -> Path:
        """Return the file of an `Epoch`: a supervisor. That with the highest epoch supervises."""
        return self.supervisors_folder / f"{epoch}.json"

    @property
    def alive_folder(self) -> Path:
        """Return the folder of `alive`."""
        return self.root / "alive"

    def alive(self, task: str) -> Path:
        """Return the empty file that a build, metric, judge's or scoring job touches all the time.

        `task` is the id of the job's task, without its restarts.
        """
        return self.alive_folder / task

    def stage(self, round_number: int, node: str) -> Path:
        """Return the file of the `StageProgress` of a node's keeper."""
        return self.root / "stage" / f"{round_number}-{node}.json"

    def released(self, round_number: int, node: str) -> Path:
        """Return the empty file that says that no trial of that round needs the node's weights."""
        return self.root / "stage" / f"{round_number}-{node}.released"

    def copies(self, node: str) -> Path:
        """Return the lines of `WeightsCopied`: each whole copy of the weights to a node."""
        return self.root / "stage" / f"{node}.jsonl"

    @property
    def trials_folder(self) -> Path:
        """Return the folder of `trial`."""
        return self.root / "trials"

    def trial(self, trial: str) -> Path:
        """Return the file of `TrialProgress`: how far a trial is."""
        return self.trials_folder / f"{trial}.json"

    def ranks(self, trial: str) -> Path:
        """Return the file that says where the first process of a trial on several nodes listens."""
        return self.root / "ranks" / f"{trial}.json"

    @property
    def incidents_folder(self) -> Path:
        """Return the folder of `incident`."""
        return self.root / "incidents"

    def incident(self, job: str) -> Path:
        """Return the file of `Incident`: what went wrong with a job, and why."""
        return self.incidents_folder / f"{job}.json"

    def scorings(self, dataset: str) -> Path:
        """Return the lines of `Scored`: the seconds of scoring a dataset, or parts of it."""
        return self.root / "observations" / f"score-{dataset}.jsonl"

    def observations(self, trial: str) -> Path:
        """Return the lines that a trial measured: `EngineStarted`, then one `ShardDone` each."""
        return self.root / "observations" / f"{trial}.jsonl"

    # Requests, responses, questions, answers. What ledgers there are: see `claims.py`.

    @property
    def requests_folder(self) -> Path:
        """Return the folder of `requests`."""
        return self.root / "requests"

    def requests(self, dataset: str) -> Path:
        """Return the lines of `ItemRequests`, in item order."""
        return self.requests_folder / f"{dataset}.jsonl"

    def requests_index(self, dataset: str) -> Path:
        """Return the file of `DatasetRequests`: the index of those lines."""
        return self.requests_folder / f"{dataset}.json"

    def requests_error(self, dataset: str) -> Path:
        """Return the text that says why a dataset's requests cannot be built."""
        return self.requests_folder / f"{dataset}.error"

    def questions_folder(self, dataset: str) -> Path:
        """Return the folder of a dataset's `questions`."""
        return self.root / "questions" / dataset

    def questions(self, span: Span) -> Path:
        """Return the lines of `Question` of a portion."""
        return self.questions_folder(span.dataset) / f"{span.stem}.jsonl"

    def published_folder(self, ledger: str, dataset: str) -> Path:
        """Return the folder of a dataset's `published` and `unpublished`."""
        return self.root / ledger / dataset

    def published(self, ledger: str, span: Span) -> Path:
        """Return the file of the complete lines of a span."""
        return self.published_folder(ledger, span.dataset) / f"{span.stem}.jsonl"

    def unpublished(self, ledger: str, span: Span, attempt: int) -> Path:
        """Return the file of the lines that one attempt at a span has written so far."""
        return self.published_folder(ledger, span.dataset) / f"{span.stem}.{attempt}.part"

    def claims_folder(self, ledger: str, dataset: str) -> Path:
        """Return the folder of a dataset's `claim` and `revocation`."""
        return self.root / "claims" / ledger / dataset

    def claim(self, ledger: str, span: Span, attempt: int) -> Path:
        """Return the file of a `Claim`: the owner of one attempt at a span."""
        return self.claims_folder(ledger, span.dataset) / f"{span.stem}.{attempt}.json"

    def revocation(self, ledger: str, span: Span, attempt: int) -> Path:
        """Return the file of a `Revocation`: that attempt is over, and another one may begin."""
        return self.claims_folder(ledger, span.dataset) / f"{span.stem}.{attempt}.revoked"

    def running(self, ledger: str, span: Span, attempt: int) -> Path:
        """Return the text that says what the attempt's owner is running, if it may end its job."""
        return self.claims_folder(ledger, span.dataset) / f"{span.stem}.{attempt}.running"

    # Scores of datasets.

    @property
    def results_folder(self) -> Path:
        """Return the folder of `dataset_results` and `dataset_error`."""
        return self.root / "results"

    def dataset_results(self, dataset: str) -> Path:
        """Return the file of `DatasetResults`."""
        return self.results_folder / f"{dataset}.json"

    def dataset_error(self, dataset: str) -> Path:
        """Return the text that says why a dataset could not be scored."""
        return self.results_folder / f"{dataset}.error"

    def items(self, dataset: str) -> Path:
        """Return the file of `DatasetItems`."""
        return self.root / "items" / f"{dataset}.json"

    @property
    def estimates_folder(self) -> Path:
        """Return the folder of `estimate`."""
        return self.root / "estimates"

    def estimate(self, dataset: str) -> Path:
        """Return the file of an `Estimate`: a dataset's rough scores, for `first_signal`."""
        return self.estimates_folder / f"{dataset}.json"
