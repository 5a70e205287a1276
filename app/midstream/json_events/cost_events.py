"""Events about hours and money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from midstream.json_events.json_event import HOST, MIGRATION, RUN, TARGET, JsonEvent


class HostCostEvent(JsonEvent, event="host_cost", of=("--cost",)):
    """Hours and money of a host."""

    host: Annotated[str, HOST]
    price_per_hour: Annotated[float | None, "price in the fleet file; null: it has none"]
    accelerators: Annotated[int | None, "their number; null: not known"]
    known_since: Annotated[
        float | None, "UTC seconds: the time before counts only where a process ran; null: it is not known to be on"
    ]
    on_hours: Annotated[float, "hours that it was on"]
    training_hours: Annotated[float, "hours of training"]
    preparing_hours: Annotated[float, "hours in which an engine process ran and did not train"]
    idle_hours: Annotated[float, "hours without an engine process"]
    cost: Annotated[float | None, "price times hours; null: no price is known"]
    idle_cost: Annotated[float | None, "the part of it that was idle; null: no price is known"]
    idle_accelerator_hours: Annotated[float | None, "idle hours times accelerators; null: their number is not known"]


class RunCostEvent(JsonEvent, event="run_cost", of=("--cost",)):
    """Hours and money of a run."""

    run: Annotated[str, RUN]
    hosts: Annotated[Sequence[str], "hosts that it ran on"]
    process_hours: Annotated[float, "hours of its processes on all hosts"]
    training_hours: Annotated[float, "hours of training"]
    cost: Annotated[float | None, "price times hours; null: no price is known"]


class MigrationCostEvent(JsonEvent, event="migration_cost", of=("--cost",)):
    """Time and money of a migration."""

    migration: Annotated[str, MIGRATION]
    run: Annotated[str, RUN]
    source: Annotated[str, "host that the run left"]
    target: Annotated[str, TARGET]
    state: Annotated[str, "the migration's state"]
    preparation_seconds: Annotated[float, "from the plan to the source's last step"]
    downtime_seconds: Annotated[float, "seconds without a step"]
    cost: Annotated[float | None, "of the target during the preparation, and of both sides during the downtime"]


class NotKnownEvent(JsonEvent, event="not_known", of=("--cost",)):
    """A cost that is not known."""

    message: Annotated[str, "which one, and why"]


class TotalCostEvent(JsonEvent, event="total_cost", of=("--cost",)):
    """The total of all hosts."""

    since: Annotated[float, "begin of the period, UTC seconds"]
    until: Annotated[float, "its end"]
    on_hours: Annotated[float, "hours that it was on"]
    training_hours: Annotated[float, "hours of training"]
    preparing_hours: Annotated[float, "hours in which an engine process ran and did not train"]
    idle_hours: Annotated[float, "hours without an engine process"]
    cost: Annotated[float | None, "price times hours; null: no price is known"]
    idle_cost: Annotated[float | None, "the part of it that was idle; null: no price is known"]
    without_price: Annotated[Sequence[str], "hosts without a price in the fleet file"]
