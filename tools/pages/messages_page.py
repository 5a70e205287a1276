"""The page of error messages and what to do, read from the program's own errors."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from midstream.errors import Exit

APP = Path(__file__).parents[2] / "app" / "midstream"
ROOMS = {
    "fleet": "Fleet file and command line", "command_line": "Fleet file and command line",
    "hosts": "Connections to hosts", "install": "Packages on a host", "launch": "Starts and stops",
    "migrate": "Migrations", "ownership": "Who owns a run", "providers": "Slices and machines of Google Cloud",
    "stores": "Checkpoints in buckets", "trainers": "Runs of other trainers", "transfer": "Copies",
    "checkpoints": "Checkpoints", "compare": "Comparisons", "listing": "Lists and filters",
}  # fmt: skip
OTHER = "Other"
OTHER_WORDS = {"account": "user", "epoch": "number"}  # names that would read as a phrase, or as another thing
HEAD = """# Messages, and what to do

<!-- Made by `make pages` from the program's errors; do not edit. -->

A failed command prints one line: `midstream: MESSAGE (WHAT TO DO)`. This page has the messages that come with a hint,
in the order of the alphabet within each subject. Words in capitals stand for what the line names. What the numbers
mean is in the table of [exit codes](cli.md#exit-codes).
"""


@dataclass(frozen=True, order=True)
class Message:
    """A message, its hint and the exit code of the command."""

    text: str
    hint: str
    code: int


def page() -> str:
    """Return the page."""
    rooms: dict[str, set[Message]] = {}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(APP.rglob("*.py"))}
    codes = _exit_codes(trees.values())
    for path, tree in trees.items():
        room = ROOMS.get(path.relative_to(APP).parts[0], OTHER)
        rooms.setdefault(room, set()).update(_messages(tree, codes))
    parts = [HEAD]
    for room in [*dict.fromkeys(ROOMS.values()), OTHER]:
        if found := rooms.get(room):
            rows = [f"| {_cell(each.text)} | {_cell(each.hint)} | {each.code} |" for each in sorted(found)]
            parts += [f"\n## {room}\n", "| message | what to do | exit code |", "|---|---|---:|", *rows]
    return "\n".join(parts) + "\n"


def _exit_codes(trees: Iterable[ast.Module]) -> dict[str, int]:
    """Return the exit code of each class of errors, by its name."""
    bases: dict[str, tuple[list[str], int | None]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own = next((_code(line.value) for line in node.body if _assigns_code(line)), None)  # type: ignore[attr-defined]
                bases[node.name] = [_last(base) for base in node.bases], own

    def code(name: str) -> int | None:
        if name == "MidstreamError":
            return int(Exit.FAILED)
        parents, own = bases.get(name, ([], None))
        inherited = next((found for each in parents if each != name and (found := code(each)) is not None), None)
        return inherited if inherited is None or own is None else own

    return {name: found for name in bases if (found := code(name)) is not None}


def _assigns_code(line: ast.stmt) -> bool:
    return isinstance(line, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "code" for to in line.targets)


def _code(value: ast.expr) -> int | None:
    return int(Exit[value.attr]) if isinstance(value, ast.Attribute) and value.attr in Exit.__members__ else None


def _messages(tree: ast.Module, codes: dict[str, int]) -> Iterator[Message]:
    constants = {
        to.id: line.value for line in tree.body if isinstance(line, ast.Assign)
        for to in line.targets if isinstance(to, ast.Name)
    }  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _last(node.func) not in codes or len(node.args) < 2:
            continue
        hint = node.args[2] if _last(node.func) == "RemoteError" and len(node.args) > 2 else node.args[1]
        text, what = _text(node.args[0], constants), _text(hint, constants)
        given = next((found for each in node.args[2:] if (found := _code(each)) is not None), None)
        if text and what and any(character.islower() for character in text):
            yield Message(text, what, codes[_last(node.func)] if given is None else given)


def _text(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """Return a text with capitals for its variable parts; empty where it is computed."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _placeholder(part.value)  # type: ignore[attr-defined]
            for part in node.values
        )
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], {})
    if isinstance(node, ast.IfExp):
        return _text(node.body, constants) or _text(node.orelse, constants)
    return ""


def _placeholder(node: ast.expr) -> str:
    """Return what stands for an expression: the last name in it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    names = [_last(each) for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Name)]
    return next((OTHER_WORDS.get(name, name).strip("_").upper() for name in names if name), "...")


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
