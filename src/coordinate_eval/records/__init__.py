"""The records that travel between processes.

In the order in which a run makes them: `inputs`, `requests`, `shards`, `responses`, `questions`,
`results`. Everyone imports them from here.

They are written as JSON and never pickled. A file that holds one record carries its `schema`.
Readers ignore fields that they do not know, so that fields can be added. A JSON-lines file holds
one record per line; its version is in the file that describes it.

Units are seconds, bytes, tokens and items. Times are seconds since the epoch.
"""

from coordinate_eval.records.base import FileName, Record, absent, schema
from coordinate_eval.records.inputs import (
    Aggregate,
    Checkpoint,
    CheckpointFormat,
    Dataset,
    EngineSettings,
    Made,
    Message,
    ModelCosts,
    Prior,
    Rubric,
    Suite,
)
from coordinate_eval.records.questions import PYTHON, Answer, Question, QuestionKind, judge_name
from coordinate_eval.records.requests import (
    CACHE_BLOCK,
    Asked,
    DatasetRequests,
    ItemRequests,
    Key,
    OwnAnswers,
    Request,
    RequestKind,
    Response,
    Turn,
    computed_before,
    computed_by_turns,
    context_tokens,
    largest_token,
    prompt_lengths,
)
from coordinate_eval.records.results import DatasetItems, DatasetResults, ItemScores, Outputs
from coordinate_eval.records.shards import (
    Shard,
    Span,
    even_parts,
    seeded_order,
    stages,
)

__all__ = [
    "CACHE_BLOCK",
    "PYTHON",
    "Aggregate",
    "Answer",
    "Asked",
    "Checkpoint",
    "CheckpointFormat",
    "Dataset",
    "DatasetItems",
    "DatasetRequests",
    "DatasetResults",
    "EngineSettings",
    "FileName",
    "ItemRequests",
    "ItemScores",
    "Key",
    "Made",
    "Message",
    "ModelCosts",
    "Outputs",
    "OwnAnswers",
    "Prior",
    "Question",
    "QuestionKind",
    "Record",
    "Request",
    "RequestKind",
    "Response",
    "Rubric",
    "Shard",
    "Span",
    "Suite",
    "Turn",
    "absent",
    "computed_before",
    "computed_by_turns",
    "context_tokens",
    "even_parts",
    "judge_name",
    "largest_token",
    "prompt_lengths",
    "schema",
    "seeded_order",
    "stages",
]
