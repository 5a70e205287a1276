"""Writer of the files of a DeepSpeed checkpoint.

For any number of data-parallel processes. In bfloat16 they are those of DeepSpeed's optimizer of bf16, which
accumulates gradients in float32 and is the same under ZeRO 0 and 1. In float32 they are those of ZeRO 1, or of torch's
optimizer under ZeRO 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from midstream_core.pickle_tree import Items, Made, Step, Value
from midstream_core.restricted_pickle import Global
from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.interop.deepspeed.flat_rows import Row, TheirParameter
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import EXP_AVG, EXP_AVG_SQ, MASTER, ExportedRun
from midstream_engine.interop.exported_settings import adam_of, batch_of, rates_of
from midstream_engine.interop.tensor_files import Outgoing
from midstream_engine.interop.torch_saving import save

VERSION = "0.19.8"  # of DeepSpeed, whose layout it is
_SCALER = Global("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
_ADDRESS = Global("deepspeed.utils.tensor_fragment", "fragment_address")


@dataclass(frozen=True)
class DeepSpeedState:
    """State of a run as DeepSpeed has it.

    ``groups``: parameters of the optimizer's groups, with and without weight decay, in the module's order.
    """

    run: ExportedRun
    adam: AdamConfig
    groups: Sequence[Sequence[TheirParameter]]
    ranks: int
    batch: int
    model_rank: int  # of model_ranks, which divide the model
    model_ranks: int
    zero_stage: int = 1  # or 0

    @property
    def half(self) -> bool:
        """Whether weights are bfloat16."""
        return "c=bfloat16" in str(self.run.config.trainer.mp)

    @property
    def plain(self) -> bool:
        """Whether the optimizer is torch's own, with a state for each parameter."""
        return self.zero_stage == 0 and not self.half

    @property
    def rows(self) -> list[Row]:
        """Rows of the groups."""
        return [Row(group, self.ranks) for group in self.groups]

    @property
    def next_rate(self) -> float:
        """Learning rate of the next update."""
        return rates_of(self.adam, self.run.config.trainer.num_train_steps)(self.run.schedule_count)

    def settings(self) -> list[dict[str, object]]:
        """Return the hyper-parameters of the optimizer's groups."""
        return [
            {
                "lr": self.next_rate, "betas": (self.adam.beta1, self.adam.beta2), "eps": self.adam.epsilon,
                "weight_decay": self.adam.weight_decay if group[0].decays else 0.0, "bias_correction": True,
                "amsgrad": False, "maximize": False, "foreach": None, "capturable": False, "differentiable": False,
                "fused": None, "decoupled_weight_decay": True, "params": [number],
            }
            for number, group in enumerate(self.groups)
        ]  # fmt: skip

    def config(self) -> dict[str, object]:
        """Return the settings of DeepSpeed with which the run goes on."""
        micro, rest = divmod(self.batch, self.ranks)
        if rest:
            raise ConversionError(
                f"trainer.train_batch_size: {self.batch} cannot be divided over {self.ranks} processes"
            )
        half = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        return {
            "train_batch_size": self.batch, "train_micro_batch_size_per_gpu": micro,
            "gradient_clipping": float(self.adam.max_grad_norm or 0.0), "zero_optimization": {"stage": self.zero_stage},
            "zero_allow_untested_optimizer": True, **(half if self.half else {}),
        }  # fmt: skip

    def weights(self) -> dict[str, Outgoing]:
        """Return the model's weights by name."""
        dtype = "bfloat16" if self.half else "float32"
        return {
            parameter.name: Outgoing(
                parameter.name, dtype, parameter.shape, lambda parameter=parameter: parameter.read(MASTER)
            )
            for group in self.groups
            for parameter in group
        }

    def common(self) -> dict[str, object]:
        """Return the state that all optimizer files have alike."""
        return {"clip_grad": float(self.adam.max_grad_norm or 0.0)} | (
            {} if self.half else {
                "loss_scaler": Made("REDUCE", _SCALER, Items("tuple", [1.0])), "dynamic_loss_scale": False,
                "overflow": False, "zero_stage": 1,
            }
        ) | {"partition_count": [self.ranks] * len(self.groups), "ds_version": VERSION}  # fmt: skip


def state_of(
    run: ExportedRun,
    parameters: Sequence[TheirParameter],
    ranks: int,
    model_rank: int = 0,
    model_ranks: int = 1,
    zero_stage: int = 1,
) -> DeepSpeedState:
    """Return the state of a model-parallel rank for ``ranks`` data-parallel processes.

    Raises:
        ConversionError: DeepSpeed cannot have it.
    """
    adam = adam_of(run, "DeepSpeed")
    decayed = [parameter for parameter in parameters if parameter.decays and adam.weight_decay]
    plain = [parameter for parameter in parameters if not (parameter.decays and adam.weight_decay)]
    groups = [group for group in (decayed, plain) if group]
    return DeepSpeedState(run, adam, groups, ranks, batch_of(run, "DeepSpeed"), model_rank, model_ranks, zero_stage)


