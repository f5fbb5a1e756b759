"""The harness's prompt templates, compiled once each.

The harness compiles a template for every document, shot and choice that it renders. Compiled once,
it renders the same text, and building and scoring take a fraction of the CPU time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from jinja2 import Environment, Template
from lm_eval import utils

_MOST_TEMPLATES = 4096
"""Templates kept compiled: some kilobytes each. A task has a few."""


@lru_cache(_MOST_TEMPLATES)
def _compiled(source: str) -> Template:
    template: Template = Environment.from_string(utils.env, source)
    return template


@contextmanager
def compiled_once() -> Iterator[None]:
    """Compile each template of the harness once inside the block."""
    outer = vars(utils.env).get("from_string")
    utils.env.from_string = _compiled
    try:
        yield
    finally:
        if outer is None:
            del utils.env.from_string
        else:
            utils.env.from_string = outer
