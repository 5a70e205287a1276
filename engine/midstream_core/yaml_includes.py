"""YAML files with ``!include``, for the app and the engine.

Needs the standard library and PyYAML alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import yaml

INCLUDE = "!include"
DEEPEST = 50  # levels of nesting
MAX_VALUES = 1_000_000  # values of a file, where each alias counts as what it stands for


class YamlError(Exception):
    """Error of a YAML file that is malformed, or cannot be included.

    The message begins with file and line.
    """


@dataclass(frozen=True)
class ComposedYaml:
    """Nodes of a YAML file in which every ``!include`` is replaced.

    Each node's mark names its file and line.
    """

    text: str  # of the file itself
    root: yaml.Node | None  # None: the file is empty
    has_includes: bool


def compose_file(path: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> ComposedYaml:
    """Read the file at ``path``.

    Paths of includes are relative to the file that includes them.

    ``loader`` decides what type a plain scalar has.

    Raises:
        YamlError: A file is malformed or nested too deeply, an included file cannot be read, or a file includes itself.
        OSError: The file at ``path`` cannot be read.
        UnicodeDecodeError: The file is not a text file.
    """
    return _compose(path, loader, ())


def compose_text(text: str, name: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> yaml.Node | None:
    """Return the node of a YAML text, None of an empty one.

    ``name`` stands for the file in messages.

    Raises:
        YamlError: The text is malformed or nested too deeply, or an alias stands for too much, such as for itself.
    """
    try:
        reader = loader(text)
    except yaml.YAMLError as error:  # of a character that YAML does not allow
        raise malformed(name, error) from None
    reader.name = name
    try:
        root = reader.get_single_node()
    except yaml.YAMLError as error:
        raise malformed(name, error) from None
    except RecursionError:
        raise YamlError(f"{_place(name, reader.line)}: nested more than {DEEPEST} levels deep") from None
    except (ValueError, OverflowError) as error:  # of a character: "\Uffffffff"
        raise YamlError(f"{_place(name, reader.line)}: malformed YAML: {error}") from None
    finally:
        reader.dispose()  # type: ignore[reportUnknownMemberType]
    if root is not None:
        _Extent().of(root)
    return root


class _Extent:
    """Size and height of nodes, of which aliases make a graph.

    Each node is visited once.
    """

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, int]] = {}
        self._within: set[int] = set()

    def of(self, node: yaml.Node, depth: int = 1) -> tuple[int, int]:
        """Return the values and the levels of ``node``.

        Raises YamlError where there are too many.
        """
        if id(node) in self._within:
            raise YamlError(f"{place_of(node)}: an alias stands for a value that contains it")
        counted = self._counted.get(id(node), (0, 0))
        if depth + counted[1] > DEEPEST:
            raise YamlError(f"{place_of(node)}: nested more than {DEEPEST} levels deep")
        if not counted[0]:
            self._within.add(id(node))
            parts = [self.of(child, depth + 1) for child in _parts(node)]
            self._within.remove(id(node))
            counted = 1 + sum(size for size, _ in parts), 1 + max((height for _, height in parts), default=0)
            self._counted[id(node)] = counted
        if counted[0] > MAX_VALUES:
            raise YamlError(f"{place_of(node)}: its aliases stand for more than {MAX_VALUES} values")
        return counted


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def place_of(node: yaml.Node) -> str:
    """Return file and line of a node: ``file.yaml:12``; of a flag's value the flag."""
    return _place(node.start_mark.name, node.start_mark.line)


def _place(name: str, line: int) -> str:
    return name if name.startswith("--") else f"{name}:{line + 1}"


def malformed(path: str, error: yaml.YAMLError) -> YamlError:
    """Return an error of the YAML package with file and line."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return YamlError(f"{path}: malformed YAML: {' '.join(str(error).split())}")
    mark = error.problem_mark or error.context_mark
    place = _place(path, mark.line if mark else 0)
    return YamlError(f"{place}: malformed YAML: {error.problem or error.context}")


def _compose(path: str, loader: type[yaml.SafeLoader], parents: tuple[str, ...]) -> ComposedYaml:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError:
        raise
    except ValueError as error:  # a null byte, half of a surrogate pair
        raise YamlError(f"{path!r} is no path ({error})") from None
    root = compose_text(text, path, loader)
    if root is None:
        return ComposedYaml(text, None, False)
    replaced = _replaced(root, loader, (*parents, os.path.realpath(path)))
    return ComposedYaml(text, root if replaced is None else replaced, replaced is not None)


def _replaced(node: yaml.Node, loader: type[yaml.SafeLoader], parents: tuple[str, ...]) -> yaml.Node | None:
    """Return the node with its includes replaced, None if it has none.

    Collections are changed in place.
    """
    if node.tag == INCLUDE:
        return _included(node, loader, parents)
    changed = False
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            new = _replaced(item, loader, parents)
            if new is not None:
                node.value[index], changed = new, True
    elif isinstance(node, yaml.MappingNode):
        for index, (key, item) in enumerate(node.value):
            new = _replaced(item, loader, parents)
            if new is not None:
                node.value[index], changed = (key, new), True
    return node if changed else None


def _included(node: yaml.Node, loader: type[yaml.SafeLoader], parents: tuple[str, ...]) -> yaml.Node:
    place = place_of(node)
    if not isinstance(node, yaml.ScalarNode):
        raise YamlError(f"{place}: {INCLUDE} takes the path of a file")
    path = os.path.join(os.path.dirname(node.start_mark.name), os.path.expanduser(node.value))
    try:
        inside_itself = os.path.realpath(path) in parents
    except ValueError as error:
        raise YamlError(f"{place}: {INCLUDE} {path!r} is no path ({error})") from None
    if inside_itself:
        raise YamlError(f"{place}: {INCLUDE} {node.value} leads back to the file itself")
    try:
        root = _compose(path, loader, parents).root
    except FileNotFoundError:
        raise YamlError(f"{place}: {INCLUDE} {path}: no such file") from None
    except OSError as error:
        raise YamlError(f"{place}: {INCLUDE} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise YamlError(f"{place}: {INCLUDE} {path}: not a text file ({error.reason})") from None
    return yaml.ScalarNode("tag:yaml.org,2002:null", "null") if root is None else root
