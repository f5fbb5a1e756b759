"""Score every checkpoint of a pretraining run on the free GPUs of a cluster."""

from coordinate_eval._after_save import after_save as after_save
from coordinate_eval._reference import reference as reference

__version__ = "0.1.0"
