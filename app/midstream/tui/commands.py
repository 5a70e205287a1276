"""The one table of commands: keys, palette, help, hint line and docs/keys.md are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

FLEET, RUN, WIZARD, MIGRATION, SLICES = "fleet", "run", "wizard", "migration", "slices"
EVERYWHERE, LIST, PANE, LOG, CURVE = "everywhere", "list", "pane", "log", "curve"

SCOPES = {
    FLEET: "Fleet: hosts, runs and migrations",
    RUN: "Run: curves, logs, checkpoints and info",
    WIZARD: "Migrate: plan and preflight",
    MIGRATION: "Migration: progress, certificate, downtime and log",
    SLICES: "TPU slices",
    LIST: "In every list",
    PANE: "In every text",
    LOG: "In logs",
    CURVE: "In curves (the mouse: wheel zooms, drag pans, two clicks show all)",
    EVERYWHERE: "Everywhere",
}
# The parts of a screen that have keys of their own.
PARTS = {FLEET: (LIST,), RUN: (CURVE, LIST, PANE, LOG), WIZARD: (LIST, PANE), MIGRATION: (PANE, LOG, CURVE)}


@dataclass(frozen=True)
class Command:
    """One thing that a person can do.

    ``action`` is the method ``action_<action>`` of the screen or widget it belongs to (``app.``: of the app).
    ``hint`` puts it on the bottom line; ``changes`` marks what --readonly refuses.
    """

    action: str
    keys: tuple[str, ...]
    name: str
    description: str
    scopes: tuple[str, ...]
    hint: bool = False
    changes: bool = False


COMMANDS = (
    Command("view('hosts')", ("1",), "Hosts", "link, accelerators, memory, disk", (FLEET,)),
    Command("view('runs')", ("2",), "Runs", "training runs, one line each", (FLEET,)),
    Command("view('migrations')", ("3",), "Migrations", "moves under way and done", (FLEET,)),
    Command("slices", ("4",), "TPU slices", "nodes and requests, in all projects", (FLEET,)),
    Command("view('curves')", ("1",), "Curves", "the loss, and the other metrics", (RUN,)),
    Command("view('logs')", ("2",), "Logs", "what the newest attempt prints", (RUN,)),
    Command("view('checkpoints')", ("3",), "Checkpoints", "the states that it can go on from", (RUN,)),
    Command("view('info')", ("4",), "Info", "lineage, fence, devices, versions", (RUN,)),
    Command("view('progress')", ("1",), "Progress", "phases, copy, command log", (MIGRATION,)),
    Command("view('certificate')", ("2",), "Certificate", "what is proven; the curves at the seam", (MIGRATION,)),
    Command("view('downtime')", ("3",), "Downtime", "predicted against measured", (MIGRATION,)),
    Command("view('log')", ("4",), "Log", "every line of the journal", (MIGRATION,)),
    Command("open", ("enter",), "Open", "open what is selected; marked runs with it", (FLEET,), hint=True),
    Command("filter", ("/",), "Filter", "word !word state:failed loss<2.5", (FLEET,), hint=True),
    Command("migrate", ("m",), "Migrate", "move the run to another target", (FLEET, RUN), hint=True, changes=True),
    Command("stop", ("S",), "Stop", "save and stop the run; asks for its name", (FLEET, RUN), hint=True, changes=True),
    Command("mark", ("space",), "Mark", "a run, to lay its curve over another's", (FLEET,), hint=True),
    Command("unmark", ("u",), "Unmark", "take all marks away", (FLEET,)),
    Command("sort", ("o",), "Sort", "by the next column; a click on a heading too", (FLEET,), hint=True),
    Command("reverse", ("O",), "Reverse", "the order", (FLEET,)),
    Command("shell", ("s",), "Shell", "on the selected host; its end leads back", (FLEET,), changes=True),
    Command("set_up", ("a",), "Add hosts", "from ~/.ssh/config into the fleet file", (FLEET,), changes=True),
    Command("metric(1)", ("]",), "Next metric", "draw the next metric", (RUN,), hint=True),
    Command("metric(-1)", ("[",), "Previous metric", "draw the previous metric", (RUN,)),
    Command("metrics", ("p",), "Pick a metric", "from the list of all", (RUN,)),
    Command("zoom", ("z",), "Zoom", "all, the last half, quarter, tenth, hundredth", (RUN,), hint=True),
    Command("axis", ("x",), "X axis", "step, tokens, time", (RUN,)),
    Command("log_y", ("v",), "Log scale", "of the values", (RUN,)),
    Command("smooth", ("s",), "Smoothing", "an average, a longer one, none", (RUN,)),
    Command("outliers", ("o",), "Outliers", "let spikes have their height, or cut them", (RUN,)),
    Command("tiles", ("t",), "Small multiples", "of the other metrics; a click enlarges one", (RUN,)),
    Command("overlay", ("c",), "Compare", "lay another run's curve over this one", (RUN,)),
    Command("whole_log", ("A",), "Whole log", "read all of it from its host", (RUN,)),
    Command("verify", ("V",), "Verify", "hash the selected checkpoint where it lies", (RUN,)),
    Command("diff", ("d",), "Diff", "the checkpoint, or the attempt, with another", (RUN,)),
    Command("next", ("enter",), "Next", "on: plan, preflight, cut-over", (WIZARD,), hint=True, changes=True),
    Command("previous", ("b",), "Previous", "one step back; nothing was changed", (WIZARD,), hint=True),
    Command("checkpoint", ("c",), "Checkpoint", "its state now, or one that is saved", (WIZARD,), hint=True),
    Command("mode", ("o",), "Mode", "how it crosses over", (WIZARD,), hint=True),
    Command("again", ("r",), "Again", "plan or check again", (WIZARD,), hint=True),
    Command("make", ("n",), "Make", "the target's slice; asks with its price first", (SLICES,), changes=True),
    Command("delete", ("D",), "Delete", "the slice; asks for its name", (SLICES,), changes=True),
    Command("again", ("r",), "Again", "ask the provider again", (SLICES,)),
    Command("dismiss", ("escape", "q", "4"), "Close", "what is being deleted goes on", (SLICES,)),
    Command("rollback", ("r",), "Roll back", "the source runs again", (MIGRATION,), hint=True, changes=True),
    Command("continue", ("c",), "Continue", "go on with an interrupted move", (MIGRATION,), hint=True, changes=True),
    Command("open_run", ("o",), "Open run", "the run that is moved", (MIGRATION,), hint=True),
    Command("copy", ("y",), "Copy command", "the same as a command line", (RUN, WIZARD, MIGRATION), hint=True),
    Command("back", ("escape",), "Clear filter", "show every line again", (FLEET,), hint=True),
    Command("back", ("escape",), "Back", "to the fleet", (RUN,), hint=True),
    Command("back", ("escape",), "Leave", "nothing was changed", (WIZARD,), hint=True),
    Command("back", ("escape",), "Detach", "leave the screen; the move goes on", (MIGRATION,), hint=True),
    Command("cursor(1)", ("j", "down"), "Down", "the next line", (LIST,)),
    Command("cursor(-1)", ("k", "up"), "Up", "the line before", (LIST,)),
    Command("cursor(-1000000)", ("g", "home"), "First", "the first line", (LIST,)),
    Command("cursor(1000000)", ("G", "end"), "Last", "the last line", (LIST,)),
    Command("scroll_down", ("j", "down"), "Down", "one line down", (PANE,)),
    Command("scroll_up", ("k", "up"), "Up", "one line up", (PANE,)),
    Command("scroll_home", ("g", "home"), "First", "to the first line", (PANE,)),
    Command("scroll_end", ("G", "end"), "Last", "to the last line, and stay there", (PANE,)),
    Command("page(1)", ("pagedown",), "Page down", "a page further", (LIST, PANE)),
    Command("page(-1)", ("pageup",), "Page up", "a page back", (LIST, PANE)),
    Command("follow", ("f",), "Follow", "stay at the newest line, or stop there", (LOG,)),
    Command("find", ("/",), "Search", "lines with a word; !word: those without", (LOG,)),
    Command("match(1)", ("n",), "Next match", "the next line that was searched for", (LOG,)),
    Command("match(-1)", ("N",), "Previous match", "the one before", (LOG,)),
    Command("only", ("e",), "Only matches", "hide the lines that were not searched for", (LOG,)),
    Command("level", ("i",), "Level", "all, warnings and errors, errors", (LOG,)),
    Command("window", ("a",), "Time window", "all, the last 1, 5, 15, 60 minutes", (LOG,)),
    Command("wrap", ("w",), "Wrap", "fold long lines", (LOG,)),
    Command("scroll_left", ("h", "left"), "Left", "to the start of long lines", (LOG,)),
    Command("scroll_right", ("l", "right"), "Right", "to the end of long lines", (LOG,)),
    Command("cross(-1)", ("h", "left"), "Crosshair left", "the values at a step", (CURVE,)),
    Command("cross(1)", ("l", "right"), "Crosshair right", "the values at a step", (CURVE,)),
    Command("pan(-1)", ("H", "shift+left"), "Pan left", "a quarter of what is in sight", (CURVE,)),
    Command("pan(1)", ("L", "shift+right"), "Pan right", "a quarter of what is in sight", (CURVE,)),
    Command("zoom_in", ("+", "="), "Closer", "around the crosshair, or the newest point", (CURVE,)),
    Command("zoom_out", ("-",), "Farther", "until all is in sight", (CURVE,)),
    Command("whole", ("0",), "All", "the whole curve", (CURVE,)),
    Command("help", ("?",), "Help", "the keys of this screen", (EVERYWHERE,), hint=True),
    Command("app.command_palette", ("ctrl+p", ":"), "Palette", "find a command by its name", (EVERYWHERE,)),
    Command("app.theme", ("T",), "Theme", "choose the colours", (EVERYWHERE,)),
    Command("app.picture", ("P",), "Picture", "save the screen as an SVG file", (EVERYWHERE,)),
    Command("app.suspend_process", ("ctrl+z",), "Suspend", "to the shell; fg comes back", (EVERYWHERE,)),
    Command("app.quit", ("q", "ctrl+c"), "Quit", "runs and migrations go on; a demo ends", (EVERYWHERE,), hint=True),
)

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


def key_name(key: str) -> str:
    """A key as a person calls it."""
    return _DISPLAY.get(key, key)


def of(*scopes: str) -> tuple[Command, ...]:
    """The commands of these scopes, in the table's order."""
    return tuple(command for command in COMMANDS if set(command.scopes) & set(scopes))


def of_screen(scope: str) -> dict[str, tuple[Command, ...]]:
    """All that works on a screen: its own commands, those of its parts, those of every screen, by scope."""
    return {name: of(name) for name in (scope, *PARTS.get(scope, ()), EVERYWHERE)}


def bindings(*scopes: str) -> list[BindingType]:
    """Textual's bindings of these scopes."""
    return [Binding(key, command.action, command.name, show=False) for command in of(*scopes) for key in command.keys]


def document() -> str:
    """docs/keys.md."""
    lines = [
        "# Keys",
        "",
        "<!-- Made from app/midstream/tui/commands.py: python -m midstream.tui.commands > docs/keys.md -->",
        "",
        "`?` shows the keys of the screen you are on, `ctrl+p` (or `:`) finds a command by its name.",
        "Commands marked \\* change something and are refused under `--readonly`.",
    ]
    for scope, title in SCOPES.items():
        lines += ["", f"## {title}", "", "| key | command | what it does |", "|---|---|---|"]
        for command in of(scope):
            keys = " ".join(f"`{key_name(key)}`" for key in command.keys)
            star = " \\*" if command.changes else ""
            lines.append(f"| {keys} | {command.name}{star} | {command.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
