"""The command line: its words, their completion, and what they do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import overload

from midstream.errors import UsageError
from midstream.listing import filter_parser, fleet_fields
from midstream.suggestions import nearest
from midstream.tui import commands
from midstream.tui.base_app import BaseApp
from midstream.tui.commands import Word
from midstream.tui.screens import report_and_export, word_operations
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.style import palette

VIEWS = {"run": "curves", "log": "logs", "checkpoints": "checkpoints", "info": "info"}  # of the run screen
TYPED = ("TARGET|RUN", "HOST:DIR")  # arguments that need not be one of those that are offered
LISTS = {"hosts": fleet_fields.HOSTS, "runs": fleet_fields.RUNS, "migrations": fleet_fields.MIGRATIONS}


def words(app: BaseApp) -> dict[str, Word]:
    """Return the words by name; under --readonly without those that it refuses."""
    return {word.name: word for word in commands.WORDS if not (app.readonly and word.changes)}


class _Completions(Sequence[str]):
    """Names that begin alike, each after the same word, without a copy of them."""

    def __init__(self, word: str, names: Sequence[str], places: range) -> None:
        self._word = word
        self._names = names
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        places = self._places[index]
        if isinstance(places, range):
            return _Completions(self._word, self._names, places)
        return f"{self._word} {self._names[places]}"


def complete(app: BaseApp, text: str) -> Sequence[str]:
    """Return the texts that ``text`` may be completed to.

    Words are in the order of their table, names of runs are sorted.
    """
    name, space, argument = text.lstrip().partition(" ")
    if not space:
        return [f"{word.name}{' ' * bool(word.argument)}" for word in words(app).values() if word.name.startswith(name)]
    word = _word(app, name)
    if word is None:
        return []
    names, argument = _arguments(app, word), argument.lstrip()
    if word.argument == "RUN":  # there may be 100,000, and each key completes
        first = bisect_left(names, argument)
        last = bisect_right(names, argument, first, key=lambda name: name[: len(argument)])
        return _Completions(word.name, names, range(first, last))
    return [f"{word.name} {name}" for name in names if name.startswith(argument)]


def read(app: BaseApp, text: str) -> Callable[[], object]:
    """Return the action of a command.

    Raises:
        UsageError: There is no such command, run, host, migration or theme, or a filter is malformed.
    """
    name, _, argument = text.strip().partition(" ")
    argument = argument.strip()
    word = _word(app, name)
    if word is None:
        raise UsageError(f"no such command {name!r}", nearest(name, tuple(words(app))))
    if argument and not word.argument:
        raise UsageError(f"{word.name} has no argument")
    if word.name in LISTS:
        filter_parser.parse(argument, LISTS[word.name], app.screen_state.now)
        return partial(_list, app, word.name, argument)
    if word.argument:
        argument = _argument(app, word, argument)
    actions: dict[str, Callable[[], object]] = {
        "host": lambda: _fleet(app).select("hosts", argument),
        "migration": lambda: _above_fleet(app, MigrationScreen(argument)),
        "migrate": lambda: app.open_wizard(argument),
        "theme": lambda: app.use_theme(argument),
        "config": lambda: word_operations.show_config(_front(app), argument),
        "check": lambda: word_operations.check(_front(app), argument),
        "report": lambda: report_and_export.ask_report(_front(app), argument),
        "repair": lambda: word_operations.repair(_front(app), argument),
        "adopt": lambda: word_operations.adopt(_front(app), argument),
        "delete": lambda: word_operations.delete(_front(app), argument),
    }
    if word.name in VIEWS:
        return lambda: _above_fleet(app, RunScreen(argument, view=VIEWS[word.name]))
    return actions.get(word.name) or partial(_press, app, word.name)


def _word(app: BaseApp, name: str) -> Word | None:
    """Return the word with this name, or the first that begins with it."""
    by_name = words(app)
    return by_name.get(name) or next(
        (by_name[word_name] for word_name in by_name if name and word_name.startswith(name)), None
    )


def _arguments(app: BaseApp, word: Word) -> Sequence[str]:
    state = app.screen_state
    if word.argument == "RUN":
        return state.snapshot.order.ids
    kinds: dict[str, Callable[[], Iterable[str]]] = {
        "HOST": lambda: (host.name for host in state.snapshot.hosts),
        "MIGRATION": lambda: (view.migration for view in state.migrations),
        "THEME": lambda: palette.PALETTES,
        "TARGET": lambda: (target.name for target in app.actions.targets()),
        "TARGET|RUN": lambda: (target.name for target in app.actions.targets()),
        "HOST:DIR": lambda: (f"{host.name}:" for host in state.snapshot.hosts),
        "[FILTER]": lambda: (f"{name}:" for name in LISTS[word.name]),
    }
    return tuple(kinds[word.argument]()) if word.argument else ()


def _argument(app: BaseApp, word: Word, text: str) -> str:
    """Return the argument with this name, or the only one that begins with it.

    Raises UsageError.
    """
    arguments = _arguments(app, word)
    if text and word.argument in TYPED:
        return text
    matches = (
        [text] if text in arguments else [argument for argument in arguments if text and argument.startswith(text)]
    )
    if len(matches) == 1:
        return matches[0]
    kind = word.argument.lower()
    if not text:
        raise UsageError(f"{word.name} needs a {kind}", nearest(text, arguments[:10]))
    if matches:
        raise UsageError(f"{text!r} is the beginning of {len(matches)} {kind}s", ", ".join(matches[:5]))
    raise UsageError(f"no such {kind} {text!r}", nearest(text, arguments[:1000]) if len(arguments) <= 10 else "")


def _front(app: BaseApp) -> MidstreamScreen:
    screen = app.front_screen
    assert isinstance(screen, MidstreamScreen)
    return screen


def _fleet(app: BaseApp) -> FleetScreen:
    """Close all screens above the fleet screen, and return that."""
    while not isinstance(app.screen, FleetScreen):
        app.pop_screen()
    return app.screen


def _above_fleet(app: BaseApp, screen: MidstreamScreen) -> None:
    _fleet(app)
    app.push_screen(screen)


def _list(app: BaseApp, view: str, text: str) -> None:
    fleet = _fleet(app)
    fleet.action_view(view)
    if text:
        fleet.set_filter(text)
        fleet.refresh_state()


def _press(app: BaseApp, name: str) -> None:
    """Run the action of a key of that name."""
    screen = app.front_screen if name == "help" else _fleet(app) if name != "quit" else app.screen
    assert screen is not None
    app.call_next(partial(screen.run_action, "app.quit" if name == "quit" else name))
