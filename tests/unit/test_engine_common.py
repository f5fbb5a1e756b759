"""The rules that engines share: what they refuse, how they sample, where a stop string cuts."""

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import changed
from tests.runs import PATIENCE_SECONDS

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common, vllm_defaults
from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.evaluators.engines.transformers import batches
from coordinate_eval.evaluators.engines.transformers_text import first_stop
from coordinate_eval.records import Request, RequestKind

ASKED = common.probe(RequestKind.GENERATE, [1, 2], task="it's a task", doc=5, max_tokens=4)

short = st.text(alphabet="ab", max_size=6)


def change(**fields: object) -> Request:
    return changed(ASKED, **fields)


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=4), short, short)
def test_a_text_is_cut_as_if_it_came_by_the_character(
    stops: list[str], before: str, new: str
) -> None:
    if any(stop in before for stop in stops):
        return  # it would have ended there
    wanted = None
    for length in range(len(before) + 1, len(before + new) + 1):
        ended = [stop for stop in stops if (before + new)[:length].endswith(stop)]
        if ended:
            wanted = length - len(ended[0])
            break
    assert first_stop(before + new, stops, len(before)) == wanted


def test_what_fits_exactly_is_taken() -> None:
    common.check(change(tokens=[0, 9] * 2), max_length=5, most_scored=4, vocabulary=10)
    with pytest.raises(EngineError, match=r"task \"it's a task\", document 5.* 5 tokens"):
        common.check(change(tokens=[0] * 5), max_length=5, most_scored=9, vocabulary=10)
    scored = change(kind=RequestKind.LOGLIKELIHOOD, continuation=[3], max_tokens=0)
    common.check(scored, max_length=3, most_scored=3, vocabulary=4)
    with pytest.raises(EngineError, match="3 tokens"):
        common.check(scored, max_length=9, most_scored=2, vocabulary=4)


def test_no_sampling_is_greedy_and_some_is_not() -> None:
    assert common.sampling(ASKED)["temperature"] == 0
    wanted = common.sampling(change(sampling={"top_k": 40.0, "seed": 3.0}))
    assert wanted["temperature"] == 1
    assert (wanted["top_k"], wanted["seed"]) == (40, 3)
    assert type(wanted["top_k"]) is int


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -2.0])
@pytest.mark.parametrize("name", list(common.SAMPLING))
def test_values_that_no_engine_can_use_are_refused(name: str, value: float) -> None:
    with pytest.raises(EngineError, match=f"document 5.*{name}"):
        common.sampling(change(sampling={name: value}))


@given(st.lists(st.tuples(st.sampled_from(RequestKind), st.integers(1, 9))), st.integers(1, 5))
def test_batches_hold_everything_once_and_one_kind_each(
    asked: list[tuple[RequestKind, int]], size: int
) -> None:
    requests = [change(item=n, kind=k, tokens=[1] * m) for n, (k, m) in enumerate(asked)]
    cut = list(batches(requests, size))
    assert sorted(r.item for batch in cut for r in batch) == list(range(len(requests)))
    assert all(len(batch) <= size and len({r.kind for r in batch}) == 1 for batch in cut)


def test_a_short_text_does_not_wait_for_a_long_one_in_its_batch() -> None:
    requests = [
        change(item=n, kind=RequestKind.GENERATE, max_tokens=500 if n % 2 else 5) for n in range(12)
    ]
    assert all(len({r.max_tokens for r in batch}) == 1 for batch in batches(requests, 3))


