"""Saves in the background of a training job: see docs/training.md.

Torch is imported when a `Saver` is made; nothing else is imported that training has to wait for.
"""

from coordinate_eval.checkpointing.saver import Saver as Saver
from coordinate_eval.checkpointing.saves import RESUME_FROM as RESUME_FROM
from coordinate_eval.checkpointing.saves import latest as latest
from coordinate_eval.errors import SaveError as SaveError
