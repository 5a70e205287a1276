"""Commands of the command table in Textual's command palette."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from midstream.tui import commands
from midstream.tui.screens.base import MidstreamScreen


class TableCommands(Provider):
    """Command palette entries from the command table."""

    def _found(self) -> list[tuple[commands.Command, Callable]]:
        if not isinstance(self.screen, MidstreamScreen):
            return []
        focus = commands.of_focus(self.screen.SCOPE, parts=(), readonly=self.screen.midstream.readonly)
        table = itertools.chain.from_iterable(focus.values())
        return [(command, partial(self.screen.run_action, command.action)) for command in table]

    async def discover(self) -> Hits:
        for command, run in self._found():
            yield DiscoveryHit(
                command.name, run, help=f"{commands.key_name(commands.keys_of(command)[0])}  {command.description}"
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command, run in self._found():
            score = matcher.match(f"{command.name} {command.description}")
            if score > 0:
                keys = commands.key_name(commands.keys_of(command)[0])
                yield Hit(score, matcher.highlight(command.name), run, help=f"{keys}  {command.description}")