@pytest.mark.parametrize(("engine", "module"), [("vllm", "vllm"), ("transformers", "torch")])
def test_a_missing_extra_is_the_users_to_install(engine: str, module: str) -> None:
    script = f"""
import sys
from typing import Any
from pathlib import Path
sys.modules[{module!r}] = None  # as if it were not installed
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines.base import Loading, by_name
try:
    by_name({engine!r}).start(Loading(Path("/nowhere"), 1, 64, {{}}))
except UserError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert f"pip install 'coordinate-eval[{engine}]'" in ended.stdout


def test_last_words_fit_on_a_line() -> None:
    assert common.last_words(ValueError("one\n  two  \n\n")) == "ValueError: one … two"
    assert common.last_words(ValueError("one\n two\n three")) == "ValueError: one … three"
    assert common.last_words(KeyError()) == "KeyError"
    advert = "wrong\nFor further information visit a page"
    assert common.last_words(ValueError(advert)) == "ValueError: wrong"


@pytest.mark.parametrize(
    ("config", "gib", "filled", "tokens"),
    [
        ({"vocab_size": 128_256}, 80, 0.9, 5120),
        ({"vocab_size": 32_000, "text_config": {"vocab_size": 128_256}}, 80, 0.9, 5120),
        ({"vocab_size": 32_000}, 80, 0.9, 8192),
        ({"vocab_size": 151_936}, 24, 0.9, 1280),
        ({"vocab_size": 128_256}, 80, 0.99, 1024),
        ({"vocab_size": "many", "text_config": []}, 80, 0.9, 8192),
    ],
)
def test_a_step_of_vllm_is_small_enough_to_score_all_of_it(
    config: dict[str, object], gib: int, filled: float, tokens: int
) -> None:
    assert vllm_defaults.step_tokens(config, gib << 30, filled) == tokens


def test_steps_of_vllm_are_equal_for_what_drivers_say_of_the_same_gpu() -> None:
    steps = {
        vllm_defaults.step_tokens({"vocab_size": 128_256}, mib << 20, 0.9)
        for mib in (81_251, 81_559)
    }
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("args", "lighter", "fewer"),
    [
        ({"max_num_batched_tokens": 8192, "max_num_seqs": 512}, 2, (4096, 512)),
        ({"max_num_batched_tokens": 8192, "max_num_seqs": 128}, 8, (1024, 128)),
        ({"max_num_batched_tokens": 1356, "max_num_seqs": 256}, 4, (512, 256)),
        ({"max_num_batched_tokens": 1356, "max_num_seqs": 700}, 2, (700, 700)),
        ({"max_num_batched_tokens": 256, "max_num_seqs": 512}, 2, (256, 256)),
        ({"max_num_batched_tokens": 8192}, 2, (4096, None)),
        (
            {"max_num_batched_tokens": 8192, "max_num_seqs": 64, "enable_chunked_prefill": False},
            4,
            (3000, 64),
        ),
        ({"max_num_seqs": 64, "enable_chunked_prefill": False}, 4, (None, None)),
        ({"max_num_batched_tokens": None, "max_num_seqs": 64}, 4, (None, None)),
    ],
)
def test_steps_become_smaller_where_an_engine_ran_out_of_memory(
    args: dict[str, Any], lighter: int, fewer: tuple[int | None, int | None]
) -> None:
    found = vllm_defaults.lighter_steps({"max_model_len": 3000, **args}, lighter)
    assert (found.get("max_num_batched_tokens"), found.get("max_num_seqs")) == fewer


@pytest.mark.parametrize(
    ("traits", "lighter", "tokens"),
    [
        ({}, 1, 8192),
        ({}, 4, 2048),
        ({"is_attention_free": True}, 4, 8192),
        ({"is_encoder_decoder": True}, 4, 8192),
        ({"is_hybrid": True}, 4, 8192),
        ({"is_multimodal_model": True}, 4, 8192),
        (None, 4, 8192),
    ],
)
def test_steps_stay_where_smaller_ones_may_not_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    traits: dict[str, bool] | None,
    lighter: int,
    tokens: int,
) -> None:
    usual = dict.fromkeys(
        ("is_attention_free", "is_encoder_decoder", "is_hybrid", "is_multimodal_model"), False
    )

    class EngineArgs:
        def __init__(self, *, model: str, **_: object) -> None:
            assert model == str(tmp_path)

        def create_model_config(self) -> SimpleNamespace:
            if traits is None:
                raise ValueError("unknown model")
            return SimpleNamespace(**usual | traits)

    monkeypatch.setitem(sys.modules, "vllm", cast("Any", SimpleNamespace(EngineArgs=EngineArgs)))
    monkeypatch.setattr(vllm_defaults, "on_cpu", lambda: False)
    monkeypatch.setattr(vllm_defaults, "check_args", lambda _: None)
    steps = {"max_num_batched_tokens": 8192}
    monkeypatch.setattr(vllm_defaults, "_gpu_arguments", lambda *_: steps)
    found = vllm_defaults.engine_arguments(
        Loading(tmp_path, 1, 3000, {"max_num_seqs": 64}, lighter)
    )
    assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (tokens, 64)


def test_an_import_is_without_packages_for_other_uses(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").touch()
    looks = "import importlib.util\nthere = importlib.util.find_spec('sklearn')\n"
    (tmp_path / "an_engine.py").write_text(looks)
    code = """
from coordinate_eval.evaluators.engines import common
assert common.load("an_engine", "an engine").there is None
import sklearn
assert common.load("sklearn", "an engine") is sklearn
"""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=PATIENCE_SECONDS)
