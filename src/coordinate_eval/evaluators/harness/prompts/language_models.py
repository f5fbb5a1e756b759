"""Two language models of the harness that run no model.

`RequestModel` answers a request with the tokens that an engine would get. It is the tokenizing
half of the harness's own model classes. `ReplayModel` answers with recorded responses.

The harness's model classes cut prompts differently if they do not fit into the context. `backend`
selects the class:

|                               | "hf"               | "vllm"             |
|-------------------------------|--------------------|--------------------|
| log-likelihood, most tokens   | max_length + 1     | max_length - 1     |
| rolling window, scored tokens | max_length         | max_length - 2     |
| stops while a model thinks    | all                | only end of text   |

The tokens of a log-likelihood are context and continuation together. The last token is never an
input, so max_length + 1 tokens fit. Both classes cut on the left, and leave max_gen_toks of the
context free for the output.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from coordinate_eval.evaluators.engines.common import SAMPLING, inner_tokens
from coordinate_eval.evaluators.harness.prompts.conversation import Message
from coordinate_eval.evaluators.harness.prompts.generation_arguments import why_not
from coordinate_eval.evaluators.harness.prompts.tokenizer import has_chat_template
from coordinate_eval.evaluators.harness.prompts.word_tokens import WordTokens

Backend = Literal["hf", "vllm"]
"""The harness's model class whose truncation is used."""

_DEFAULT_MAX_GEN_TOKENS = 256  # of both classes, for tasks without max_gen_toks
_SPARE_LOGLIKELIHOOD = {"hf": 1, "vllm": -1}
_SPARE_ROLLING = {"hf": 0, "vllm": -2}
_OF_SAMPLING_ONLY = frozenset({"temperature", "top_p", "top_k", "min_p", "seed"})


@dataclass(frozen=True)
class Generation:
    """The end and the sampling of one generation. `sampling` is empty for greedy decoding."""

    until: list[str]
    """Strings at which the harness cuts the text, including end of text."""
    stop: list[str]
    """The strings of `until` at which an engine may end."""
    max_tokens: int
    sampling: dict[str, float]


@dataclass(frozen=True)
class Prompt:
    """The input of an engine: a context to continue, or a context and a continuation to score."""

    tokens: list[int]
    continuation: list[int] = field(default_factory=list)
    generation: Generation | None = None
    follow_ups: list[list[int]] = field(default_factory=list)
    """Further turns: what comes between an answer and the next, after each answer."""


