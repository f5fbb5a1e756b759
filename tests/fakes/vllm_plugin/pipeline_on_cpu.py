"""A plugin for vLLM 0.32 on CPUs, which lack a buffer that later stages of a pipeline read into.

On GPUs `_dummy_run` makes it while it measures memory. See `GPUModelRunner` in vllm/v1/worker.
"""

import importlib
from typing import Any


def register() -> None:
    """Make the buffer where it is missing."""
    runner: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    original = runner.sync_and_gather_intermediate_tensors

    def sync(self: Any, *args: Any) -> Any:
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return original(self, *args)

    runner.sync_and_gather_intermediate_tensors = sync
