"""Table of commands.

Keys, palette, help, hint line and docs/reference/keys.md are made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.binding import Binding, BindingType

FLEET, RUN, WIZARD, MIGRATION, SLICES, COSTS, HOST = (
    "fleet", "run", "wizard", "migration", "slices", "costs", "host",
)  # fmt: skip
LAUNCH, LEFTOVERS, VERIFY, COMPARE = "launch", "leftovers", "verify", "compare"
EVERYWHERE, LIST, PANE, LOG, CURVE = "everywhere", "list", "pane", "log", "curve"

SCOPES = {
    FLEET: "Fleet: hosts, runs and migrations",
    RUN: "Run: curves, logs, checkpoints and info",
    LAUNCH: "Launch: preflight and start",
    LEFTOVERS: "Leftovers of killed processes",
    VERIFY: "Verify all",
    WIZARD: "Migrate: plan and preflight",
    COMPARE: "Compare: accelerators for a run",
    MIGRATION: "Migration: progress, certificate, downtime and log",
    SLICES: "TPU slices",
    COSTS: "Costs: hosts, runs and migrations",
    HOST: "Host: system metrics and machine",
    LIST: "In every list",
    PANE: "In every text pane",
    LOG: "In logs",
    CURVE: "In curves (mouse: wheel zooms, drag pans, double click shows all)",
    EVERYWHERE: "Everywhere",
}
# Widgets of a screen that have their own keys.
PARTS = {
    FLEET: (LIST,),
    RUN: (CURVE, LIST, PANE, LOG),
    WIZARD: (LIST, PANE),
    LAUNCH: (PANE,),
    COMPARE: (LIST,),
    LEFTOVERS: (LIST,),
    VERIFY: (LIST,),
    MIGRATION: (PANE, LOG, CURVE),
    COSTS: (LIST,),
    HOST: (CURVE, PANE),
}


@dataclass(frozen=True)
class Command:
    """One command.

    ``action`` names the method ``action_<action>`` of its screen or widget (``app.``: of the application).
    ``hint`` shows it on the bottom line; ``changes`` marks a command that --readonly refuses.
    """

    action: str
    keys: tuple[str, ...]
    name: str
    description: str
    scopes: tuple[str, ...]
    hint: bool = False
    changes: bool = False

    @property
    def id(self) -> str:
        """Name in the file of own keys: ``fleet.hide-finished``."""
        return f"{self.scopes[0]}.{self.name.lower().replace(' ', '-')}"


COMMANDS = (
    Command("view('hosts')", ("1",), "Hosts", "link, accelerators, memory, disk", (FLEET,)),
    Command("view('runs')", ("2",), "Runs", "training runs", (FLEET,)),
    Command("view('migrations')", ("3",), "Migrations", "running and finished migrations", (FLEET,)),
    Command("slices", ("4",), "TPU slices", "nodes and requests in all projects", (FLEET,)),
    Command("costs", ("5",), "Costs", "hours and money by host, run and migration", (FLEET,)),
    Command("view('hosts')", ("1",), "Hosts", "on, training, preparing, idle", (COSTS,)),
    Command("view('runs')", ("2",), "Runs", "hours of all hosts together", (COSTS,)),
    Command("view('migrations')", ("3",), "Migrations", "preparation and downtime", (COSTS,)),
    Command("view('curves')", ("1",), "Curves", "loss and other metrics", (RUN,)),
    Command("view('logs')", ("2",), "Logs", "log of the newest attempt", (RUN,)),
    Command("view('checkpoints')", ("3",), "Checkpoints", "saved states of the run", (RUN,)),
    Command("view('info')", ("4",), "Info", "lineage, ownership, devices, versions", (RUN,)),
    Command("view('curves')", ("1",), "Curves", "accelerators, processor, network, disks", (HOST,)),
    Command("view('machine')", ("2",), "Machine", "processes, accelerators, software, disks", (HOST,)),
    Command("view('progress')", ("1",), "Progress", "phases, copy, command log", (MIGRATION,)),
    Command("view('certificate')", ("2",), "Certificate", "claims, and curves before and after", (MIGRATION,)),
    Command("view('downtime')", ("3",), "Downtime", "predicted and measured", (MIGRATION,)),
    Command("view('log')", ("4",), "Log", "all lines of the journal", (MIGRATION,)),
    Command("open", ("enter",), "Open", "open the selection, with marked runs", (FLEET,), hint=True),
    Command("log", ("l",), "Log", "log of the run, at the reason of a failure", (FLEET,)),
    Command("filter", ("/",), "Filter", "loss<2.5 age>5m !state:failed a OR b", (FLEET,), hint=True),
    Command("migrate", ("m",), "Migrate", "migrate the run to another target", (FLEET, RUN), hint=True, changes=True),
    Command("stop", ("S",), "Stop", "save and stop the run, or the marked ones", (FLEET, RUN), hint=True, changes=True),
    Command("launch", ("L",), "Launch", "start a run of a config on a target", (FLEET,), changes=True),
    Command("start_again", ("R",), "Start again", "start a run that has stopped or failed", (FLEET, RUN), changes=True),
    Command("edit", ("B",), "Label", "name, tags and note of the run", (FLEET, RUN), changes=True),
    Command("undo", ("U",), "Undo label", "undo the last edit of a name, tags or note", (FLEET, RUN), changes=True),
    Command("verify", ("V",), "Verify all", "hash all checkpoints, or marked; asks first", (FLEET,)),
    Command("leftovers", ("C",), "Clean", "list leftovers, and remove them", (FLEET,)),
    Command("mark", ("space",), "Mark", "mark a run, to compare its curve", (FLEET,), hint=True),
    Command("mark_all", ("A",), "Mark all", "mark all runs that are shown, or none", (FLEET,)),
    Command("unmark", ("u",), "Unmark", "remove all marks", (FLEET,)),
    Command("sort", ("o",), "Sort", "by the next column (or click a heading)", (FLEET,), hint=True),
    Command("reverse", ("O",), "Reverse", "reverse the order", (FLEET,)),
    Command("group", ("b",), "Group", "by the next field: project, tags, host, ...", (FLEET,)),
    Command("hide_finished", ("f",), "Hide finished", "hide what ended without a failure, or show it", (FLEET,)),
    Command("columns", ("c",), "Columns", "choose the columns of the list", (FLEET,)),
    Command("curves", ("v",), "Curves", "system metrics of the host over time", (FLEET,), hint=True),
    Command("shell", ("s",), "Shell", "open a shell on the selected host", (FLEET,), changes=True),
    Command("add_hosts", ("a",), "Add hosts", "add hosts of ~/.ssh/config to the fleet file", (FLEET,), changes=True),
    Command("metric(1)", ("]",), "Next metric", "draw the next metric", (RUN, HOST), hint=True),
    Command("metric(-1)", ("[",), "Previous metric", "draw the previous metric", (RUN, HOST)),
    Command("metrics", ("p",), "Pick a metric", "choose from all metrics", (RUN, HOST)),
    Command("zoom", ("z",), "Zoom", "all, last 1/2, 1/4, 1/10, 1/100", (RUN, HOST), hint=True),
    Command("axis", ("x",), "X axis", "steps, tokens, time", (RUN,)),
    Command("log_y", ("v",), "Log scale", "logarithmic values", (RUN, HOST)),
    Command("log_x", ("X",), "Log x", "logarithmic steps, tokens or time", (RUN,)),
    Command("y_range", ("W",), "Y range", "LOW:HIGH, such as 2:3.5", (RUN, HOST)),
    Command("smooth", ("s",), "Smoothing", "short average, long average, none", (RUN, HOST)),
    Command("smoothing_factor", ("F",), "Smoothing factor", "enter a number from 0 to 0.999", (RUN, HOST)),
    Command("outliers", ("o",), "Outliers", "show spikes in full, or clip them", (RUN, HOST)),
    Command("tiles", ("t",), "Small multiples", "plots of other metrics; click enlarges", (RUN, HOST)),
    Command("overlay", ("c",), "Compare", "overlay another run's curve", (RUN,)),
    Command("band", ("b",), "Mean and band", "mean and range of the compared runs, by group", (RUN,)),
    Command("full_log", ("A",), "Start of log", "read the log from its first line on", (RUN,), hint=True),
    Command("process", ("r",), "Process", "choose the process whose log is shown", (RUN,)),
    Command("verify", ("V",), "Verify", "hash the selected checkpoint in place", (RUN,), hint=True),
    Command("diff", ("d",), "Diff", "compare checkpoints, attempts or configs", (RUN,), hint=True),
    Command("export", ("E",), "Export model", "write it for another trainer", (RUN,), hint=True, changes=True),
    Command("report", ("D",), "Report", "save a page about the run, to show others", (RUN,)),
    Command("next", ("enter",), "Next", "go to preflight, then to migration", (WIZARD,), hint=True, changes=True),
    Command("previous", ("b",), "Previous", "back to the plan", (WIZARD,), hint=True),
    Command("checkpoint", ("c",), "Checkpoint", "migrate the current state or a checkpoint", (WIZARD,), hint=True),
    Command("mode", ("o",), "Mode", "cold, warm or live", (WIZARD,), hint=True),
    Command("settings", ("s",), "Settings", "batch, healthy steps, engine flags", (WIZARD,), hint=True),
    Command("compare", ("a",), "Compare", "estimate fit, speed and cost of accelerators", (WIZARD,)),
    Command("migrate", ("m",), "Migrate", "migrate to the selected target", (COMPARE,), changes=True),
    Command("leave", ("escape",), "Close", "compiling ends", (COMPARE,)),
    Command("again", ("r",), "Retry", "plan or check again", (WIZARD, LAUNCH), hint=True),
    Command("next", ("enter",), "Start", "start the run, after confirmation", (LAUNCH,), hint=True, changes=True),
    Command("previous", ("b",), "Previous", "back to the form", (LAUNCH,), hint=True),
    Command("remove", ("enter",), "Remove", "remove them, after confirmation", (LEFTOVERS,), hint=True, changes=True),
    Command("again", ("r",), "Refresh", "list the leftovers again", (LEFTOVERS,), hint=True),
    Command("create", ("n",), "Create", "create the target's slice, after confirmation", (SLICES,), changes=True),
    Command("delete", ("D",), "Delete", "delete the slice, after confirmation", (SLICES,), changes=True),
    Command("again", ("r",), "Refresh", "list the slices again", (SLICES,)),
    Command("dismiss", ("escape", "q", "4"), "Close", "deletion continues", (SLICES,)),
    Command("leave_to('view(\\'hosts\\')')", ("1",), "Hosts", "close, and show the hosts", (SLICES,)),
    Command("leave_to('view(\\'runs\\')')", ("2",), "Runs", "close, and show the runs", (SLICES,)),
    Command("leave_to('view(\\'migrations\\')')", ("3",), "Migrations", "close, and show the migrations", (SLICES,)),
    Command("leave_to('costs')", ("5",), "Costs", "close, and show the costs", (SLICES,)),
    Command("period", ("p",), "Period", "1, 7, 30, 90, 365 days", (COSTS,), hint=True),
    Command("again", ("r",), "Refresh", "read the hosts again", (COSTS,), hint=True),
    Command("rollback", ("r",), "Roll back", "return the run to its source", (MIGRATION,), hint=True, changes=True),
    Command("continue", ("c",), "Continue", "continue an interrupted migration", (MIGRATION,), hint=True, changes=True),
    Command("open_run", ("o",), "Open run", "open the migrated run", (MIGRATION,), hint=True),
    Command("back", ("escape",), "Back", "return to the fleet", (LAUNCH, LEFTOVERS, VERIFY), hint=True),
    Command(
        "copy",
        ("y",),
        "Copy command",
        "copy the equivalent command line",
        (RUN, WIZARD, LAUNCH, MIGRATION, SLICES, COSTS, LEFTOVERS, COMPARE),
        hint=True,
    ),
    Command("copy_name", ("y",), "Copy name", "copy the name of the selection", (FLEET, HOST)),
    Command(
        "document",
        ("Y",),
        "Show YAML",
        "all of the selection, as YAML or JSON",
        (FLEET, RUN, HOST, MIGRATION, SLICES, COSTS),
    ),
    Command("back", ("escape",), "Clear filter", "show all rows", (FLEET,), hint=True),
    Command("back", ("escape",), "Back", "return to the fleet", (RUN, COSTS, HOST), hint=True),
    Command("back", ("escape",), "Cancel", "close the wizard; nothing has changed", (WIZARD,), hint=True),
    Command("back", ("escape",), "Detach", "close the screen; the migration continues", (MIGRATION,), hint=True),
    Command("cursor(1)", ("j", "down"), "Down", "next row", (LIST,)),
    Command("cursor(-1)", ("k", "up"), "Up", "previous row", (LIST,)),
    Command("cursor(-1000000)", ("g", "home"), "First", "first row", (LIST,)),
    Command("cursor(1000000)", ("G", "end"), "Last", "last row", (LIST,)),
    Command("scroll_down", ("j", "down"), "Down", "scroll down", (PANE,)),
    Command("scroll_up", ("k", "up"), "Up", "scroll up", (PANE,)),
    Command("scroll_home", ("g", "home"), "First", "scroll to the first line", (PANE,)),
    Command("scroll_end", ("G", "end"), "Last", "scroll to the last line and follow", (PANE,)),
    Command("page(1)", ("pagedown",), "Page down", "next page", (LIST, PANE)),
    Command("page(-1)", ("pageup",), "Page up", "previous page", (LIST, PANE)),
    Command("follow", ("f",), "Follow", "follow the newest line, or stop", (LOG,), hint=True),
    Command("find", ("/",), "Search", "lines with a word; !word: without it", (LOG,), hint=True),
    Command("match(1)", ("n",), "Next match", "next matching line", (LOG,)),
    Command("match(-1)", ("N",), "Previous match", "previous matching line", (LOG,)),
    Command("only", ("e",), "Only matches", "hide other lines", (LOG,)),
    Command("level", ("i",), "Level", "all, warnings and errors, errors", (LOG,), hint=True),
    Command("window", ("a",), "Time window", "all, the last 1, 5, 15, 60 minutes", (LOG,)),
    Command("wrap", ("w",), "Wrap", "wrap long lines", (LOG,)),
    Command("scroll_left", ("h", "left"), "Left", "scroll left", (LOG,)),
    Command("scroll_right", ("l", "right"), "Right", "scroll right", (LOG,)),
    Command("cross(-1)", ("h", "left"), "Crosshair left", "show values at a step", (CURVE,)),
    Command("cross(1)", ("l", "right"), "Crosshair right", "show values at a step", (CURVE,)),
    Command("pan(-1)", ("H", "shift+left"), "Pan left", "by 1/4 of the visible range", (CURVE,)),
    Command("pan(1)", ("L", "shift+right"), "Pan right", "by 1/4 of the visible range", (CURVE,)),
    Command("zoom_in", ("+", "="), "Zoom in", "around the crosshair or the newest point", (CURVE,)),
    Command("zoom_out", ("-",), "Zoom out", "up to the full range", (CURVE,)),
    Command("full_range", ("0",), "All", "show the full range", (CURVE,)),
    Command("export", ("e",), "Export", "save the curves as CSV, SVG or PNG", (CURVE,)),
    Command("help", ("?",), "Help", "keys of this screen", (EVERYWHERE,), hint=True),
    Command("app.command_line", (":",), "Command line", "type runs, run NAME, theme NAME, ...", (EVERYWHERE,)),
    Command("app.command_palette", ("ctrl+p",), "Palette", "find a key by its name", (EVERYWHERE,)),
    Command("app.theme", ("T",), "Theme", "choose the colours", (EVERYWHERE,)),
    Command("app.picture", ("P",), "Screenshot", "save the screen as an SVG file", (EVERYWHERE,)),
    Command("app.suspend_process", ("ctrl+z",), "Suspend", "return to the shell; fg resumes", (EVERYWHERE,)),
    Command("app.quit", ("q", "ctrl+c"), "Quit", "runs and migrations continue; a demo ends", (EVERYWHERE,), hint=True),
)


@dataclass(frozen=True)
class Word:
    """Command of the command line.

    ``argument`` is in brackets where it may be left out.
    """

    name: str
    argument: str
    description: str
    changes: bool = False


WORDS = (
    Word("hosts", "[FILTER]", "list the hosts"),
    Word("runs", "[FILTER]", "list the runs"),
    Word("migrations", "[FILTER]", "list the migrations"),
    Word("slices", "", "list the TPU slices"),
    Word("costs", "", "show hours and money"),
    Word("host", "HOST", "select a host"),
    Word("run", "RUN", "show the curves of a run"),
    Word("log", "RUN", "show the log of a run"),
    Word("checkpoints", "RUN", "list the checkpoints of a run"),
    Word("info", "RUN", "show lineage and devices of a run"),
    Word("migration", "MIGRATION", "show a migration"),
    Word("migrate", "RUN", "open the wizard for a run", changes=True),
    Word("config", "RUN", "show the configuration of a run"),
    Word("report", "RUN", "save a page about a run, to show others"),
    Word("check", "TARGET|RUN", "check a target, or a run before it is moved"),
    Word("repair", "RUN", "show damaged records, and repair them", changes=True),
    Word("adopt", "HOST:DIR", "adopt a trainer that runs there", changes=True),
    Word("delete", "TARGET", "delete the slice or the pods of a target", changes=True),
    Word("theme", "THEME", "choose the colours"),
    Word("help", "", "show the keys"),
    Word("quit", "", "leave; runs and migrations continue"),
)
# Views that a command of a screen is about; the others are about all views. Its keys work in all of them.
_RUNS, _CURVES = ("runs",), ("curves",)
ABOUT = {
    FLEET: {
        "migrate": _RUNS,
        "stop": _RUNS,
        "mark": _RUNS,
        "unmark": _RUNS,
        "curves": ("hosts",),
        "shell": ("hosts", "runs"),
        "hide_finished": ("runs", "migrations"),
    },
    RUN: {
        **dict.fromkeys(("metric(1)", "metric(-1)", "metrics", "zoom", "axis", "log_y", "smooth"), _CURVES),
        **dict.fromkeys(("outliers", "tiles", "overlay"), _CURVES),
        "full_log": ("logs",),
        "process": ("logs",),
        "verify": ("checkpoints",),
        "export": ("checkpoints",),
        "diff": ("checkpoints", "info"),
    },
    HOST: dict.fromkeys(
        ("metric(1)", "metric(-1)", "metrics", "zoom", "log_y", "smooth", "outliers", "tiles"), _CURVES
    ),
}
_DISPLAY = {
    "escape": "esc",
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "home": "Home",
    "end": "End",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "shift+left": "Shift-Left",
    "shift+right": "Shift-Right",
}


# Keys that the user has chosen, by the id of the command: see `own_keys`.
OWN_KEYS: dict[str, tuple[str, ...]] = {}


def keys_of(command: Command) -> tuple[str, ...]:
    """Return the keys of a command: the user's own, or those of the table."""
    return OWN_KEYS.get(command.id, command.keys)


