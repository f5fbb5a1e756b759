"""vLLM's own server as the engine: its answers are those of vLLM in this process."""

import shlex
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
from tests.engine_requests import choices, conversations, ids, mixed, run, same, score, write
from tests.tiny import MAX_LENGTH, need, shared_folder, tiny_model

from coordinate_eval.evaluators.engines.base import Engine, Loading, by_name

SERVES = shlex.join(
    [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}",
        "--host", "127.0.0.1", "--port", "{port}", "--max-model-len", "{max_length}",
        "--enforce-eager", "--dtype", "float32", "--max-num-seqs", "8",
        "--generation-config", "vllm", "--gpu-memory-utilization", "0.2",
        "--disable-uvicorn-access-log",
    ]
)  # fmt: skip
ENVIRON = {
    "VLLM_CACHE_ROOT": str(shared_folder() / "vllm"),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@pytest.fixture
def server() -> Iterator[Engine]:
    """The tiny model in a server."""
    need("vllm", "vllm-cpu")
    with mock.patch.dict("os.environ", ENVIRON):
        args = {"command": SERVES, "concurrency": 16}
        engine = by_name("server").start(Loading(tiny_model(), 1, MAX_LENGTH, args))
    yield engine
    engine.close()


def test_a_server_answers_as_the_engine_does(server: Engine, vllm: Engine) -> None:
    assert server.unable == {}
    almost = [5 + n % 300 for n in range(MAX_LENGTH - 5)]
    penalty = {"temperature": 0.0, "repetition_penalty": 1.3}
    hot = {"temperature": 1.0, "top_p": 0.95, "top_k": 50.0, "min_p": 0.01}
    requests = [
        *mixed(80),
        # Stop strings across tokens, a special token's own text, none, and an empty one.
        *(write(100 + n, "the cat", stop=[s, "☃"]) for n, s in enumerate(["a", "<s>", "ne", ""])),
        *(write(110 + n, "the cat sat " * n, sampling=penalty) for n in range(1, 4)),
        *(write(120 + n, "the cat", sampling=hot | {"seed": n}) for n in range(4)),
        # A text ends where the context does.
        write(130, "", tokens=almost, max_tokens=50),
        write(131, "the cat", max_tokens=10**6),
        score(132, "", "", tokens=almost, continuation=[7, 8, 9, 10]),
        score(133, "", "the cat", tokens=[0]),
        *(each.model_copy(update={"item": 140 + each.item}) for each in conversations(12)),
        *(
            each.model_copy(update={"item": 160 + each.item, "stop": ["a", "ne", "\n"]})
            for each in conversations(12)
        ),
    ]
    found = run(server, requests)
    same(found, run(vllm, requests))
    assert {each.finish for each in found.values()} == {"stop", "length", "scored"}
    likeliest = [score(n, "", "", tokens=ids("the cat"), continuation=[n]) for n in range(300)]
    same(run(server, likeliest), run(vllm, likeliest))
    several = choices(0, ids("the cat sat"), [[7], [9], [8, 7], [7]])
    by_index = [sorted(each.run(iter(several)), key=lambda r: r.index) for each in (server, vllm)]
    same(*(dict(enumerate(each)) for each in by_index))
