"""Trainers that write parts of ranks, and ask for the evaluation of each checkpoint: one line each.

The line is marked. The rest is a model so small that this file runs on CPUs, in one process or in
several:

    torchrun --nproc-per-node 2 sharded_trainers.py deepspeed --checkpoints FOLDER [OPTIONS]

The options are those of `coordinate-eval`; with `--dry-run --cluster cluster.yaml` nothing is
submitted. What these trainers write has no config and no tokenizer: they lie in FOLDER.
"""

import argparse
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, PretrainedConfig

import coordinate_eval
from coordinate_eval import integrations
from trainers import tokenizer

IDS = torch.arange(64).reshape(4, 16)


def beside(folder: Path, config: PretrainedConfig) -> None:
    """Save what a sharded checkpoint lacks in the folder of the checkpoints, once."""
    folder.mkdir(parents=True, exist_ok=True)
    if torch.distributed.get_rank() == 0:
        config.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    torch.distributed.barrier()


def with_deepspeed(folder: Path, options: Sequence[str]) -> None:
    """Train with DeepSpeed and ZeRO 2."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes)
    model: Any = LlamaForCausalLM(config)
    beside(folder, config)
    settings = {
        "train_micro_batch_size_per_gpu": len(IDS),
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    for _ in range(4):
        engine.backward(engine(input_ids=IDS, labels=IDS).loss)
        engine.step()
        if engine.global_steps % 2 == 0:
            step = engine.global_steps
            engine.save_checkpoint(str(folder), f"global_step{step}")
            coordinate_eval.after_save(
                folder / f"global_step{step}", step=step, options=options
            )  # the line


def with_megatron(folder: Path, options: Sequence[str]) -> None:
    """Train a model of Megatron-core. In Megatron-LM the line follows `save_checkpoint`."""
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.distributed.init_process_group("gloo")
    ranks = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    # On CPUs only: Megatron-core asks for a GPU and its random states even where it uses neither.
    torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda *_: None
    tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    model: Any = GPTModel(
        TransformerConfig(
            num_layers=2, hidden_size=32, ffn_hidden_size=64, num_attention_heads=4,
            num_query_groups=4, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
            normalization="RMSNorm", layernorm_epsilon=1e-6, add_bias_linear=False,
            use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
            bias_activation_fusion=False, tensor_model_parallel_size=ranks,
        ),
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=256,
        max_sequence_length=64,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )  # fmt: skip
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    beside(folder, LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes))
    optimizer = torch.optim.AdamW(model.parameters())
    positions, mask = torch.arange(16)[None], torch.ones(16, 16).triu(1).bool()[None, None]
    for step in range(1, 5):
        model(IDS, positions, mask, labels=IDS).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            saved = folder / f"iter_{step:07d}"
            saved.mkdir(exist_ok=True)
            dist_checkpointing.save(model.sharded_state_dict(), str(saved))
            coordinate_eval.after_save(saved, step=step, options=options)  # the line


def with_torchtitan(folder: Path, options: Sequence[str]) -> None:
    """Save with torchtitan's manager. Its `Trainer` calls it so, and needs GPUs for the rest."""
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.models.llama3 import model_registry

    torch.distributed.init_process_group("gloo")
    spec = model_registry("debugmodel")
    model = spec.model.build()
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"rope_theta": 500_000.0, "original_max_position_embeddings": 8192}
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}
    beside(
        folder,
        LlamaConfig(
            vocab_size=2048,
            num_attention_heads=16,
            rope_parameters=rope,
            rms_norm_eps=1e-5,
            **sizes,
        ),
    )
    optimizers = default_adamw().build(model_parts=[model])
    checkpointer = CheckpointManager.Config(enable=True, folder=str(folder), interval=2).build(
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=LRSchedulersContainer.Config().build(optimizers=optimizers, training_steps=4),
        states={},
        sd_adapter=None,
    )
    for step in range(1, 5):
        torch.stack([weight.square().sum() for weight in model.parameters()]).sum().backward()
        optimizers.step()
        optimizers.zero_grad()
        if checkpointer.save(step):
            saved = f"{checkpointer.folder}/step-{step}"
            coordinate_eval.after_save(saved, step=step, options=options)  # the line


def with_olmo_core(folder: Path, options: Sequence[str]) -> None:
    """Train with OLMo-core's Trainer."""
    from olmo_core import train
    from olmo_core.data import DataCollator, TokenizerConfig
    from olmo_core.data.composable import ComposableDataLoader, RandomInstanceSource
    from olmo_core.distributed.parallel import DataParallelType
    from olmo_core.nn.transformer import TransformerBlockType, TransformerConfig
    from olmo_core.optim import AdamWConfig
    from olmo_core.train.callbacks import CheckpointerCallback
    from olmo_core.train.train_module import (
        TransformerDataParallelConfig,
        TransformerTrainModule,
    )

    train.prepare_training_environment(backend="cpu:gloo")
    words = TokenizerConfig(vocab_size=256, eos_token_id=1, pad_token_id=0)
    work = str(folder / ".work")
    loading = ComposableDataLoader(
        RandomInstanceSource(
            tokenizer=words, sequence_length=16, avg_document_length=8, num_instances=16,
            work_dir=work,
        ),
        collator=DataCollator(pad_token_id=words.pad_token_id),
        tokenizer=words,
        work_dir=work,
        global_batch_size=64,
        dp_world_size=torch.distributed.get_world_size(),
        dp_rank=torch.distributed.get_rank(),
    )  # fmt: skip
    sizes = {"hidden_size": 32, "intermediate_size": 256, "num_hidden_layers": 2}
    beside(
        folder,
        Olmo2Config(
            vocab_size=256, num_attention_heads=4, rope_theta=500_000.0, rms_norm_eps=1e-6, **sizes
        ),
    )
    model = TransformerConfig.llama_like(
        d_model=32, n_layers=2, n_heads=4, vocab_size=256, layer_norm_eps=1e-6, qk_norm=True,
        block_name=TransformerBlockType.reordered_norm,
    ).build(init_device="cpu")  # fmt: skip
    module = TransformerTrainModule(
        model,
        optim=AdamWConfig(),
        rank_microbatch_size=16,
        max_sequence_length=16,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp),
        device=torch.device("cpu"),
    )
    asking = integrations.olmo_core_callback(options=options)  # the line
    train.TrainerConfig(
        save_folder=str(folder),
        work_dir=work,
        device="cpu",
        max_duration=train.Duration.steps(4),
        callbacks={"checkpointer": CheckpointerCallback(save_interval=2), "asking": asking},
    ).build(module, loading).fit()


def main() -> None:
    """Train for a few steps and save twice."""
    trainers = {
        "deepspeed": with_deepspeed,
        "megatron": with_megatron,
        "torchtitan": with_torchtitan,
        "olmo-core": with_olmo_core,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=trainers)
    parser.add_argument("--checkpoints", type=Path, required=True)
    arguments, options = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO)  # `after_save` logs what came of it
    trainers[arguments.trainer](arguments.checkpoints, options)


if __name__ == "__main__":
    main()
