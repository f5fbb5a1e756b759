"""A server as an engine: what it can do is found out, and what it does wrong has a cause."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import completions
from tests.completions import complete
from tests.judges import Behaviour, Judge, Reply, fails
from tests.runs import processes, until

from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.evaluators.engines import server as engine_module
from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.evaluators.engines.common import probe
from coordinate_eval.evaluators.engines.server import ServerEngine, check_args
from coordinate_eval.evaluators.servers import connection
from coordinate_eval.records import Request, RequestKind, Response

CONTEXT = 512
MADE_UP = shlex.join(
    [sys.executable, completions.__file__, "--port", "{port}", "--model", "{model}"]
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once, and give up soon."""
    monkeypatch.setattr(connection, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(connection, "MOST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(engine_module, "LONG_PATIENCE_SECONDS", 8.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a 'model' {gpus}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": completions.VOCABULARY}))
    return folder


def answers(body: dict[str, Any], number: int = 0) -> Reply:
    return Reply(body=json.dumps(complete(body)).encode())


def is_real(body: dict[str, Any]) -> bool:
    """Whether this is no request by which the engine finds out what the server can do."""
    prompt: list[int] = body["prompt"]
    return prompt != [3, 4, 5, 6][: len(prompt)]


def at(model: Path, server: Judge, /, **args: Any) -> ServerEngine:
    args = {"base_url": server.url, "concurrency": 8} | args
    return ServerEngine(Loading(model, 1, CONTEXT, args), {"THE_KEY": "sk-a-secret"})


def requests(count: int = 30) -> list[Request]:
    made = []
    for n in range(count):
        tokens = [7 + n % 5, 8, 9 + n]
        if n % 3:
            made.append(probe(RequestKind.GENERATE, tokens, max_tokens=3 + n % 4, stop=[" no"]))
        else:
            made.append(probe(RequestKind.LOGLIKELIHOOD, tokens, continuation=[n, 5][: 1 + n % 2]))
    return [each.model_copy(update={"item": n, "doc": n}) for n, each in enumerate(made)]


def run(engine: ServerEngine, asked: list[Request]) -> dict[int, Response]:
    found = list(engine.run(iter(asked)))
    assert sorted(each.item for each in found) == [each.item for each in asked]
    return {each.item: each for each in found}


def test_scores_are_equal_in_every_way_in_which_a_server_tells_them(model: Path) -> None:
    def without(*names: str) -> Behaviour:
        def behave(body: dict[str, Any], number: int) -> Reply:
            known = [name for name in names if name in body]
            return (
                fails(400, f"{known[0]}: extra inputs are not permitted")
                if known
                else answers(body)
            )

        return behave

    found = []
    for behave in (
        answers,
        without("logprob_token_ids"),
        without("logprob_token_ids", "prompt_logprobs"),
        without("logprob_token_ids", "min_p", "top_k", "return_token_ids", "repetition_penalty"),
    ):
        with Judge(behave, models=["it"]) as server:
            engine = at(model, server)
            assert engine.unable == {}
            found.append(run(engine, requests()))
            engine.close()
            assert {body["model"] for body in server.asked} == {"it"}
    assert found[1:] == found[:-1]
    assert {each.greedy for each in found[0].values()} == {None, True, False}
    assert {each.finish for each in found[0].values()} == {"stop", "length", "scored"}


def test_as_many_requests_are_in_flight_as_keep_it_busy(model: Path) -> None:
    with Judge() as server:
        server._behave = lambda body, number: Reply(
            body=answers(body).body, when=lambda: not is_real(body) or server.most_at_once >= 8
        )
        engine = at(model, server)
        run(engine, requests(60))
        engine.close()
        assert server.most_at_once == 8


@pytest.mark.parametrize(
    "wrong",
    [
        fails(503),
        Reply(drops=True),
        Reply(body=b"<html>a proxy's page</html>"),
    ],
)
def test_what_passes_by_itself_is_asked_again(model: Path, wrong: Reply) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        return wrong if is_real(body) and number % 4 == 0 else answers(body)

    with Judge(answers) as whole:
        engine = at(model, whole)
        expected = run(engine, requests())
        engine.close()
    with Judge(behave) as server:
        engine = at(model, server)
        assert run(engine, requests()) == expected
        engine.close()