def write_optimizer(directory: str, state: DeepSpeedState) -> list[str]:
    """Write the optimizer files of all ranks; return their names.

    There are none where the model file has the optimizer.
    """
    names: list[str] = []
    if state.plain:
        return names
    rows = state.rows
    for rank in range(state.ranks):
        optimizer = {
            **state.common(),
            "base_optimizer_state": {
                "state": {
                    number: {
                        "step": state.run.optimizer_count,
                        "exp_avg": row.tensor(EXP_AVG, rank, padded=True),
                        "exp_avg_sq": row.tensor(EXP_AVG_SQ, rank, padded=True),
                    }
                    for number, row in enumerate(rows)
                },
                "param_groups": state.settings(),
            },
            "single_partition_of_fp32_groups": [row.tensor(MASTER, rank, padded=state.half) for row in rows],
            "group_paddings": [_padding(state, row, rank) for row in rows],
            "param_slice_mappings": [_addresses(row, rank) for row in rows],
        }
        names.append(
            f"{'bf16_' if state.half else ''}zero_pp_rank_{rank}_mp_rank_{state.model_rank:02d}_optim_states.pt"
        )
        value = {"optimizer_state_dict": optimizer, "ds_config": state.config(), "ds_version": VERSION}
        save(os.path.join(directory, names[-1]), value)
    return names


def write_model(directory: str, state: DeepSpeedState, module: object, client: Mapping[str, object]) -> str:
    """Write the model file; return its name.

    ``module``: its weights; None: they are in other files.
    """
    run, name = state.run, f"mp_rank_{state.model_rank:02d}_model_states.pt"
    save(
        os.path.join(directory, name),
        {
            "module": module, "buffer_names": [], "optimizer": _plain_optimizer(state) if state.plain else None,
            "param_shapes": [
                _ordered([[parameter.name, _size(parameter.shape)] for parameter in group]) for group in state.groups
            ],
            "frozen_param_shapes": None, "shared_params": {}, "frozen_param_fragments": None, "data_sampler": None,
            "random_ltd": None, "sparse_tensor_module_names": Items("set", []),
            "skipped_steps": run.step - run.schedule_count, "global_steps": run.step,
            "global_samples": run.step * state.batch, "dp_world_size": state.ranks, "mp_world_size": state.model_ranks,
            "ds_config": state.config(), "ds_version": VERSION, **client,
        },
    )  # fmt: skip
    return name


def _plain_optimizer(state: DeepSpeedState) -> dict[str, object]:
    """Return the state of torch's AdamW, numbered through all groups."""
    count = np.full((), state.run.optimizer_count, np.float32)
    moments: dict[int, object] = {}
    groups = state.settings()
    for settings, parameters in zip(groups, state.groups, strict=True):
        first = len(moments)
        for parameter in parameters:
            moments[len(moments)] = {
                "step": Outgoing("step", "float32", (), lambda: count),
                "exp_avg": Outgoing("exp_avg", "float32", parameter.shape, partial(parameter.read, EXP_AVG)),
                "exp_avg_sq": Outgoing("exp_avg_sq", "float32", parameter.shape, partial(parameter.read, EXP_AVG_SQ)),
            }
        settings["params"] = list(range(first, len(moments)))
    return {"state": moments, "param_groups": groups}


def _padding(state: DeepSpeedState, row: Row, rank: int) -> int:
    """Return what DeepSpeed records as padding: of bf16 all of it, at the last rank."""
    if state.half:
        return row.ranks * row.share - row.size if rank == row.ranks - 1 else 0
    return row.padding(rank)


def _addresses(row: Row, rank: int) -> Value:
    return _ordered([
        [parameter.name, Made("REDUCE", _ADDRESS, Items("tuple", [stop - first, place]))]
        for parameter, place, first, stop in row.pieces(rank)
    ])  # fmt: skip


def _ordered(pairs: list[list[Value]]) -> Made:
    made = Made("REDUCE", Global("collections", "OrderedDict"), Items("tuple", []))
    if pairs:
        made.steps.append(Step("SETITEMS", pairs))
    return made


def _size(shape: Sequence[int]) -> Made:
    return Made("REDUCE", Global("torch", "Size"), Items("tuple", [Items("tuple", list(shape))]))


def write_newest(directory: str, tag: str, name: str = "latest") -> None:
    """Write the file that names the newest checkpoint."""
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(tag)
