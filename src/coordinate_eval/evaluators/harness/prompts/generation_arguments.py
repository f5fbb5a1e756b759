"""The names of generation arguments, and which of them engines honour. This imports no harness."""

from coordinate_eval.evaluators.engines.common import SAMPLING

LIMITS = frozenset({"max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"})
"""The harness's names of one argument: the most tokens to generate."""

_NO_SAMPLING_PARAMETER = frozenset({"do_sample", "use_cache", "until"})


def why_not(name: str, value: object) -> str:
    """Return why no engine honours a generation argument, empty if they do."""
    if name in LIMITS | _NO_SAMPLING_PARAMETER:
        return ""
    if name == "num_beams":
        return "" if value == 1 else "it asks for beam search (num_beams), which is not supported"
    if name == "max_length":
        return "it limits prompt and output together (max_length); set max_gen_toks"
    if name in SAMPLING and isinstance(value, int | float) and not isinstance(value, bool):
        return ""
    return (
        f"its generation argument {name}={value!r} is not supported; "
        f"engines know {', '.join(SAMPLING)}"
    )