def _changed(change: Callable[[dict[str, Any]], None]) -> Behaviour:
    def behave(body: dict[str, Any], number: int) -> Reply:
        reply = complete(body)
        if is_real(body):
            change(reply)
        return Reply(body=json.dumps(reply).encode())

    return behave


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (_changed(lambda reply: reply["choices"].clear()), "0 choices in place of one"),
        (_changed(lambda reply: reply["choices"].append({})), "2 choices in place of one"),
        (_changed(lambda reply: reply["usage"].update(prompt_tokens=9)), "9 tokens in place of"),
        (
            _changed(lambda reply: reply["usage"].update(completion_tokens=99)),
            "answer of 99 tokens",
        ),
        (_changed(lambda reply: reply["choices"][0].update(finish_reason="abort")), "'abort'"),
        (
            _changed(lambda reply: reply["choices"][0].pop("prompt_logprobs", 0)),
            "log-probabilities|",
        ),
        (lambda body, number: fails(500) if is_real(body) else answers(body), "HTTP 500"),
        (
            lambda body, number: fails(400, "no") if is_real(body) else answers(body),
            "no such quest",
        ),
    ],
)
def test_a_server_that_stays_wrong_ends_the_engine_and_names_a_request(
    model: Path, behave: Behaviour, words: str
) -> None:
    with Judge(behave) as server:
        engine = at(model, server)
        try:
            with pytest.raises(EngineError, match=words) as caught:
                run(engine, requests())
            assert "dataset 'probe', task 'probe', document" in str(caught.value)
        finally:
            engine.close()


def test_a_server_without_log_probabilities_of_prompts_is_able_to_write(model: Path) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        if {"echo", "prompt_logprobs", "logprobs"} & body.keys():
            return fails(400, "not supported")
        return answers(body)

    with Judge(behave) as server:
        engine = at(model, server)
        assert engine.unable.keys() == {RequestKind.LOGLIKELIHOOD}
        assert "not supported" in engine.unable[RequestKind.LOGLIKELIHOOD]
        assert run(engine, [requests()[1].model_copy(update={"item": 0})])[0].text
        engine.close()


@pytest.mark.parametrize(
    ("server", "args", "words"),
    [
        (Judge(answers, models=["a", "b"]), {}, "several models.*one of a, b"),
        (Judge(answers, models=["a", "b"]), {"model": "c"}, r"has no model 'c'.*\[engine.args\]"),
        (
            Judge(answers, models=["a"], context=64),
            {},
            "a context of 64 tokens, and this run's is 512",
        ),
        (Judge(answers, key="sk-other"), {"api_key_env": "THE_KEY"}, "refuses the key"),
        (Judge(answers), {"api_key_env": "NO_KEY"}, "NO_KEY, which .*names, is not set"),
        (Judge(lambda *_: fails(400, "chat only")), {}, "takes neither token ids .* nor text"),
        (Judge(lambda *_: fails(404, "no such path")), {}, "has no model"),
    ],
)
def test_what_a_server_cannot_do_is_the_users_to_mend(
    model: Path, server: Judge, args: dict[str, Any], words: str
) -> None:
    (model / "tokenizer.json").write_text(_tokenizer())
    with server, pytest.raises(UserError, match=words) as caught:
        at(model, server, **args)
    assert "sk-a-secret" not in str(caught.value)


def _tokenizer() -> str:
    from tests.tiny import tiny_model

    return (tiny_model() / "tokenizer.json").read_text()


