"""Parity of both faces: what one of them can do, the other can."""

from __future__ import annotations

import ast
import importlib
from functools import cache

import pytest

from midstream.flags import parser
from midstream.tui import commands
from support.operations_table import OPERATIONS, Operation
from support.paths import REPOSITORY

FACES = ("headless", "tui")
BOTH = [each for each in OPERATIONS if each.function]


def keys() -> set[str]:
    """Return each key of the terminal UI as ``scope:action``, and each word of its command line as ``:word``."""
    actions = {
        f"{scope}:{command.action.partition('(')[0]}" for command in commands.COMMANDS for scope in command.scopes
    }
    return actions | {f":{word.name}" for word in commands.WORDS}


def listed(column: str) -> set[str]:
    return {name for each in OPERATIONS for name in getattr(each, column).split()}


@cache
def imports(face: str) -> set[str]:
    """Return the modules that a face imports, wherever the import is, and what it imports of them."""
    found = set[str]()
    for path in (REPOSITORY / "app" / "midstream" / face).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_each_flag_has_an_operation_and_the_other_way_round() -> None:
    assert listed("flags") == set(parser().notes), "add it to tests/support/operations_table.py, with its key"


def test_each_key_has_an_operation_and_the_other_way_round() -> None:
    assert listed("keys") == keys(), "add it to tests/support/operations_table.py, with its flag"


def test_an_operation_has_both_faces_or_a_reason() -> None:
    for each in OPERATIONS:
        both = bool(each.flags) and bool(each.keys)
        assert bool(each.reason) != bool(each.function), each.name
        assert both or each.reason, each.name


@pytest.mark.parametrize("operation", BOTH, ids=[each.name for each in BOTH])
def test_both_faces_call_the_function_of_an_operation(operation: Operation) -> None:
    module, _, name = operation.function.partition(":")
    found = importlib.import_module(f"midstream.{module}")
    assert not name or hasattr(found, name)
    for face in FACES:
        assert f"midstream.{module}" in imports(face), f"{face} does not import {module}"