def key_name(key: str) -> str:
    """Return the displayed name of a key."""
    return _DISPLAY.get(key, key)


def of(*scopes: str) -> tuple[Command, ...]:
    """Return the commands of these scopes, in the order of the table."""
    return tuple(command for command in COMMANDS if set(command.scopes) & set(scopes))


def generality(command: Command, scope: str) -> int:
    """Return 0 for a command about a widget or one view, 1 for one about the screen.

    The fleet screen is one list: all its commands are about that.
    """
    return int(scope != FLEET and scope in command.scopes and command.action not in ABOUT.get(scope, {}))


def _is_about(command: Command, scope: str, view: str) -> bool:
    views = ABOUT.get(scope, {}).get(command.action)
    return not view or views is None or view in views


def of_focus(
    scope: str, view: str = "", parts: Sequence[str] | None = None, *, readonly: bool = False
) -> dict[str, tuple[Command, ...]]:
    """Return the commands for the focus, by scope: screen, its widget, everywhere.

    Args:
        scope: The screen.
        view: Its view in front; empty: all views.
        parts: Scopes of the widget that has the focus; None: of all its widgets.
        readonly: Leave out commands that --readonly refuses.
    """
    scopes = (scope, *(PARTS.get(scope, ()) if parts is None else parts), EVERYWHERE)
    return {
        name: tuple(
            command for command in of(name) if _is_about(command, name, view) and not (readonly and command.changes)
        )
        for name in scopes
    }