def test_a_server_that_takes_only_text_is_asked_by_text(model: Path) -> None:
    (model / "tokenizer.json").write_text(_tokenizer())

    def behave(body: dict[str, Any], number: int) -> Reply:
        return answers(body) if isinstance(body["prompt"], str) else fails(422, "prompt: a string")

    with Judge(behave) as server:
        engine = at(model, server)
        assert engine.unable.keys() == {RequestKind.LOGLIKELIHOOD}
        written = probe(RequestKind.GENERATE, [270, 281, 290], max_tokens=9)
        assert run(engine, [written])[0].text
        engine.close()
    from tests.tiny import tiny_model, tokenizer

    assert server.asked[-1]["prompt"] == tokenizer(tiny_model()).decode([270, 281, 290])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "either .*command.* or base_url"),
        ({"command": "a {model} {port}", "base_url": "http://h/v1"}, "either"),
        ({"command": "serve --port {port}"}, "no {model}"),
        ({"command": "serve"}, "no {model} and no {port}"),
        ({"command": "serve '{model} {port}"}, "cannot be split"),
        ({"base_url": "host:8000"}, "is no address"),
        ({"base_url": "http://me:secret@h/v1"}, "holds a password"),
        ({"base_url": "http://h/v1", "concurrency": 0}, "concurrency is 0"),
        ({"base_url": "http://h/v1", "max_num_seqs": 4}, "no engine argument 'max_num_seqs'"),
        ({"base_url": 5}, "base_url is 5"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    args: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        check_args(args)
    assert "secret" not in str(caught.value)


SLEEPS = f"1000.{os.getpid()}"
"""Seconds for which what these tests start sleeps, as no other process on this machine does."""


def by_command(model: Path, command: str = MADE_UP, **args: Any) -> ServerEngine:
    return ServerEngine(Loading(model, 1, CONTEXT, {"command": command} | args))


def test_a_command_is_started_asked_and_ended_with_all_that_it_started(model: Path) -> None:
    inner = f'{sys.executable} {completions.__file__} --port $1 --model "$2"'
    apart = f"setsid sleep {SLEEPS} & trap '' TERM; "
    shell = shlex.join(["sh", "-c", f"{apart}{inner} & wait", "sh", "{port}", "{model}"])
    engine = by_command(model, shell)
    with Judge(answers) as server:
        other = at(model, server)
        assert run(engine, requests()) == run(other, requests())
        other.close()
    assert processes("sleep", SLEEPS) and processes(str(model))
    engine.close()
    engine.close()
    assert not processes("sleep", SLEEPS) and not processes(str(model))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "/no/such/program {model} {port}",
            "exit status 127.*cannot start /no/such/program: No such",
        ),
        ("sh -c 'echo out of luck; exit 3' {model} {port}", "exit status 3.*out of luck"),
        ("sh -c 'kill -9 $$' {model} {port}", "exit status 137"),
    ],
)
def test_a_command_that_ends_at_once_says_why(model: Path, command: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        by_command(model, command)


def test_a_command_that_never_listens_is_given_up_with_its_last_words(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "START_MINUTES", 0.1)  # time for its words
    with pytest.raises(EngineError, match=r"has not answered at .* within .*: waiting for a GPU"):
        by_command(model, f"sh -c 'echo waiting for a GPU; exec sleep {SLEEPS}' {{model}} {{port}}")
    assert not processes("sleep", SLEEPS)


LISTENS = (
    "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
    "print('loading', flush=True); "
)


def test_a_command_that_listens_and_never_answers_is_given_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "START_MINUTES", 0.03)
    command = shlex.join([sys.executable, "-c", LISTENS + "time.sleep(1000.8)", "{port}"])
    with pytest.raises(EngineError, match=r"has not answered at .* within"):
        by_command(model, f"{command} {{model}}")
    assert not processes("1000.8", str(model))


def test_a_command_that_ends_before_it_answers_says_why_while_its_port_is_open(
    model: Path,
) -> None:
    """What it has started holds the connection."""
    ends = "s.accept(); s.set_inheritable(True); "
    ends += "import os; os.fork() or time.sleep(1000.9); sys.exit(3)"
    command = shlex.join([sys.executable, "-c", LISTENS + ends, "{port}"])
    with pytest.raises(EngineError, match=r"exit status 3.*loading"):
        by_command(model, f"{command} {{model}}")
    assert not processes("1000.9", str(model))


def test_a_server_of_others_that_never_answers_is_given_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LONG_PATIENCE_SECONDS", 0.5)
    with (
        Judge(lambda body, number: Reply(when=lambda: False)) as server,
        pytest.raises(EngineError, match="does not answer: it accepts requests and says nothing"),
    ):
        at(model, server)


def test_a_server_that_dies_ends_the_engine_and_leaves_the_answers_before(model: Path) -> None:
    engine = by_command(model, concurrency=4)
    found: list[Response] = []

    def endless() -> Iterator[Request]:
        for n in range(10**6):
            if n == 40:
                for pid in processes(str(model)):
                    os.kill(pid, signal.SIGKILL)
            yield requests(2)[1].model_copy(update={"item": n})

    with pytest.raises(EngineError, match=r"the server's command ended .exit status 137"):
        found += engine.run(endless())
    engine.close()
    until(lambda: not processes(str(model)), "the end of the server")
