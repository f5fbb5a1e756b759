"""Scoring of CRUXEval. Output values are compared; only calls are run, through `code_eval`."""

import ast
from typing import Any


def process_output(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return 1 if the text is a literal equal to the call's result, else 0."""
    said = results[0].split("#")[0] if _literal(results[0]) is None else results[0]
    found, wanted = _literal(said), _literal(doc["output"])
    if wanted is None:
        return {"pass@1": float(said.strip() == doc["output"].strip())}
    return {"pass@1": float(found is not None and found[0] == wanted[0])}


def process_input(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return 1 if the call in the text has the wanted result, else 0."""
    import evaluate

    call = asserted_call(results[0])
    # Without a call, ask about a program that fails, so that every response has a question.
    test = "assert False" if call is None else f"assert {call} == {doc['output']}"
    passed, _ = evaluate.load("code_eval").compute(
        references=[test], predictions=[[doc["code"]]], k=[1]
    )
    return {"pass@1": float(passed["pass@1"])}


def asserted_call(text: str) -> str | None:
    """Return the call of `f` on the left of `f(…) == …`, or None if there is none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    call = tree.left if isinstance(tree, ast.Compare) else tree
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "f":
        return ast.unparse(call)
    return None


def _literal(text: str) -> tuple[Any] | None:
    """Return the value of a literal, in a tuple because it may be None; else return None."""
    try:
        return (ast.literal_eval(text.strip()),)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
