"""Events of `--compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from midstream.json_events.json_event import HOST, TARGET, JsonEvent


class BaselineEvent(JsonEvent, event="baseline", of=("--compare",)):
    """The run as it trains now, measured, to compare the candidates with."""

    target: Annotated[str, TARGET]
    host: Annotated[str, HOST]
    devices: Annotated[int, "as jax counts them"]
    device_kind: Annotated[str, "jax's name of a device"]
    price_per_hour: Annotated[float | None, "price of all of it; null: not known"]
    step_seconds: Annotated[
        Mapping[str, object], "`value`, `low` and `high`: the median of the last 200 steps, without the outer tenths"
    ]
    tokens_per_second: Annotated[float | None, "of all devices; null: not measured"]
    steps_left: Annotated[int | None, "steps to the end of the run; null: not known"]
    seconds_to_end: Annotated[Mapping[str, object] | None, "`value`, `low` and `high`; null: not known"]
    cost_to_end: Annotated[Mapping[str, object] | None, "`value`, `low` and `high`; null: no price is known"]


class CandidateEvent(JsonEvent, event="candidate", of=("--compare", "--check", "--launch", "--migrate")):
    """An estimate for accelerators that are not here, the best first."""

    candidate: Annotated[str, "the name in --with"]
    accelerators: Annotated[str, "the same, or what the target has"]
    topology: Annotated[str, "the compiler's name of it"]
    target: Annotated[str | None, "the target's name in the fleet file; null: accelerators alone"]
    price_per_hour: Annotated[float | None, "price of all of it; null: not known"]
    error: Annotated[str | None, "why there is no estimate; null: there is one"]
    fits: Annotated[bool | None, "the step fits the devices' memory, with at least one example at a time"]
    devices: Annotated[int | None, "as jax counts them"]
    device_kind: Annotated[str | None, "jax's name of a device"]
    device_memory: Annotated[int | None, "bytes of a device; null: not known"]
    parameters: Annotated[int | None, "of the model, with padding"]
    batch: Annotated[int | None, "examples of a step"]
    configured: Annotated[int | None, "examples at a time on a device, by the configuration"]
    largest: Annotated[int | None, "the most examples at a time that fit; null: none"]
    per_device_parallelism: Annotated[int | None, "examples at a time of the estimate; null: none fit"]
    accumulation: Annotated[int | None, "micro-batches of a step"]
    peak_memory: Annotated[int | None, "bytes of a device at most, by the compiler; null: nothing fits"]
    needed: Annotated[int | None, "bytes that the last refused program needs; null: none was refused"]
    compile_seconds: Annotated[float | None, "seconds of all compilations on the host that compiled"]
    mfu: Annotated[
        float | None, "model FLOPs utilisation of the estimate, computed as `throughput/mfu_full_attention` of a run"
    ]
    step_seconds: Annotated[Mapping[str, object] | None, "`value`, `low` and `high` of a step"]
    parts: Annotated[
        Mapping[str, object] | None,
        "seconds of the uncorrected estimate: `compute`, attention `kernels`, `exposed` collectives",
    ]
    tokens_per_second: Annotated[float | None, "of all devices"]
    steps_left: Annotated[int | None, "steps to the end of the run"]
    seconds_to_end: Annotated[Mapping[str, object] | None, "`value`, `low` and `high`, without the migration"]
    cost_to_end: Annotated[
        Mapping[str, object] | None, "`value`, `low` and `high`, with the migration; null: no price is known"
    ]
    calibration: Annotated[
        Mapping[str, object] | None,
        "measured over estimated steps on such devices: `pairs`, `ratio`, `low`, `high`; null: none",
    ]
    migration_seconds: Annotated[
        float | None, "of a run: until it trains there, without installation and copy of its data"
    ]
    downtime: Annotated[float | None, "of a run: predicted seconds in which nothing trains"]
    migration_cost: Annotated[float | None, "of a run: what the migration costs; null: a price is not known"]
    pays_after_steps: Annotated[
        float | None, "of a run: steps after which the migration has paid off; null: never, or not known"
    ]
    pays_after_hours: Annotated[float | None, "of a run: the same in hours of training there"]
