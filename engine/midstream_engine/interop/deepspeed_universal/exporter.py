"""Export of a run as a universal checkpoint of DeepSpeed."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from midstream_engine.interop.deepspeed.checkpoint_files import state_of, write_newest
from midstream_engine.interop.deepspeed.exporter import described, parameters_of, write_module
from midstream_engine.interop.exported_run import EXP_AVG, EXP_AVG_SQ, MASTER, ExportedRun
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.tensor_files import Outgoing
from midstream_engine.interop.torch_saving import save

_FILES = {"fp32": MASTER, "exp_avg": EXP_AVG, "exp_avg_sq": EXP_AVG_SQ}
_INFO = {"universal_checkpoint_version": 0.2}  # no parameter is divided by tensor parallelism


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write ``latest``, ``latest_universal`` and ``global_step*``; see `Exporter`."""
    del options
    state = state_of(run, parameters_of(run), 1)
    tag = f"global_step{run.step}"
    folder = os.path.join(directory, tag)
    os.makedirs(folder)
    write_module(folder, state, {"universal_checkpoint_info": _INFO})
    for group in state.groups:
        for parameter in group:
            place = os.path.join(folder, "zero", parameter.name)
            os.makedirs(place)
            for name, kind in _FILES.items():
                tensor = Outgoing(name, "float32", parameter.shape, partial(parameter.read, kind))
                save(os.path.join(place, f"{name}.pt"), {"param": tensor})
            step = Outgoing("step", "float32", (), lambda: np.full((), run.optimizer_count, np.float32))
            save(os.path.join(place, "step.pt"), step)
    common = {**state.common(), "param_groups": state.settings()}
    save(os.path.join(folder, "zero", "optimizer_state.pt"), common)
    write_newest(directory, tag)
    write_newest(directory, tag, "latest_universal")
    notes = ["DeepSpeed loads it with checkpoint: {load_universal: true}, on any number of processes"]
    return Exported([tag, "latest", "latest_universal"], [*notes, *described(run, directory, state)])
