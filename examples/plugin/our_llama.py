"""The model: here a Llama whose layers are vLLM's own; yours has its own layers."""

from vllm.model_executor.models.llama import LlamaForCausalLM


class OurLlamaForCausalLM(LlamaForCausalLM):
    """The class that `architectures` in config.json names."""