class RequestModel(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """A model whose answer to a request is the list of prompts for an engine."""

    def __init__(
        self,
        load_tokenizer: Callable[[], Any],
        *,
        max_length: int,
        backend: Backend,
        think_end: str | None,
    ) -> None:
        """Make a model that loads its tokenizer, one of many classes, when it first needs it."""
        super().__init__()
        self._load_tokenizer = load_tokenizer
        self.max_length = max_length
        self._backend = backend
        self._thinks = bool(think_end)
        self._think_end = think_end
        self.cut_prompts = 0
        """Prompts so far that have lost their beginning, for they are longer than the context."""

    @cached_property
    def tokenizer(self) -> Any:  # noqa: ANN401  one of many classes of transformers
        """Return the tokenizer."""
        return self._load_tokenizer()

    @cached_property
    def _tokens(self) -> WordTokens:
        return WordTokens(self.tokenizer)

    @cached_property
    def end_text(self) -> str | None:
        """Return the token that ends a text, as text; None if the tokenizer has none."""
        if self.eot_token_id is None:
            return None
        text: str | None = self.tokenizer.decode(self.eot_token_id) or self.tokenizer.eos_token
        return text

    @property
    def eot_token_id(self) -> int | None:
        """Return the token that ends a text, or None if the tokenizer has none."""
        token: int | None = self.tokenizer.eos_token_id
        return token

    @property
    def prefix_token_id(self) -> int:
        """Return the token of an empty context: beginning of text, or else end of text."""
        bos: int | None = self.tokenizer.bos_token_id
        token = self.eot_token_id if bos is None else bos
        if token is None:
            raise ValueError("the tokenizer has neither a BOS nor an EOS token")
        return token

    @property
    def tokenizer_name(self) -> str:
        """Return the path of the tokenizer, with `__` for each slash."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    @property
    def has_chat_template(self) -> bool:
        """Return whether the checkpoint has a chat template: in a file, or in code as Mistral's."""
        return has_chat_template(self.tokenizer)

    def apply_chat_template(
        self, chat_history: Sequence[Message], add_generation_prompt: bool = True
    ) -> str:
        """Return the chat as text, without the system message if the template refuses one."""
        from jinja2.exceptions import TemplateError

        def render(messages: Sequence[Message]) -> str:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
            return text

        try:
            return render(chat_history)
        except TemplateError:
            return render([message for message in chat_history if message["role"] != "system"])

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Return the tokens of a text, with a BOS token unless the text already begins with it."""
        if add_special_tokens is None:
            prefix = self._prefix
            add_special_tokens = prefix is None or not has_bos_prefix(string, prefix)
        return self._tokens.encode(string, add_special_tokens)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        self._tokens.share(context.rstrip())  # as the choices of a question do
        pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
        return pair

    @cached_property
    def _prefix(self) -> str | None:
        """Return the text of the token of an empty context, None if there is no such token."""
        if self.tokenizer.bos_token_id is None and self.eot_token_id is None:
            return None
        text: str = self.tokenizer.decode(self.prefix_token_id)
        return text

    def prompts(self, instance: Instance) -> list[Prompt]:
        """Return the prompts of one instance: one, or one for each rolling window.

        Raises:
            ValueError: this model cannot answer it; the message has the reason.
        """
        kind = instance.request_type
        if kind == "generate_until":
            return [self.generate_until([instance])[0]]
        if kind == "loglikelihood_rolling":
            return self.loglikelihood_rolling([instance])[0]
        if kind == "loglikelihood":
            if not instance.args[1]:
                raise ValueError("its continuation is empty")
            return list(self.loglikelihood([instance], disable_tqdm=True))
        raise ValueError(f"its request type {kind!r} is not supported")

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **_: object
    ) -> list[Prompt]:
        return [self._pair(context, continuation) for _, context, continuation in requests]

    def _pair(self, context: list[int], continuation: list[int]) -> Prompt:
        if not continuation:
            raise ValueError("its continuation has no tokens of its own")
        most = self.max_length + _SPARE_LOGLIKELIHOOD[self._backend]
        if len(continuation) >= most:
            raise ValueError(
                f"its continuation of {len(continuation)} tokens does not fit into a context of "
                f"{self.max_length}"
            )
        # White space alone leaves an empty context, on which the harness's classes fail.
        self.cut_prompts += len(context) + len(continuation) > most
        kept = ((context or [self.prefix_token_id]) + continuation)[-most:]
        return Prompt(kept[: -len(continuation)], continuation)

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[list[Prompt]]:
        """Return windows that score every token once, each with the longest context that fits."""
        return [
            [
                self._pair(*make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length + _SPARE_ROLLING[self._backend],
                    context_len=1,
                )
            ]
            for request in requests
        ]

    def generate_until(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[Prompt]:
        """Return contexts, cut on the left to leave room for the output, and their follow-ups.

        A later turn begins with all that was said before. An engine cuts it in the same way.
        """
        return [self._open_prompt(*request.args) for request in requests]

    def _open_prompt(
        self, context: str, gen_kwargs: dict[str, Any], between: Sequence[str] = ()
    ) -> Prompt:
        generation = self.generation(gen_kwargs)
        room = self.max_length - generation.max_tokens
        if room <= 0:
            raise ValueError(
                f"it generates up to {generation.max_tokens} tokens, which leaves no room for a "
                f"prompt in a context of {self.max_length}; set max_gen_toks in gen_kwargs"
            )
        # For generation, the "hf" class never takes an EOS token in place of a missing BOS.
        special = None
        if self._backend == "hf" and self.tokenizer.bos_token is None:
            special = True
        tokens = self.tok_encode(context, add_special_tokens=special)
        self.cut_prompts += len(tokens) > room
        plain = partial(self._tokens.encode, add_special_tokens=False)
        return Prompt(
            (tokens or [self.prefix_token_id])[-room:],
            generation=generation,
            follow_ups=[inner_tokens(plain, text) for text in between],
        )

    def generation(self, gen_kwargs: dict[str, Any]) -> Generation:
        """Return a task's generation arguments as the harness's model classes understand them.

        Raises:
            ValueError: an argument is not supported, or is not a number.
        """
        normal = normalize_gen_kwargs(gen_kwargs, _DEFAULT_MAX_GEN_TOKENS)
        if not all(isinstance(text, str) for text in normal["until"]):
            raise ValueError(f"its stop strings (until) are not all text: {normal['until']}")
        eos = self.end_text
        # The harness never cuts at an empty stop string, but an engine would stop at once.
        if normal["max_gen_toks"] < 1:
            raise ValueError(f"it generates {normal['max_gen_toks']} tokens; set max_gen_toks")
        until = [text for text in handle_stop_sequences(normal["until"], eos=eos) if text]
        only_eos = self._thinks and self._backend == "vllm"
        return Generation(
            until=until,
            stop=[text for text in until if text == eos] if only_eos else until,
            max_tokens=normal["max_gen_toks"],
            sampling=_sampling(normal),
        )

    def cut(self, text: str, generation: Generation) -> str:
        """Return the text that the harness keeps: after the thinking, before the first stop."""
        think_end = self._think_end
        if think_end is not None and think_end.isdigit():
            think_end = self.tokenizer.decode([int(think_end)])
        kept: str = postprocess_generated_text(text, generation.until, think_end)
        return kept


class ReplayModel(LM):  # type: ignore[misc]  # lm_eval has no types
    """A model that returns recorded responses, and the repeats of an instance in order."""

    def __init__(self, recorded: Mapping[int, Iterable[Any]]) -> None:
        """Replay `recorded`, the responses by the `id()` of their instance."""
        super().__init__()
        self._left: dict[int, Iterator[Any]] = {
            key: iter(responses) for key, responses in recorded.items()
        }

    def _replay(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Any]:
        return [next(self._left[id(request)]) for request in requests]

    loglikelihood = loglikelihood_rolling = generate_until = _replay


def _sampling(normal: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling parameters in generation arguments, empty for greedy decoding."""
    for key, value in normal.items():
        if wrong := why_not(key, value):
            raise ValueError(wrong)
    given = {key: value for key, value in normal.items() if key in SAMPLING}
    greedy = not normal["do_sample"] or given.get("temperature") == 0
    if greedy:
        given = {key: value for key, value in given.items() if key not in _OF_SAMPLING_ONLY}
        return {"temperature": 0.0, **given} if given else {}
    return {"temperature": 1.0, **given}
