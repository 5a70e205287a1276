"""Metrics of a host over time: names, units, plausible values, combination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from midstream_core.json_types import JsonObject, object_or_empty

PREFIX = "system/"  # of their names beside a run's own metrics
MAX_ACCELERATORS = 32  # of a host of which series are stored
MEAN, SUM = "mean", "sum"


@dataclass(frozen=True)
class SystemMetric:
    """A metric of a host, or of each of its accelerators.

    Attributes:
        name: Name of the series.
        field: Field of the probe's line, or of an accelerator in it.
        unit: Unit in which it is shown.
        scale: Factor from the reported value to the unit.
        limit: Largest plausible value as reported; others are left out.
        total: `MEAN` or `SUM`: how the values of several accelerators or hosts become one.
        of_accelerator: Whether each accelerator has a series.
        low: Smallest plausible value.
    """

    name: str
    field: str
    unit: str
    scale: float
    limit: float
    total: str
    of_accelerator: bool = False
    low: float = 0.0


_BYTES, _RATE = 1e15, 1e14  # a petabyte; 100 TB/s
METRICS = (
    SystemMetric("utilization", "utilization", "%", 100.0, 1.0, MEAN, of_accelerator=True),
    SystemMetric("accelerator_memory", "memory_used", "GB", 1e-9, _BYTES, SUM, of_accelerator=True),
    SystemMetric("power", "power", "W", 1.0, 1e5, SUM, of_accelerator=True),
    SystemMetric("temperature", "temperature", "C", 1.0, 500.0, MEAN, of_accelerator=True, low=-100.0),
    SystemMetric("cpu", "cpu_used", "%", 100.0, 1.0, MEAN),
    SystemMetric("memory", "memory_used", "GB", 1e-9, _BYTES, SUM),
    SystemMetric("network_received", "network_received", "MB/s", 1e-6, _RATE, SUM),
    SystemMetric("network_sent", "network_sent", "MB/s", 1e-6, _RATE, SUM),
    SystemMetric("rdma_received", "rdma_received", "MB/s", 1e-6, _RATE, SUM),
    SystemMetric("rdma_sent", "rdma_sent", "MB/s", 1e-6, _RATE, SUM),
    SystemMetric("disk_read", "disk_read", "MB/s", 1e-6, _RATE, SUM),
    SystemMetric("disk_written", "disk_written", "MB/s", 1e-6, _RATE, SUM),
)
BY_NAME: Mapping[str, SystemMetric] = {metric.name: metric for metric in METRICS}
OF_HOST = tuple(metric for metric in METRICS if not metric.of_accelerator)
OF_ACCELERATOR = tuple(metric for metric in METRICS if metric.of_accelerator)

Key = tuple[str, int]  # (name of a metric, index of the accelerator; -1: of the host)


def metric_of(name: str) -> SystemMetric | None:
    """Return the system metric of a name with `PREFIX`; None for a run's own metric."""
    return BY_NAME.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


# What a poll of 500 hosts a second has to look up, as tuples: (key, field, low, limit).
_OF_HOST = tuple(((metric.name, -1), metric.field, metric.low, metric.limit) for metric in OF_HOST)
_OF_ACCELERATOR = tuple(
    tuple(((metric.name, index), metric.field, metric.low, metric.limit) for metric in OF_ACCELERATOR)
    for index in range(MAX_ACCELERATORS)
)


def host_values(gauges: JsonObject) -> list[tuple[Key, float]]:
    """Return the plausible values of a host's own metrics. NaN is not plausible."""
    return [
        (key, value)
        for key, name, low, limit in _OF_HOST
        if isinstance(value := gauges.get(name), int | float) and low <= value <= limit
    ]


def accelerator_values(accelerators: Any) -> list[tuple[Key, float]]:
    """Return the plausible values of the first `MAX_ACCELERATORS` accelerators.

    The accelerators are numbered as the host numbers them.
    """
    values: list[tuple[Key, float]] = []
    for entry in cast("list[Any]", accelerators)[:MAX_ACCELERATORS] if isinstance(accelerators, list) else ():
        fields = object_or_empty(entry)
        index = fields.get("index")
        if type(index) is int and 0 <= index < MAX_ACCELERATORS:
            values += [
                (key, value)
                for key, name, low, limit in _OF_ACCELERATOR[index]
                if isinstance(value := fields.get(name), int | float) and low <= value <= limit
            ]
    return values
