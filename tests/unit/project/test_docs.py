"""The documentation names existing files, flags and exit codes.

Each command block runs, or says why it is not run.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from midstream.flags import parser
from midstream.fleet.fleet_file import load_fleet
from midstream.migrate.modes.registry import MODES
from support.doc_pages import LANGUAGES, Block, blocks, pages
from support.paths import REPOSITORY

MAX_WORDS = 1000  # of a guide
PATH = re.compile(r"\b(?:app|engine|tests|docs|tools|configs|locks|benchmarks)/[\w./-]*[\w/]")
PLACEHOLDER = re.compile(r"\b(?:RUN|TARGET|MIGRATION|CHECKPOINT|HOST|PATH|SRC|DST|PROJECT)\b")


def every_block(language: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == language]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_block_has_language_and_runs_or_has_reason(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: mark the block as one of {sorted(LANGUAGES)}"
        assert block.language == "sh" or not (block.not_run or block.environment), f"{block}: only sh blocks are run"
        if block.language == "sh" and not block.not_run:
            commands = "\n".join(line.split("#")[0] for line in block.text.splitlines())
            assert not PLACEHOLDER.search(commands), f"{block} has a placeholder and no `<!-- not run: REASON -->`"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_files_named_in_pages_exist(page: Path) -> None:
    named = {name for code in re.findall(r"`([^`\n]+)`", page.read_text()) for name in PATH.findall(code)}
    assert [name for name in sorted(named) if not (REPOSITORY / name).exists()] == []


def test_modules_named_in_architecture_exist() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    files = ["/" + name for name in listed.split()]
    page = (REPOSITORY / "docs/explanation/architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`", page) + re.findall(r"^    ([\w/]+\.py)", page, re.MULTILINE)
    rooms = re.findall(r"^    ([\w/]+/) ", page, re.MULTILINE) + re.findall(r"`(\w[\w/]*/)`", page)
    assert len(named) > 20
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
    assert [name for name in rooms if not any(f"/{name}" in file for file in files)] == []


def test_packages_named_in_architecture_exist() -> None:
    page = (REPOSITORY / "docs/explanation/architecture.md").read_text()
    named, root, room = [], "", ""
    for line in page[page.index("```text") : page.index("```\n", page.index("```text") + 7)].splitlines():
        if top := re.match(r"([\w/]+/) ", line):
            root, room = top[1], ""
        if outer := re.match(r"    (\w+/) ", line):
            room = outer[1]
        inner = re.match(r"        (\w+/)[ ,]", line)
        package = root + room + (inner[1] if inner else "")
        named += [
            package + name for name in re.findall(r"\b\w+/", line[line.index("/ ") + 1 :] if "/ " in line else "")
        ]
    assert len(named) > 20
    assert [name for name in named if not (REPOSITORY / name).is_dir()] == []


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the identifiers and strings of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text.removeprefix("/")  # the end of a path
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.ClassDef(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.keyword(arg=str(name)):
                yield name


def test_identifiers_named_in_glossary_exist() -> None:
    modules = [path for part in ("app", "engine") for path in (REPOSITORY / part).rglob("*.py")]
    known = {name for path in modules for name in _names(ast.parse(path.read_bytes()))}
    page = (REPOSITORY / "docs/glossary.md").read_text()
    named = set(re.findall(r"`([^`\n]+)`", page))
    modes = {name for name in named if name.startswith("--")}
    assert len(named - modes) > 15
    assert sorted(named - modes - known) == []
    assert modes == {f"--mode {mode}" for mode in MODES}


def test_pages_named_in_sources_exist() -> None:
    found = subprocess.run(
        ["git", "grep", "-hoE", r"\bdocs/[a-z/-]+\.md", "--", "app", "engine", "tests", "configs", "benchmarks"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert [name for name in sorted(set(found.split())) if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_flags_in_commands_of_pages_exist(page: Path) -> None:
    known = {*parser().notes, "-h"}
    commands = [line for block in blocks(page) for line in block.text.splitlines()]
    commands += re.findall(r"`(midstream [^`\n]+)`", page.read_text())
    found = [
        word
        for line in commands
        if re.match(r"\s*(?:[A-Z_]+=\S+ )*midstream ", line)
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.split(r" -- |#|[|;&]", line)[0])
    ]
    assert [word for word in found if word not in known] == []


@pytest.mark.parametrize("block", every_block("yaml"), ids=str)
def test_yaml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    value = yaml.safe_load(block.text)
    if "targets" in value:
        hosts = {name for target in value["targets"].values() for name in target.get("hosts", [target.get("host")])}
        for name in hosts - {None}:
            value.setdefault("hosts", {}).setdefault(name, {"type": "ssh", "address": name})
    if {"hosts", "targets"} & set(value):
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump(value))
        assert load_fleet(file).hosts
    else:
        assert isinstance(value, dict)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_code_in_tables_shows_no_escape(page: Path) -> None:
    """An escaped bar in code shows its backslash on the site; a bare one ends the cell elsewhere."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert [row for row in rows if re.search(r"`[^`|]*\\\|[^`]*`", row)] == []


def test_each_guide_is_read_in_minutes() -> None:
    words = {page.stem: len(page.read_text().split()) for page in (REPOSITORY / "docs/how-to").glob("*.md")}
    assert {name: number for name, number in words.items() if number > MAX_WORDS} == {}, "split it by task"
