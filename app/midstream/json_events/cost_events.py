"""Events about hours and money."""

from __future__ import annotations

from midstream.json_events.json_event import HOST, MIGRATION, RUN, TARGET, JsonEvent

_COSTS = {
    "on_hours": "hours that it was on",
    "training_hours": "hours of training",
    "preparing_hours": "hours in which an engine process ran and did not train",
    "idle_hours": "hours without an engine process",
    "cost": "price times hours; null: no price is known",
    "idle_cost": "the part of it that was idle",
}

COST_EVENTS = (
    JsonEvent(
        "host_cost", ("--cost",), "hours and money of a host",
        {
            "host": HOST,
            "price_per_hour": "price in the fleet file; null: it has none",
            "accelerators": "their number; null: not known",
            "known_since": "UTC seconds: the time before counts only where a process ran",
            **_COSTS,
            "idle_accelerator_hours": "idle hours times accelerators",
        },
    ),
    JsonEvent(
        "run_cost", ("--cost",), "hours and money of a run",
        {
            "run": RUN,
            "hosts": "hosts that it ran on",
            "process_hours": "hours of its processes on all hosts",
            "training_hours": _COSTS["training_hours"],
            "cost": _COSTS["cost"],
        },
    ),
    JsonEvent(
        "migration_cost", ("--cost",), "time and money of a migration",
        {
            "migration": MIGRATION,
            "run": RUN,
            "source": "host that the run left",
            "target": TARGET,
            "state": "the migration's state",
            "preparation_seconds": "from the plan to the source's last step",
            "downtime_seconds": "seconds without a step",
            "cost": "of the target during the preparation, and of both sides during the downtime",
        },
    ),
    JsonEvent("not_known", ("--cost",), "a cost that is not known", {"message": "which one, and why"}),
    JsonEvent(
        "total_cost", ("--cost",), "the total of all hosts",
        {
            "since": "begin of the period, UTC seconds",
            "until": "its end",
            **_COSTS,
            "without_price": "hosts without a price in the fleet file",
        },
    ),
)  # fmt: skip
