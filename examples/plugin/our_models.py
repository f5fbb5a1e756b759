"""What vLLM calls in each of its processes before it loads a model."""


def register() -> None:
    """Tell transformers our type of config, and vLLM our class of model."""
    from transformers import AutoConfig, LlamaConfig
    from vllm import ModelRegistry

    class OurConfig(LlamaConfig):
        model_type = "our_llama"  # as config.json has it

    AutoConfig.register("our_llama", OurConfig, exist_ok=True)
    # By name, so that the model's module is imported only where it is run.
    ModelRegistry.register_model("OurLlamaForCausalLM", "our_llama:OurLlamaForCausalLM")
