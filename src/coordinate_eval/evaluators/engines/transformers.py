"""The engine for models that vLLM cannot run: plain transformers, in batches of similar length.

In float32 its answers equal vLLM's token for token. It ends texts by the same rules, decodes
incrementally in the same way, and sums log-probabilities over the same positions. It is slower.
Use it for new architectures, on machines without a GPU, and to check results.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import gc
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from coordinate_eval._engines import ENGINES
from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.base import ALL_KINDS, Loading, Unwanted, all_wanted
from coordinate_eval.evaluators.engines.transformers_text import Text
from coordinate_eval.evaluators.engines.turns import Turns
from coordinate_eval.records import Request, RequestKind, Response

_INSTALL = "coordinate-eval[transformers]"

_BATCH_SIZE = ENGINES["transformers"].sequences

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64", "float", "half", "double")

_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?")

_LOOK_AHEAD = 16
"""Number of batches that are pulled at once and sorted by length.

More batches sort better, but pull requests earlier.
"""


def check_args(args: Mapping[str, Any], *, here: bool = True) -> None:
    """Check the names and values of engine arguments. Needs no torch."""
    common.check_names("the transformers engine", args, ("batch_size", "dtype", "device"))
    size = args.get("batch_size", _BATCH_SIZE)
    if type(size) is not int or size < 1:
        raise common.wrong("batch_size", size, "a whole number from 1 up")
    if (dtype := args.get("dtype", _DTYPES[0])) not in _DTYPES:
        raise common.wrong("dtype", dtype, f"one of {', '.join(_DTYPES)}")
    device = args.get("device") or "auto"
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise common.wrong("device", device, "auto, cpu, cuda, cuda:0 or the like")


def cache_variables(folder: Path) -> Mapping[str, str]:
    """Return nothing: this engine compiles nothing."""
    return {}


def prepare(tensor_parallel: int, threads: int = 0) -> None:
    """Limit torch's threads. transformers imports fast next to loading a model."""
    common.limit_threads(threads)


def follow(what: Loading) -> None:
    """Refuse: this engine stays on one node. See `base.EngineModule`."""
    raise UserError("the engine transformers has the GPUs of one node: set [engine] name to vllm")


def serve(*_: object, **__: object) -> None:
    """Refuse: this engine has no server. See `base.EngineModule`."""
    raise UserError("the engine transformers has no server: set [engine] name to vllm")


