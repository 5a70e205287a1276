"""NeoX's arguments, and what an import does with each.

Every argument that NeoX has had is in one of four classes: it is carried over; only one value of it can be; what it
sets is set elsewhere here, and the training does not depend on it; or it has no effect on the result of a run.
``docs/reference/neox-arguments.md`` is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from midstream_core.json_types import JsonObject, JsonValue
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchState, TorchValue

CARRIED, CHECKED, ELSEWHERE, NO_EFFECT = "carried over", "only this value", "set elsewhere", "no effect"


@dataclass(frozen=True)
class Argument:
    """Treatment of an argument by an import.

    ``accepted``: the values that can be imported, if not all can.

    ``about``: what it becomes, why other values are refused, where it is set here, or why it has no effect.
    """

    treatment: str
    about: str
    accepted: tuple[JsonValue, ...] = ()

    def accepts(self, value: object) -> bool:
        """Return whether a value can be imported.

        A section with ``enabled: false`` is one that is not there.
        """
        if self.treatment != CHECKED:
            return True
        if isinstance(value, Mapping) and not value.get("enabled", bool(value)):
            value = None
        if isinstance(value, str):
            value = value.lower()
        return any((value or None) == (allowed or None) for allowed in self.accepted)


_SHAPES = "the shapes of the tensors"
_CARRIED = {
    "num_layers": "`model.num_layers`; must agree with the tensors",
    "hidden_size": "`model.hidden_dim`; must agree with the tensors",
    "num_attention_heads": "`model.num_heads`",
    "num_kv_heads": "`model.num_kv_heads`; with fewer than `num-attention-heads` see `--gqa-layout`",
    "seq_length": "`model.seq_len`",
    "norm": "layernorm: `model.type: neox`; rmsnorm: llama; others are refused",
    "layernorm_epsilon": "`model.layer_norm_epsilon`",
    "rms_norm_epsilon": "`model.layer_norm_epsilon`; see `--rms-epsilon`",
    "rmsnorm_fusion": "`model.epsilon_outside_root: false`, which is apex's norm",
    "rotary_pct": "`model.rotary_pct`",
    "rotary_emb_base": "`model.rope.theta`",
    "no_weight_tying": "`model.tie_word_embeddings`; must agree with the tensors",
    "activation": "`model.activation_function`: gelu, relu, silu, swish; swiglu with RMSNorm; others are refused",
    "bias_gelu_fusion": "`model.activation_function: gelu_new`, the tanh form",
    "mlp_type": "llama: the gated MLP of NeoX before 2024-09-07",
    "gpt_j_residual": "`model.use_parallel_residual`",
    "use_bias_in_attn_linear": "`model.attention_bias`",
    "use_bias_in_mlp": "`model.mlp_bias`",
    "init_method_std": "`model.initializer_range`",
    "attention_config": "global and flash are dense attention; others are refused",
    "intermediate_size": _SHAPES,
    "expansion_factor": _SHAPES,
    "mlp_multiple_of": _SHAPES,
    "make_vocab_size_divisible_by": _SHAPES,
    "padded_vocab_size": _SHAPES,
    "precision": "`trainer.mp`",
    "fp16": "`trainer.mp`; the loss scale is not needed in bfloat16",
    "bf16": "`trainer.mp`",
    "seed": "`trainer.seed`; the order of the data",
    "optimizer": "`optimizer`: Adam with `lr`, `betas`, `eps`; others are refused",
    "weight_decay": "`optimizer.weight_decay`; must agree with the optimizer's groups",
    "gradient_clipping": "`optimizer.max_grad_norm`; DeepSpeed's record in the checkpoint goes first",
    "lr_decay_style": "`optimizer.lr_schedule`: cosine, linear, constant; the checkpoint's scheduler goes first",
    "lr_decay_iters": "`optimizer`; the checkpoint's scheduler goes first",
    "lr_decay_fraction": "`optimizer`; the checkpoint's scheduler goes first",
    "min_lr": "`optimizer.min_lr_ratio`; the checkpoint's scheduler goes first",
    "warmup": "`optimizer.warmup`; the checkpoint's scheduler goes first",
    "train_iters": "`trainer.num_train_steps`",
    "train_batch_size": "`trainer.train_batch_size`",
    "train_micro_batch_size_per_gpu": "`trainer.train_batch_size`",
    "gradient_accumulation_steps": "`trainer.train_batch_size`",
    "data_path": "`data`",
    "train_data_paths": "`data`",
    "train_data_weights": "`data`",
    "split": "`data`, by NeoX's index maps",
    "tokenizer_type": "names of the tokenizer's files",
    "vocab_file": "a file of the tokenizer",
    "merge_file": "a file of the tokenizer",
    "zero_optimization": "the stage is that of the files; `round_robin_gradients` is refused",
    "deepspeed_extra_args": "its settings count as if they stood beside it",
    "git_hash": "the version of NeoX, for `--gqa-layout` and `--rms-epsilon`",
}

_OFF = (None,)
_OBJECTIVE, _DATA, _MODEL = "another objective", "other data", "another model"
_CHECKED: dict[str, dict[str, tuple[JsonValue, ...]]] = {
    _OBJECTIVE: {
        "train_impl": ("normal", None),
        "eod_mask_loss": _OFF,
        "label_smoothing": _OFF,
        "curriculum_learning": _OFF,
        "data_efficiency": _OFF,
        "soft_prompt_tuning": _OFF,
    },
    _DATA: {
        "dataset_impl": ("gpt2", None),
        "pack_impl": ("packed", None),
        "weight_by_num_documents": _OFF,
        "train_epochs": _OFF,
        "reset_position_ids": _OFF,
        "reset_attention_mask": _OFF,
        "elasticity": _OFF,
        **dict.fromkeys(
            ("label_data_paths", "train_label_data_paths", "train_reward_data_paths", "pos_train_data_paths",
             "neg_train_data_paths", "pos_train_label_data_paths", "neg_train_label_data_paths"), _OFF,
        ),
    },
    _MODEL: {
        "pos_emb": ("rotary",),
        "output_layer_parallelism": ("column", None),
        "use_bias_in_norms": (True,),
        "moe_num_experts": (1, None),
        "num_experts": (1, None),
        "sparsity": ("none", None),
        "hidden_dropout": _OFF,
        "attention_dropout": _OFF,
        **dict.fromkeys(
            ("gpt_j_tied", "gptj_residual", "use_qk_layernorm", "use_mup", "sliding_window_width",
             "apply_query_key_layer_scaling", "num_unique_layers", "apply_residual_connection_post_layernorm", "geglu",
             "openai_gelu", "te_mha", "te_fp8_mha", "te_layernorm_mlp"), _OFF,
        ),
    },
    "another update": dict.fromkeys(
        ("use_bnb_optimizer", "scheduler", "amp", "compression_training"), _OFF
    ),
}  # fmt: skip

_ELSEWHERE = {
    "trainer.checkpointer": """save save_iters save_interval checkpoint_factor checkpoint_scale extra_save_iters
        keep_last_n_checkpoints s3_path s3_chunk_size""",
    "data.validation_urls, trainer.steps_per_eval and trainer.max_eval_batches": """valid_data_path valid_data_paths
        valid_data_weights valid_label_data_paths valid_reward_data_paths test_data_path test_data_paths
        test_data_weights test_label_data_paths test_reward_data_paths pos_valid_data_paths neg_valid_data_paths
        pos_valid_label_data_paths neg_valid_label_data_paths pos_test_data_paths neg_test_data_paths
        pos_test_label_data_paths neg_test_label_data_paths eval_iters eval_interval char_level_ppl""",
    "trainer.tracker": """use_wandb wandb wandb_group wandb_run_name wandb_team wandb_project wandb_host
        wandb_init_all_ranks tensorboard tensorboard_dir use_comet comet_workspace comet_project comet_experiment_name
        comet_tags comet_others csv_monitor""",
    "--data": "train_data_path",
}

_NO_EFFECT = {
    "speed, memory or communication": """pipe_partition_method pipe_parallel_size model_parallel_size sequence_parallel
        checkpoint_activations checkpoint_num_layers deepspeed_activation_checkpointing activation_checkpointing
        contiguous_checkpointing checkpoint_in_cpu synchronize_each_layer partition_activations num_workers mmap_warmup
        use_shared_fs data_impl prescale_gradients gradient_predivide_factor sparse_gradients zero_stage
        zero_reduce_scatter zero_contiguous_gradients zero_reduce_bucket_size zero_allgather_bucket_size
        zero_allow_untested_optimizer autotuning autotuning_run""",
    "rounding": """fp32_allreduce communication_data_type data_types fp16_lm_cross_entropy attention_softmax_in_fp32
        onnx_safe layernorm_fusion scaled_upper_triang_masked_softmax_fusion scaled_masked_softmax_fusion
        bias_dropout_fusion rope_fusion use_flashattn_swiglu te_columnparallel te_rowparallel te_fp8_format te_fp8_wgrad
        te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin""",
    "the loss scale of fp16, which bfloat16 does not need": """hysteresis dynamic_loss_scale loss_scale
        loss_scale_window min_scale""",
    "how a run begins or is loaded": """init_method output_layer_init_method use_cpu_initialization load finetune
        no_load_optim no_load_rng no_save_optim no_save_rng checkpoint checkpoint_validation_with_forward_pass
        override_lr_scheduler use_checkpoint_lr_scheduler rotary_save_freqs_buffer lazy_mpu_init""",
    "derived from other arguments": """lr optimizer_type clip_grad batch_size gas world_size is_pipe_parallel
        global_num_gpus local_rank rank iteration do_train do_valid do_test config_files tokenizer tensorboard_writer
        comet_experiment adlr_autoresume_object curriculum_seqlen""",
    "a part of models that are refused": """max_position_embeddings scalenorm_epsilon rpe_num_buckets rpe_max_distance
        opt_pos_emb_offset sparsity_config sparse_attention param_sharing_style gmlp_attn_dim dim_att head_size ffn_dim
        mamba_selective_scan_fusion mamba_causal_conv_fusion mamba_inner_func_fusion mamba_selective_fp32_params
        mamba_use_bias_in_conv mamba_use_bias_in_linears coord_check save_base_shapes base_shapes_file mup_init_scale
        mup_attn_temp mup_output_temp mup_embedding_mult mup_rp_embedding_mult mup_width_scale expert_interval use_tutel
        moe_loss_coeff moe_train_capacity_factor moe_eval_capacity_factor moe_min_capacity moe_token_dropping
        create_moe_param_group moe_use_residual moe_expert_parallel_size moe_type moe_glu
        enable_expert_tensor_parallelism moe_expert_interval moe_top_k moe_router_type moe_lbl_in_fp32
        moe_jitter_eps""",
    "a part of objectives and data that are refused": """dpo_fp32 dpo_reference_free dpo_beta kto_fp32
        kto_desirable_weight kto_undesirable_weight kto_beta z_loss fp32_reinforce kl_impl kl_div_beta
        reinforce_leave_one_out precompute_model_name allow_chopped weighted_sampler_alpha short_seq_prob
        serve_model_weights weight_server_port online_dataserver_ips online_dataserver_ports""",
    "logging and profiling": """log_dir log_interval log_grad_pct_zeros log_param_norm log_grad_norm
        log_optimizer_states log_gradient_noise_scale gradient_noise_scale_n_batches gradient_noise_scale_cpu_offload
        peak_theoretical_tflops memory_profiling memory_profiling_path profile profile_step_start profile_step_stop
        profile_backward flops_profiler wall_clock_breakdown dump_state steps_per_print comms_logger""",
    "starting processes": """deepspeed deepspeed_mpi deepspeed_slurm deepscale deepscale_config user_script hostfile
        include exclude num_nodes num_gpus master_port master_addr launcher force_multi no_ssh_check comment account
        slurm_comment detect_nvlink_pairs distributed_backend adlr_autoresume adlr_autoresume_interval exit_interval
        fused_kernels_build_path""",
    "generating text and evaluating": """text_gen_type temperature top_p top_k return_logits maximum_tokens max_tokens
        out_seq_length greedy genfile prompt_end sample_input_file sample_output_file num_samples recompute
        eval_results_prefix eval_tasks""",
}
ARGUMENTS: dict[str, Argument] = {
    **{name: Argument(CARRIED, about) for name, about in _CARRIED.items()},
    **{
        name: Argument(CHECKED, about, accepted)
        for about, names in _CHECKED.items()
        for name, accepted in names.items()
    },
    **{name: Argument(ELSEWHERE, place) for place, names in _ELSEWHERE.items() for name in names.split()},
    **{name: Argument(NO_EFFECT, why) for why, names in _NO_EFFECT.items() for name in names.split()},
}
# Parameters of Adam: of apex, of DeepSpeed's fused and CPU kernels, of torch.
ADAM: dict[str, Argument] = {
    **dict.fromkeys(("lr", "betas", "eps"), Argument(CARRIED, "`optimizer`")),
    **dict.fromkeys(("bias_correction", "adam_w_mode", "adamw_mode"), Argument(CHECKED, "another update", (True,))),
    **dict.fromkeys(("amsgrad", "maximize"), Argument(CHECKED, "another update", _OFF)),
    **dict.fromkeys(
        ("set_grad_none", "capturable", "master_weights", "fp32_optimizer_states", "foreach", "fused",
         "differentiable", "torch_adam", "freeze_step", "momentum", "cuda_aware", "weight_decay"),
        Argument(NO_EFFECT, "speed or memory, or parameters of other optimizers"),
    ),
}  # fmt: skip


def check_arguments(state: TorchState, unset: JsonObject, notes: list[str]) -> None:
    """Check that the configuration trains what can be imported; add notes.

    Notes name what is set elsewhere here, or unknown.

    Args:
        state: The settings, with underscores.
        unset: Values that NeoX uses for settings that are not there.
        notes: Gets a line for each class of settings that the user has to look after.

    Raises:
        ConversionError: Settings whose values cannot be imported; all are named.
    """
    wrong = []
    for name, argument in ARGUMENTS.items():
        if (name in state or name in unset) and not argument.accepts(state.get(name, unset.get(name))):
            wrong.append((name, state.get(name, unset.get(name)), argument))
    parameters = (state.get("optimizer") or {}).get("params") or {}
    for name, value in parameters.items():
        argument = ADAM.get(name, Argument(CHECKED, "not known here", _OFF))
        if not argument.accepts(value):
            wrong.append((f"optimizer.params.{name}", value, argument))
    zero = state.get("zero_optimization")
    if isinstance(zero, Mapping) and zero.get("round_robin_gradients"):
        wrong.append(("zero_optimization.round_robin_gradients", True, Argument(CHECKED, "another order", _OFF)))
    if wrong:
        raise ConversionError(
            "configs: " + "; ".join(_refusal(name, value, argument) for name, value, argument in wrong)
        )
    for place in _ELSEWHERE:
        names = [name for name, value in state.items() if value and ARGUMENTS.get(name) == Argument(ELSEWHERE, place)]
        if names:
            notes.append(f"configs: {_listed(names)}: not imported, set {place} here")
    unknown = [name for name, value in state.items() if name not in ARGUMENTS and value]
    if unknown:
        notes.append(
            f"configs: {_listed(unknown)}: no argument of GPT-NeoX that is known here, and ignored; make sure that the "
            "training does not depend on it"
        )


def with_extra(config: JsonObject) -> dict[str, TorchValue]:
    """Return the settings with those of ``deepspeed_extra_args``."""
    extra = config.get("deepspeed_extra_args")
    return {**(extra if isinstance(extra, Mapping) else {}), **config}


def _refusal(name: str, value: object, argument: Argument) -> str:
    shown = " or ".join(repr(value) for value in argument.accepted if value is not None) or "an unset one"
    if argument.accepted == _OFF and isinstance(value, (bool, int, float)):
        shown = repr(type(value)())
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{name.replace('_', '-')}: {text} cannot be carried over, only {shown} ({argument.about})"


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in sorted(names))
