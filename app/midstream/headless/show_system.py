"""Mode `--metrics RUN --system`: reports of a run's hosts while they are watched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from midstream.errors import Exit
from midstream.json_events.run_events import SystemEvent
from midstream.operations.system_points import SystemPoint, system_points
from midstream.watch.system_metrics import METRICS

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.output import Output


def show_system(hosts: HostPool, run_ids: Sequence[str], seconds: float, output: Output) -> int:
    """Watch the hosts of runs for some seconds; print a line for each host and point."""
    for point in system_points(hosts, run_ids, seconds):
        event = SystemEvent(
            run=point.run_id, host=point.host, time=point.time, global_step=point.step, values=point.values
        )
        output.event(event, _words(point))
    return Exit.DONE


def _words(point: SystemPoint) -> str:
    step = "-" if point.step is None else point.step
    words = [time.strftime("%H:%M:%S", time.localtime(point.time)), point.host, f"step {step}"]
    for metric in METRICS:
        if (value := point.values.get(metric.name)) is None:
            continue
        values = cast("list[float | None]", value if metric.of_accelerator else [value])
        numbers = ", ".join("-" if number is None else f"{number * metric.scale:.3g}" for number in values)
        words.append(f"{metric.name} {numbers} {metric.unit}")
    return "  ".join(words)
