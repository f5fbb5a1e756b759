"""An adapter in vLLM: loaded beside the model, it answers every request.

vLLM ignores what an adapter has for modules that it does not know by their names, so that the base
would answer. Its workers are asked for them.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import importlib
from pathlib import Path
from typing import Any, Final

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import common

CONFIG: Final = "adapter_config.json"

RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""The numbers that `max_lora_rank` may be (`MaxLoRARanks` in vllm/config/lora.py), from 8 on."""

TOLD: Final = ("lora_target_modules", "max_lora_rank", "worker_extension_cls")
"""The arguments that follow from an adapter."""


class Loaded:
    """The questions that vLLM's workers answer besides: it becomes a base of their class."""

    def not_adapted(self) -> list[str]:
        """Return the modules of adapters that the model of this worker lacks."""
        manager = self.model_runner.lora_manager._adapter_manager  # type: ignore[attr-defined]
        adapters = manager.list_adapters().values()
        return [name for each in adapters for name in each.loras if name not in manager.modules]


def arguments(adapter: Path | None) -> dict[str, Any]:
    """Return arguments of `EngineArgs` for the adapter in a folder.

    Only the modules that it adapts are wrapped: with an output layer that is, vLLM scores no text.
    """
    if adapter is None:
        return {}
    config = own_code.json_object(adapter / CONFIG)
    rank = next(each for each in RANKS if each >= config["r"])
    modules = config["target_modules"]
    return dict(zip(TOLD, (modules, rank, f"{__name__}.{Loaded.__name__}"), strict=True))


def load(engine: Any, adapter: Path | None) -> Any:
    """Load the adapter in a folder into vLLM's engine. Return what each request has to name.

    The folder is not needed afterwards. Return None if there is no adapter.

    Raises:
        EngineError: vLLM refuses it, or has no place for a part of it.
    """
    if adapter is None:
        return None
    requests = importlib.import_module("vllm.lora.request")
    request = requests.LoRARequest("adapter", 1, str(adapter.absolute()))
    try:
        engine.add_lora(request)
        lost = [name for each in engine.collective_rpc("not_adapted") for name in each]
    except Exception as error:
        raise EngineError(f"the adapter was not loaded: {common.last_words(error)}") from error
    if lost:
        raise EngineError(
            f"vLLM has no module {lost[0]}, which is adapted: leave engine argument enable_lora "
            "out, and the adapter is merged"
        )
    return request
