"""Check what confines and compiles programs here, and which servers can be reached."""

import os
import re
from collections.abc import Iterator, Mapping

from coordinate_eval._format import brief
from coordinate_eval.coordinator.doctor.findings import Finding, ok, warning
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError

ANSWER_SECONDS = 10.0
"""Time for a server to answer."""

_HUB = "https://huggingface.co"
_USER = re.compile(r"(?<=//)[^?#]*@")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def sandbox() -> Finding:
    """Confine a program, at the strongest level that works here."""
    from coordinate_eval.evaluators.sandbox.sandbox import Sandbox

    try:
        level = Sandbox.probe().level
    except UserError as error:
        return warning(
            "sandbox",
            "programs that a model wrote cannot be confined: datasets that run them get no scores",
            str(error),
        )
    return ok("sandbox", f"programs are confined by {level}")


def compilers() -> Finding:
    """Look for what compiles and runs programs in other languages than Python."""
    from coordinate_eval.evaluators.sandbox.languages import LANGUAGES, missing_packages

    there = [language.title for name, language in LANGUAGES.items() if not missing_packages([name])]
    missing = missing_packages(LANGUAGES)
    if missing:
        lacking = [language.title for language in LANGUAGES.values() if language.title not in there]
        return warning(
            "compilers",
            f"no programs in {', '.join(lacking)}: datasets that run them get no scores",
            f"install on all nodes of metric jobs: apt-get install {' '.join(missing)}",
        )
    return ok("compilers", f"programs in {', '.join(there)} can be run")


def network(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Ask the hub for an answer, and the judge's server if there is one."""
    offline = next((name for name in _OFFLINE if environ.get(name) == "1"), "")
    if offline:
        yield ok("hub", f"not asked, because {offline} is 1: prompts come from the cache")
    else:
        hub = environ.get("HF_ENDPOINT") or _HUB
        yield _reached(
            "hub", hub, "run `coordinate-eval prefetch CKPT` where there is a network; then runs "
            "need none",
        )  # fmt: skip
    if settings.judge.base_url:
        models = settings.judge.base_url.rstrip("/") + "/models"
        yield _reached(
            "judge", models, "start the judge, or correct [judge] base_url; a run whose judge is "
            "away can be resumed",
        )  # fmt: skip


def _reached(check: str, url: str, do: str) -> Finding:
    """Return whether a server gives any answer. A password in its address is not shown."""
    import httpx

    name = _USER.sub("", url)
    try:
        status = httpx.head(url, timeout=ANSWER_SECONDS).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return warning(
            check, f"{name} gives no answer ({brief(error) or type(error).__name__})", do
        )
    if status >= 500:
        return warning(check, f"{name} answers with status {status}", do)
    return ok(check, f"{name} answers")
