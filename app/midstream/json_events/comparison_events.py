"""Events of `--compare`."""

from __future__ import annotations

from midstream.json_events.json_event import HOST, TARGET, JsonEvent

COMPARISON_EVENTS = (
    JsonEvent(
        "baseline", ("--compare",), "the run as it trains now, measured, to compare the candidates with",
        {
            "target": TARGET,
            "host": HOST,
            "devices": "as jax counts them",
            "device_kind": "jax's name of a device",
            "price_per_hour": "price of all of it; null: not known",
            "step_seconds": "`value`, `low` and `high`: the median of the last 200 steps, without the outer tenths",
            "tokens_per_second": "of all devices; null: not measured",
            "steps_left": "steps to the end of the run; null: not known",
            "seconds_to_end": "`value`, `low` and `high`; null: not known",
            "cost_to_end": "`value`, `low` and `high`; null: no price is known",
        },
    ),
    JsonEvent(
        "candidate", ("--compare", "--check", "--launch", "--migrate"),
        "an estimate for accelerators that are not here, the best first; of a slice that does not exist yet",
        {
            "candidate": "the name in --with",
            "accelerators": "the same, or what the target has",
            "topology": "the compiler's name of it",
            "target": "the target's name in the fleet file; null: accelerators alone",
            "price_per_hour": "price of all of it; null: not known",
            "error": "why there is no estimate; null: there is one",
            "fits": "the step fits the devices' memory, with at least one example at a time",
            "devices": "as jax counts them",
            "device_kind": "jax's name of a device",
            "device_memory": "bytes of a device; null: not known",
            "parameters": "of the model, with padding",
            "batch": "examples of a step",
            "configured": "examples at a time on a device, by the configuration",
            "largest": "the most examples at a time that fit; null: none",
            "per_device_parallelism": "examples at a time of the estimate; null: none fit",
            "accumulation": "micro-batches of a step",
            "peak_memory": "bytes of a device at most, by the compiler; null: nothing fits",
            "needed": "bytes that the last refused program needs; null: none was refused",
            "compile_seconds": "seconds of all compilations on the host that compiled",
            "mfu": "model FLOPs utilisation of the estimate, computed as `throughput/mfu_full_attention` of a run",
            "step_seconds": "`value`, `low` and `high` of a step",
            "parts": "seconds of the uncorrected estimate: `compute`, attention `kernels`, `exposed` collectives",
            "tokens_per_second": "of all devices",
            "steps_left": "steps to the end of the run",
            "seconds_to_end": "`value`, `low` and `high`, without the migration",
            "cost_to_end": "`value`, `low` and `high`, with the migration; null: no price is known",
            "calibration": "measured over estimated steps on such devices: `pairs`, `ratio`, `low`, `high`; null: none",
            "migration_seconds": "of a run: until it trains there, without installation and copy of its data",
            "downtime": "of a run: predicted seconds in which nothing trains",
            "migration_cost": "of a run: what the migration costs; null: a price is not known",
            "pays_after_steps": "of a run: steps after which the migration has paid off; null: never, or not known",
            "pays_after_hours": "of a run: the same in hours of training there",
        },
    ),
)  # fmt: skip
