"""Table of the configuration values in which runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.widgets.table import Column, Row
from midstream.watch.snapshot import RunView

ABSENT = "-"


def show(screen: MidstreamScreen, runs: Sequence[RunView]) -> None:
    """Read the configurations of runs, and show the values that differ."""
    screen.notify(f"reading {len(runs)} configurations ...", timeout=2)
    actions = screen.midstream.actions

    def work() -> None:
        from midstream.watch import resolved_config

        configs = {run.run_id: resolved_config.fields(actions.config(run, run.attempt)) for run in runs}
        screen.app.call_later(partial(_show, screen, configs))

    screen.in_background(work)


def differences(configs: Mapping[str, Mapping[str, object]]) -> dict[str, list[str]]:
    """Return the names whose values differ, with the value of each configuration."""
    names = sorted({name for config in configs.values() for name in config})
    values_of = {name: [str(config.get(name, ABSENT)) for config in configs.values()] for name in names}
    return {name: values for name, values in values_of.items() if len(set(values)) > 1}


def _show(screen: MidstreamScreen, configs: Mapping[str, Mapping[str, object]]) -> None:
    different = differences(configs)
    if not different:
        screen.notify("their configurations are the same")
        return
    columns = (
        Column("VALUE", widest=48, name=True),
        *(Column(run_id, widest=24, name=True, drop=len(configs) + number) for number, run_id in enumerate(configs)),
    )
    rows = [Row(name, (name, *values)) for name, values in different.items()]
    title = f"Configurations: {len(different)} values differ"
    screen.app.push_screen(ChooseScreen(title, columns, rows), lambda _: None)
