"""Every path of a run directory, and nothing else; docs/run-directory.md says who writes what."""

from pathlib import Path

from coordinate_eval.records import Span


class RunDir:
    """Names the files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def run(self) -> Path:
        """`Run`: everything frozen at submission."""
        return self.root / "run.json"

    @property
    def plan(self) -> Path:
        """`Plan`: what was planned at submission."""
        return self.root / "plan.json"

    @property
    def results(self) -> Path:
        """The scores, whole or said to be incomplete."""
        return self.root / "results.json"

    @property
    def first_signal(self) -> Path:
        """`FirstSignal`: rough scores from a slice of each dataset."""
        return self.root / "first-signal.json"

    @property
    def cancelled(self) -> Path:
        """There once the run was cancelled."""
        return self.root / "cancelled"

    @property
    def resumed(self) -> Path:
        """Written when the run is resumed: what failed before does not count any more."""
        return self.root / "resumed"

    @property
    def scoring(self) -> Path:
        """Name of the dataset that the scorer works on; empty while there is none."""
        return self.root / "results" / "scoring"

    @property
    def model(self) -> Path:
        """The checkpoint's configuration and tokenizer; it may be gone when scores are due."""
        return self.root / "model"

    @property
    def logs(self) -> Path:
        """Output of every job."""
        return self.root / "logs"

    def requests(self, dataset: str) -> Path:
        """JSON lines of `Request`, in item order."""
        return self.root / "requests" / f"{dataset}.jsonl"

    def requests_index(self, dataset: str) -> Path:
        """`DatasetRequests` of that file."""
        return self.root / "requests" / f"{dataset}.json"

    def round(self, number: int) -> Path:
        """`Round`: the nodes asked for together."""
        return self.root / "rounds" / f"{number}.json"

    def job(self, name: str) -> Path:
        """`Submitted`: a job that the scheduler accepted, or its refusal."""
        return self.root / "jobs" / f"{name}.json"

    def stage(self, round_number: int, node: str) -> Path:
        """`StageProgress` of a keeper."""
        return self.root / "stage" / f"{round_number}-{node}.json"

    def copies(self, node: str) -> Path:
        """JSON lines of `WeightsCopied`: each whole copy of the weights to this node."""
        return self.root / "stage" / f"{node}.jsonl"

    def released(self, round_number: int, node: str) -> Path:
        """There once no trial of that round needs the node's weights any more."""
        return self.root / "stage" / f"{round_number}-{node}.released"

    def trial(self, trial: str) -> Path:
        """`TrialProgress`."""
        return self.root / "trials" / f"{trial}.json"

    def observations(self, trial: str) -> Path:
        """JSON lines of what a trial measured: `EngineStarted`, then a `ShardDone` each."""
        return self.root / "observations" / f"{trial}.jsonl"

    def supervisor(self, epoch: int) -> Path:
        """Who supervises: the highest epoch does."""
        return self.root / "supervisor" / f"{epoch}.json"

    @property
    def supervisors(self) -> Path:
        """Folder of `supervisor`."""
        return self.root / "supervisor"

    def claims(self, ledger: str, dataset: str) -> Path:
        """Folder of the claims on a dataset's spans."""
        return self.root / "claims" / ledger / dataset

    def published(self, ledger: str, span: Span) -> Path:
        """The complete lines of a span: responses (`outputs`) or answers (`answers`)."""
        return self.root / ledger / span.dataset / f"{span.stem}.jsonl"

    def part(self, ledger: str, span: Span, attempt: int) -> Path:
        """The lines so far of one attempt at a span."""
        return self.root / ledger / span.dataset / f"{span.stem}.{attempt}.part"

    def questions(self, span: Span) -> Path:
        """JSON lines of `Question` of a span."""
        return self.root / "questions" / span.dataset / f"{span.stem}.jsonl"

    def dataset_results(self, dataset: str) -> Path:
        """`DatasetResults`."""
        return self.root / "results" / f"{dataset}.json"

    def dataset_error(self, dataset: str) -> Path:
        """Why a dataset could not be scored, in words."""
        return self.root / "results" / f"{dataset}.error"
