"""Every path of a run directory, folders too; docs/run-directory.md tells who writes what."""

from pathlib import Path

from coordinate_eval.records import Span


class Place:
    """A path that every run has, by its name in the run directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunDir", owner: type) -> Path:
        return run.root / self._name


class RunDir:
    """The paths of one run. Nothing here reads or writes a file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # The run as a whole.

    run = Place("run.json")
    """File of `Run`: what is fixed at its creation, without what planning adds."""
    planned = Place("planned.json")
    """File of `Planned`: what planning adds to `run`."""
    plan = Place("plan.json")
    """File of the `Plan` that the run follows."""
    reviewed = Place("reviewed.json")
    """File of the `Plan` that the user gave to be followed, if any."""
    report = Place("report.html")
    """Page for people: what the run made of its plan."""
    results = Place("results.json")
    """File of the scores, or of what is missing and why."""
    first_signal = Place("first-signal.json")
    """File of `FirstSignal`: rough scores from a slice of each dataset."""
    judge = Place("judge.json")
    """File of `JudgeProgress`: how far the judge is."""
    judge_settings = Place("judge-settings.json")
    """File of the `JudgeSettings` of the last resume, in place of those in `run`."""
    waiting = Place("waiting.json")
    """File of `Waiting`: why the run gets no nodes now."""

    def hook(self, name: str) -> Path:
        """Return the file of `HookEnd`: how `after_run` ended, or what tells of alarms."""
        return self.root / f"{name}.json"

    refused = Place("refused.json")
    """File of `Refusals`: jobs that the scheduler refuses now."""
    cancelled = Place("cancelled")
    """File that says that the run was cancelled, and why if nobody asked for it."""
    resumed = Place("resumed")
    """File of `Resumed`: failures from before its time no longer count."""
    handed_over = Place("handed-over.json")
    """File of `HandedOver`: no job can supervise this run."""
    model = Place("model")
    """Folder of the checkpoint's configuration and tokenizer, for scoring."""
    logs = Place("logs")
    """Folder of the output of every job."""
    work = Place("work")
    """Empty folder that is the working directory of the run's processes."""
    home = Place("home")
    """Folder that is the home of jobs in containers; there is none before them."""
    baselines_folder = Place("baselines")
    """Folder of the answers with which a judge compares those of the checkpoint."""

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

    jobs_folder = Place("jobs")
    """Folder of `job`."""

    def job(self, name: str) -> Path:
        """Return the file of `Submitted`: a job's id, or the scheduler's refusal."""
        return self.jobs_folder / f"{name}.json"

    supervisors_folder = Place("supervisor")
    """Folder of `supervisor`."""

    def supervisor(self, epoch: int) -> Path:
        """Return the file of an `Epoch`: a supervisor. That with the highest epoch supervises."""
        return self.supervisors_folder / f"{epoch}.json"

    alive_folder = Place("alive")
    """Folder of `alive`."""

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

    trials_folder = Place("trials")
    """Folder of `trial`."""

    def trial(self, trial: str) -> Path:
        """Return the file of `TrialProgress`: how far a trial is."""
        return self.trials_folder / f"{trial}.json"

    def ranks(self, trial: str) -> Path:
        """Return the file that says where the first process of a trial on several nodes listens."""
        return self.root / "ranks" / f"{trial}.json"

    incidents_folder = Place("incidents")
    """Folder of `incident`."""

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

    requests_folder = Place("requests")
    """Folder of `requests`."""

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

    results_folder = Place("results")
    """Folder of `dataset_results` and `dataset_error`."""

    def dataset_results(self, dataset: str) -> Path:
        """Return the file of `DatasetResults`."""
        return self.results_folder / f"{dataset}.json"

    def dataset_error(self, dataset: str) -> Path:
        """Return the text that says why a dataset could not be scored."""
        return self.results_folder / f"{dataset}.error"

    def items(self, dataset: str) -> Path:
        """Return the file of `DatasetItems`."""
        return self.root / "items" / f"{dataset}.json"

    sample = Place("sample.json")
    """`Compared`: which items a sample asks, written with the plan; see `decided.py`."""
    decided = Place("decided.json")
    """`Compared`: the comparison that ended the run early; see `decided.py`."""

    full = Place("full")
    """Empty file that says that the run goes on all the same."""

    def comparison(self, number: int) -> Path:
        """Return the file of the `Compared` of a look."""
        return self.root / "comparisons" / f"{number}.json"

    estimates_folder = Place("estimates")
    """Folder of `estimate`."""

    def estimate(self, dataset: str) -> Path:
        """Return the file of an `Estimate`: a dataset's rough scores, for `first_signal`."""
        return self.estimates_folder / f"{dataset}.json"
