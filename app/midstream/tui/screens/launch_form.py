"""Forms of a launch: of a new run, and of the next attempt of one."""

from __future__ import annotations

import shlex

from midstream.errors import MidstreamError, UsageError
from midstream.launch.engine_flags import named_run
from midstream.launch.launch_request import LaunchRequest
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.form import FormField, FormScreen, Values
from midstream.tui.screens.dialogs.typed_flags import EXAMPLE, flags_problem, words_of
from midstream.tui.screens.launch_screen import LaunchScreen
from midstream.watch.run_failure import has_failed
from midstream.watch.snapshot import RunView


def ask_launch(screen: MidstreamScreen, target: str = "", request: LaunchRequest | None = None) -> None:
    """Prompt for config, target, run id and engine flags, then run the preflight."""
    actions = screen.midstream.actions
    try:
        targets = [choice.name for choice in actions.targets()]
    except MidstreamError as error:
        screen.show_error(error)
        return
    first = request or LaunchRequest(target or (targets[0] if len(targets) == 1 else ""))
    fields = (
        FormField(
            "config", "Config", first.config or "", "a YAML file, or one that midstream ships", actions.configs()
        ),
        FormField("target", "Target", first.target, ", ".join(targets), targets),
        FormField("run_id", "Run id", first.run_id or "", "trainer.id of flags or config, else random"),
        FormField("flags", "Engine flags", shlex.join(first.overrides), f"none; for example {EXAMPLE}"),
    )

    def check(values: Values) -> str:
        if not values["config"]:
            return "name a config"
        if values["target"] not in targets:
            return f"no target {values['target']!r}: {', '.join(targets)}"
        problem = flags_problem(values["flags"])
        if problem:
            return problem
        try:
            named_run(values["run_id"], words_of(values["flags"]))
        except UsageError as error:
            return str(error)
        return ""

    def answered(values: Values | None) -> None:
        if values is not None:
            request = LaunchRequest(
                values["target"], values["config"], values["run_id"] or None, words_of(values["flags"])
            )
            screen.app.push_screen(LaunchScreen(request))

    screen.app.push_screen(FormScreen("Launch a run", fields, check, "runs the preflight"), answered)


def offer_start_again(screen: MidstreamScreen, run: RunView) -> None:
    """Offer the next attempt of a run that has stopped, on the target that owns it."""
    if run.running:
        screen.notify(f"{run.run_id} is running on {run.host}", severity="warning", markup=False)
    elif run.fence is None:
        hint = f"midstream --repair {run.run_id} shows why"
        screen.notify(f"{run.run_id} on {run.host} has no fence: {hint}", severity="warning", markup=False)
    else:
        from midstream.operations.launch import restart_target

        trained = run.lineage is not None and any(entry.attempt == run.attempt for entry in run.lineage.entries)
        failed = run.attempt if has_failed(run) and not trained else 0
        targets = [choice.name for choice in screen.midstream.actions.targets()]
        target = restart_target(targets, screen.screen_state.snapshot, run)
        ask_start_again(screen, LaunchRequest(target, None, run.run_id), failed)


def ask_start_again(screen: MidstreamScreen, request: LaunchRequest, failed: int = 0) -> None:
    """Prompt for engine flags, then run the preflight of the run's next attempt.

    ``failed`` is the number of the attempt before, if it failed before its first step: its flags do not count.
    """
    none = f"none: {request.run_id} continues with its own config"
    if failed:
        none = f"none: its own config, not the flags of attempt {failed}"
    fields = (FormField("flags", "Engine flags", shlex.join(request.overrides), none),)

    def answered(values: Values | None) -> None:
        if values is not None:
            flags = words_of(values["flags"])
            screen.app.push_screen(LaunchScreen(LaunchRequest(request.target, None, request.run_id, flags)))

    title = f"Start {request.run_id} again on {request.target}"
    form = FormScreen(title, fields, lambda values: flags_problem(values["flags"]), "runs the preflight")
    screen.app.push_screen(form, answered)