class TransformersEngine:
    """A causal language model in transformers. It runs no code of the checkpoint.

    Args:
        what: its `args` are `batch_size` (default 8), `dtype` (default that of the checkpoint), and
            `device` (default all GPUs that are seen, or the CPU if there is none).

    Raises:
        UserError: transformers is not installed, or an argument is unknown or wrong.
        EngineError: the model or its tokenizer could not be loaded.
    """

    unable = ALL_KINDS

    computing: list[Request] | None = None
    """The batch that is being computed."""

    def __init__(self, what: Loading) -> None:
        model, args = what.model, what.args
        check_args(args)
        self._batch_size: int = args.get("batch_size", _BATCH_SIZE)
        self._torch = common.load("torch", _INSTALL)
        self._transformers = common.load("transformers", _INSTALL)
        common.load("transformers.models.auto.modeling_auto", _INSTALL)  # else it does so later
        own_code.refuse()
        self._transformers.utils.logging.disable_progress_bar()
        try:
            self._model: Any | None = self._load(model, args)
            tokenizer = self._transformers.AutoTokenizer.from_pretrained(
                model, trust_remote_code=False, local_files_only=True
            )
            self._tokenizer = tokenizer.backend_tokenizer
        except Exception as error:
            raise EngineError(
                f"transformers could not load {str(model)!r} with arguments {args}: "
                f"{common.last_words(error)}{own_code.note(model, error)}"
            ) from error
        self._max_length = what.max_length
        self._vocabulary = self._model.get_input_embeddings().weight.shape[0]
        self._ends = _end_tokens(self._model.generation_config.eos_token_id, tokenizer)
        # The checkpoint's other defaults for generation are meant for chats, not for evaluation.
        self._model.generation_config = self._transformers.GenerationConfig()
        try:
            self._probe()
        except EngineError as error:
            self.close()
            raise EngineError(
                f"transformers loaded {str(model)!r} with arguments {args}, and it cannot answer: "
                f"{error}"
            ) from error

    def run(
        self, requests: Iterator[Request], unwanted: Unwanted = all_wanted
    ) -> Iterator[Response]:
        """Answer every request once, but for unwanted ones. Pulls at most sixteen batches ahead."""
        while ahead := list(islice(requests, _LOOK_AHEAD * self._batch_size)):
            for request in ahead:
                common.check(
                    request,
                    max_length=self._max_length,
                    most_scored=self._max_length + 1,  # the last token is never an input
                    vocabulary=self._vocabulary,
                )
            left = list(batches(ahead, self._batch_size))
            while left:
                if (drop := unwanted()) is not None:
                    left = [[r for r in batch if not drop(r)] for batch in left]
                if batch := left.pop(0):
                    self.computing = batch
                    yield from self._answer(batch)

    def close(self) -> None:
        """Free the model's memory. A second call does nothing."""
        if self._model is not None:
            self._model = None
            gc.collect()
            if self._torch.cuda.is_available():
                self._torch.cuda.empty_cache()

    def _load(self, model: Path, args: dict[str, Any]) -> Any:
        """Return the model in evaluation mode on its device."""
        torch = self._torch
        gpus = torch.cuda.device_count()
        device = args.get("device") or ("auto" if gpus > 1 else "cuda" if gpus else "cpu")
        loaded, told = self._transformers.AutoModelForCausalLM.from_pretrained(
            model,
            dtype=args.get("dtype", "auto"),
            device_map="auto" if device == "auto" else None,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which is an error here, with their names
        )
        check_loaded(told)
        loaded = loaded.eval()
        return loaded if device == "auto" else loaded.to(device)

    def _probe(self) -> None:
        """Score a text, before any request depends on it."""
        tokens = [number % self._vocabulary for number in range(3, 7)]
        request = common.probe(RequestKind.LOGLIKELIHOOD, tokens[:2], continuation=tokens[2:])
        common.check_probed(*self._answer([request]))

    def _answer(self, batch: list[Request]) -> list[Response]:
        """Return the responses to a batch of requests of one kind."""
        if self._model is None:
            raise EngineError("this transformers engine is closed: start another")
        answer = self._score if batch[0].kind is RequestKind.LOGLIKELIHOOD else self._converse
        try:
            with self._torch.inference_mode():
                return answer(self._model, batch)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(
                f"transformers failed at a batch of {len(batch)} requests, the longest "
                f"{common.named(batch[0])}: {common.last_words(error)}; if memory is short, "
                "set the engine argument batch_size"
            ) from error

    def _score(self, model: Any, batch: list[Request]) -> list[Response]:
        """Score a batch of log-likelihoods, padded on the right."""
        torch = self._torch
        rows = [[*request.tokens, *request.continuation[:-1]] for request in batch]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (width - len(row)) for row in rows], device=model.device
        )
        # Logits before the first scored row are not needed. Some models can leave them out, which
        # saves memory.
        kept = width - min(len(request.tokens) - 1 for request in batch)
        options = {"logits_to_keep": kept} if model._supports_logits_to_keep() else {}
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **options).logits
        responses = []
        for request, row, found in zip(batch, rows, logits, strict=True):
            before = width - len(found)
            span = found[len(request.tokens) - 1 - before : len(row) - before]
            logprobs = torch.log_softmax(span.float(), dim=-1)
            target = torch.tensor(request.continuation, device=span.device)
            chosen = logprobs.gather(1, target[:, None])[:, 0]
            responses.append(
                common.respond(
                    request,
                    logprob=sum(chosen.tolist()),
                    greedy=bool((chosen >= logprobs.amax(dim=-1)).all()),
                    tokens=len(request.continuation),
                    finish="scored",
                )
            )
        return responses

    def _converse(self, model: Any, batch: list[Request]) -> list[Response]:
        """Generate the texts of a batch, turn after turn."""
        left = [Turns(request, self._max_length) for request in batch]
        responses = []
        while left:
            ended = [text.end() for text in self._generate(model, left)]
            responses += [response for response in ended if response is not None]
            left = [turns for turns, last in zip(left, ended, strict=True) if last is None]
        return responses

    def _generate(self, model: Any, batch: list[Turns]) -> list[Text]:
        """Generate a text for each of these turns, padded on the left."""
        torch = self._torch
        width = max(len(turns.prompt) for turns in batch)
        short = [width - len(turns.prompt) for turns in batch]
        ids = torch.tensor(
            [[0] * pad + t.prompt for pad, t in zip(short, batch, strict=True)],
            device=model.device,
        )
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in short], device=model.device)
        texts = [
            Text(torch, self._tokenizer, turns, self._ends, self._max_length) for turns in batch
        ]

        def choose(_: Any, scores: Any) -> Any:
            likeliest = scores.argmax(dim=-1).tolist()
            rows = zip(texts, likeliest, scores, strict=True)
            chosen = torch.tensor([text.add(token, row) for text, token, row in rows])
            only = torch.full_like(scores, -torch.inf)
            return only.scatter_(1, chosen.to(scores.device)[:, None], 0.0)

        def ended(_: Any, scores: Any, **__: Any) -> Any:
            return torch.tensor([text.finish is not None for text in texts], device=ids.device)

        # Each row has its own length, seed and stop strings, which `generate` cannot express. So
        # `choose` leaves it a single token for each row, and it only computes and keeps the cache.
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(text.most for text in texts),
            do_sample=False,
            logits_processor=[choose],
            stopping_criteria=self._transformers.StoppingCriteriaList([ended]),
        )
        return texts


start = TransformersEngine


def check_loaded(told: Mapping[str, Any]) -> None:
    """Check that the files of a model have all of its weights, and no others.

    transformers draws weights that are missing at random, and passes over those that it does not
    know: such scores would be of no model, and of another one in each trial. It counts as missing
    none that are tied to others, and as unknown none that it knows to be of no use.

    Raises:
        EngineError: weights are missing, unknown, or of another shape.
    """
    unknown = [name for name in told["unexpected_keys"] if name.endswith(".weight")]
    wrong = {
        "are missing in its files": sorted(told["missing_keys"]),
        "have another shape": sorted(str(each[0]) for each in told["mismatched_keys"]),
        "are not of the model in config.json": sorted(unknown),
    }
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise EngineError(
                f"config.json and the weights differ: {', '.join(names[:3])}{more} {what}"
            )


def batches(requests: list[Request], size: int) -> Iterator[list[Request]]:
    """Yield batches of requests of one kind and similar length, the longest first."""
    for kind in RequestKind:
        alike = [request for request in requests if request.kind is kind]
        # A batch of texts takes as long as its longest one, and is full while all have a next turn.
        alike.sort(
            key=lambda r: (r.turns, r.max_tokens, len(r.tokens) + len(r.continuation)), reverse=True
        )
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _end_tokens(configured: int | list[int] | None, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: the tokenizer's and those of the generation config."""
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)
