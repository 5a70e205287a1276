"""Modes without a screen: text, or JSON lines with --json.

A mode is imported when it is run, so that `--status` of a local fleet loads neither SSH nor what migrations need.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_MODULES = {
    "adopt": "runs.adopt_run",
    "check": "fleet.run_checks",
    "checkpoints": "checkpoints.list_checkpoints",
    "clean": "fleet.clean_leftovers",
    "compare": "runs.compare_accelerators",
    "config": "runs.show_config",
    "cost": "fleet.show_costs",
    "delete": "fleet.target_deletion",
    "diff": "checkpoints.diff_checkpoints",
    "doctor": "fleet.run_checks",
    "guard": "migration.guard_run",
    "init": "fleet.init_fleet",
    "init_run": "runs.adopt_run",
    "is_config": "runs.compare_accelerators",
    "is_migration": "migration.verify_migration",
    "launch": "runs.launch_and_stop",
    "log": "runs.metrics_and_log",
    "metrics": "runs.metrics_and_log",
    "migrate": "migration.migrate_run",
    "recheck": "migration.verify_migration",
    "repair": "runs.repair_run",
    "restart": "runs.launch_and_stop",
    "resume": "migration.migrate_run",
    "serve_metrics": "fleet.serve_metrics",
    "show_tree": "checkpoints.verify_checkpoint",
    "status": "fleet.status",
    "stop": "runs.launch_and_stop",
    "verify": "checkpoints.verify_checkpoint",
    "watch": "fleet.watch_fleet",
}


def mode(name: str) -> Callable[..., Any]:
    """Return the function of a mode, from its module."""
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