def bindings(*scopes: str) -> list[BindingType]:
    """Return Textual's bindings of these scopes."""
    return [
        Binding(key, command.action, command.name, show=False, id=command.id)
        for command in of(*scopes)
        for key in command.keys
    ]


def document() -> str:
    """Return the text of docs/reference/keys.md."""
    lines = [
        "# Keys",
        "",
        "<!-- Made from app/midstream/tui/commands.py: python -m midstream.tui.commands > docs/reference/keys.md -->",
        "",
        "`?` shows the keys of what has the focus; `ctrl+p` finds a key by its name; `:` opens the command line.",
        "[Own keys](../how-to/terminal.md#own-keys) are in a file.",
        "Commands marked \\* change something: `--readonly` refuses them.",
    ]
    for scope, title in SCOPES.items():
        lines += ["", f"## {title}", "", "| key | command | effect |", "|---|---|---|"]
        for command in of(scope):
            keys = " ".join(f"`{key_name(key)}`" for key in command.keys)
            star = " \\*" if command.changes else ""
            lines.append(f"| {keys} | {command.name}{star} | {command.description} |")
    lines += ["", "## Command line", "", "`tab` completes; the beginning of a word is enough.", ""]
    lines += ["| command | effect |", "|---|---|"]
    for word in WORDS:
        star = " \\*" if word.changes else ""
        typed = f":{word.name} {word.argument}".rstrip().replace("|", "&#124;")  # a bar would end the cell
        lines.append(f"| <code>{typed}</code>{star} | {word.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
