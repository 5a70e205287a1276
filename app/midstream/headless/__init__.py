"""Modes without a screen: text, or JSON lines with --json.

A mode is imported when it is run, so that `--status` of a local fleet loads neither SSH nor what migrations need.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_MODULES = {
    "adopt": "adopt_run",
    "check": "run_checks",
    "checkpoints": "list_checkpoints",
    "clean": "clean_leftovers",
    "compare": "compare_accelerators",
    "config": "show_config",
    "cost": "show_costs",
    "delete": "target_deletion",
    "diff": "diff_checkpoints",
    "doctor": "run_checks",
    "export": "report_and_export",
    "guard": "guard_run",
    "init": "init_fleet",
    "init_run": "adopt_run",
    "is_config": "compare_accelerators",
    "is_migration": "verify_migration",
    "label": "label_run",
    "launch": "launch_and_stop",
    "log": "metrics_and_log",
    "metrics": "metrics_and_log",
    "migrate": "migrate_run",
    "recheck": "verify_migration",
    "repair": "repair_run",
    "restart": "launch_and_stop",
    "report": "report_and_export",
    "reshard": "reshard_checkpoint",
    "resume": "migrate_run",
    "serve_metrics": "serve_metrics",
    "show_tree": "verify_checkpoint",
    "status": "status",
    "stop": "launch_and_stop",
    "undo_label": "label_run",
    "verify": "verify_checkpoint",
    "watch": "watch_fleet",
}


def mode(name: str) -> Callable[..., Any]:
    """Return the function of a mode, from its module."""
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
