"""The records that travel between processes.

In the order in which a run makes them: `inputs`, `requests`, `shards`, `responses`, `questions`,
`results`. Everyone imports them from here.

They are written as JSON and never pickled. A file that holds one record carries its `schema`.
Readers ignore fields that they do not know, so that fields can be added. A JSON-lines file holds
one record per line; its version is in the file that describes it.

Units are seconds, bytes, tokens and items. Times are seconds since the epoch.
"""

from coordinate_eval.records.base import FileName as FileName
from coordinate_eval.records.base import Record as Record
from coordinate_eval.records.base import absent as absent
from coordinate_eval.records.base import schema as schema
from coordinate_eval.records.inputs import Aggregate as Aggregate
from coordinate_eval.records.inputs import Checkpoint as Checkpoint
from coordinate_eval.records.inputs import CheckpointFormat as CheckpointFormat
from coordinate_eval.records.inputs import Dataset as Dataset
from coordinate_eval.records.inputs import EngineSettings as EngineSettings
from coordinate_eval.records.inputs import Made as Made
from coordinate_eval.records.inputs import Message as Message
from coordinate_eval.records.inputs import ModelCosts as ModelCosts
from coordinate_eval.records.inputs import Prior as Prior
from coordinate_eval.records.inputs import Rubric as Rubric
from coordinate_eval.records.inputs import Suite as Suite
from coordinate_eval.records.questions import PYTHON as PYTHON
from coordinate_eval.records.questions import Answer as Answer
from coordinate_eval.records.questions import Question as Question
from coordinate_eval.records.questions import QuestionKind as QuestionKind
from coordinate_eval.records.questions import judge_name as judge_name
from coordinate_eval.records.requests import CACHE_BLOCK as CACHE_BLOCK
from coordinate_eval.records.requests import Asked as Asked
from coordinate_eval.records.requests import DatasetRequests as DatasetRequests
from coordinate_eval.records.requests import ItemRequests as ItemRequests
from coordinate_eval.records.requests import Key as Key
from coordinate_eval.records.requests import OwnAnswers as OwnAnswers
from coordinate_eval.records.requests import Request as Request
from coordinate_eval.records.requests import RequestKind as RequestKind
from coordinate_eval.records.requests import Response as Response
from coordinate_eval.records.requests import Turn as Turn
from coordinate_eval.records.requests import computed_before as computed_before
from coordinate_eval.records.requests import computed_by_turns as computed_by_turns
from coordinate_eval.records.requests import context_tokens as context_tokens
from coordinate_eval.records.requests import largest_token as largest_token
from coordinate_eval.records.requests import prompt_lengths as prompt_lengths
from coordinate_eval.records.results import DatasetItems as DatasetItems
from coordinate_eval.records.results import DatasetResults as DatasetResults
from coordinate_eval.records.results import ItemScores as ItemScores
from coordinate_eval.records.results import Outputs as Outputs
from coordinate_eval.records.shards import Shard as Shard
from coordinate_eval.records.shards import Span as Span
from coordinate_eval.records.shards import even_parts as even_parts
from coordinate_eval.records.shards import seeded_order as seeded_order
from coordinate_eval.records.shards import stages as stages
