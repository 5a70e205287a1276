"""A training config as one text: what it includes is put into it, because the files stay behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from midstream.errors import UsageError

INCLUDE = "!include"


def read_config(path: Path) -> str:
    """The text of the config with every ``!include`` (relative to the file that includes) expanded. A config without
    includes is returned as it stands. Scalars keep their spelling: nothing is interpreted here.

    UsageError with file and line."""
    text = _text(path, str(path))
    root = _compose(path, text)
    if root is None:
        return text
    expanded = _expand(root, path, (path.resolve(),))
    return text if expanded is None else yaml.serialize(expanded, Dumper=yaml.SafeDumper, allow_unicode=True, width=120)


def config_values(text: str) -> dict[str, Any]:
    """The config's top-level mapping, for looking something up. UsageError where it is none."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"the config is malformed YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise UsageError("the config holds no keys and values (data, model, trainer, optimizer)")
    return value


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not a text file ({error.reason})") from None


def _compose(path: Path, text: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    loader.name = str(path)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: malformed YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: malformed YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def _expand(node: yaml.Node, path: Path, chain: tuple[Path, ...]) -> yaml.Node | None:
    """The node with includes replaced, None where it has none. Collections are changed in place."""
    if node.tag == INCLUDE:
        return _included(node, path, chain)
    changed = False
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            new = _expand(item, path, chain)
            if new is not None:
                node.value[index], changed = new, True
    elif isinstance(node, yaml.MappingNode):
        for index, (key, item) in enumerate(node.value):
            new = _expand(item, path, chain)
            if new is not None:
                node.value[index], changed = (key, new), True
    return node if changed else None


def _included(node: yaml.Node, path: Path, chain: tuple[Path, ...]) -> yaml.Node:
    where = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(f"{where}: {INCLUDE} takes the path of a file")
    file = path.parent / Path(node.value).expanduser()
    if file.resolve() in chain:
        raise UsageError(f"{where}: {INCLUDE} {node.value} leads back to the file itself")
    inner = _compose(file, _text(file, f"{where}: {INCLUDE} {file}"))
    if inner is None:
        return yaml.ScalarNode("tag:yaml.org,2002:null", "null")
    expanded = _expand(inner, file, (*chain, file.resolve()))
    return inner if expanded is None else expanded
