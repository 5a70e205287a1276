"""Sections of docs/reference/cli.md: modes, flags, exit codes, examples."""

from __future__ import annotations

from midstream.errors import MEANINGS
from midstream.flag_parser import SCREEN, FlagParser
from midstream.flags import EXAMPLES, parser
from pages.markdown import marked, table

# Flag -> page about it, relative to docs/reference.
LINKS = {
    "--compare": "../how-to/compare.md",
    "--demo": "../getting-started.md",
    "--check": "../how-to/hosts.md",
    "--cost": "costs.md",
    "--filter": "filters.md",
    "--migrate": "../how-to/migrate.md",
    "--guard": "../how-to/guard.md#migrate-automatically-when-the-machine-is-lost",
    "--continue": "../how-to/recover.md",
    "--repair": "recovery.md#a-record-of-a-run-is-damaged",
    "--mode": "../how-to/migrate.md#choose-a-mode",
    "--gqa-layout": "imports.md#which-gpt-neox-wrote-it",
    "--cast-parameters": "imports.md#types-of-the-numbers",
    "--fleet": "fleet-file.md",
    "--json": "json-lines.md",
    "--readonly": "../how-to/tui.md",
    "--print-completion": "../how-to/shell.md",
}
_NOT_RUN = "<!-- not run: the tutorial runs these commands on its hosts -->"


def sections() -> dict[str, str]:
    """Return the sections by name."""
    flags = parser()
    return {
        "modes": _modes(flags),
        "flags": _flags(flags),
        "exit codes": table(("code", "means"), [(str(int(code)), marked(text)) for code, text in MEANINGS.items()]),
        "examples": "\n".join([_NOT_RUN, "```sh", *_examples(), "```"]) + "\n",
    }


def _modes(flags: FlagParser) -> str:
    rows = [("`midstream`", f"open {SCREEN} ([more](../how-to/tui.md))", _flags_of(flags, SCREEN))]
    for name in flags.modes:
        needed = " ".join(flags.shown(one) for one in flags.notes[name].needs)
        shown = f"`{flags.shown(name)}{f' {needed}' if needed else ''}`"
        rows.append((shown, _text(flags, name), _flags_of(flags, name)))
    return table(("mode", "does", "flags"), rows)


def _flags_of(flags: FlagParser, mode: str) -> str:
    """Return the flags that go with a mode alone or with few, except those it needs."""
    found = [name for name, note in flags.notes.items() if mode in note.of]
    if mode in flags.notes:
        found = [name for name in found if name not in flags.notes[mode].needs]
        found += ["-- ENGINE FLAGS"] if flags.notes[mode].engine else []
    return " ".join(f"`{name}`" for name in found)


def _flags(flags: FlagParser) -> str:
    rows: list[tuple[str, ...]] = []
    for name, note in flags.notes.items():
        if note.is_mode and not note.of:
            continue
        of = note.of_text or ", ".join(note.of) or "all"
        default = flags.default_of(name)
        rows.append((f"`{flags.shown(name)}`", marked(of), _text(flags, name), marked(default)))
    return table(("flag", "of", "means", "default"), rows)


def _text(flags: FlagParser, name: str) -> str:
    link = f" ([more]({LINKS[name]}))" if name in LINKS else ""
    return marked(flags.texts[name]) + link


def _examples() -> list[str]:
    width = max(len(command) for command, text in EXAMPLES if text) + 2
    return [f"{command:<{width}}# {text}" if text else command for command, text in EXAMPLES]
