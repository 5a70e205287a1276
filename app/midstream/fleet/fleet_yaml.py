"""YAML of the fleet file: names as they are written, and no key twice.

YAML 1.1 reads ``no`` as false, ``010`` as 8, ``12:30`` as 750 and ``3.10`` as 3.1, and of two equal keys it drops the
first. A variable of an engine or a flag of sbatch would change without a word, and a host would be missing.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError

from midstream.plain_yaml import check_keys

ENTRY = 2  # depth of a mapping with the fields of a host, a target or a store
# Fields of texts alone. The second line has names, of which some are keys above.
TEXTS = (
    "env", "secrets", "node_selector", "sbatch", "setup", "options", "mounts",
    "host", "hosts", "store", "name", "user", "namespace", "context",
)  # fmt: skip
_PREFIX = "tag:yaml.org,2002:"
_NULL, _MERGE, _TEXT = f"{_PREFIX}null", f"{_PREFIX}merge", f"{_PREFIX}str"


class _FleetLoader(yaml.SafeLoader):
    """Loader that refuses an alias inside of what it names.

    PyYAML builds an endless value of it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = set[str]()  # anchors of the nodes that are being composed

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor in self._open:
                raise ComposerError(None, None, f"*{anchor} is inside of &{anchor}, which has no end", event.start_mark)
            return super().compose_node(parent, index)
        if anchor is None:
            return super().compose_node(parent, index)
        self._open.add(anchor)
        node = super().compose_node(parent, index)
        self._open.discard(anchor)
        return node


def load_yaml(text: str) -> Any:
    """Return the value of the text.

    Keys are texts, and so are the values of `TEXTS`, both as they are written; a variable without a value is empty.

    Raises:
        YAMLError: It is no YAML, a mapping has a key twice, an alias is inside of what it names, or lists and mappings
            are nested too deeply.
    """
    loader = _FleetLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _prepare(node)
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("lists and mappings are nested too deeply") from None
    finally:
        loader.dispose()


def _prepare(root: yaml.Node) -> None:
    """Check the keys of all mappings; make texts of what is read as such."""
    waiting, seen = [(root, 0)], set[int]()
    while waiting:
        node, depth = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, depth + 1) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            check_keys(node)
            node.value = [
                (key if key.tag == _MERGE else _text(key), _texts(value) if _has_texts(key, depth) else value)
                for key, value in node.value
            ]
            waiting += [(value, depth + (key.tag != _MERGE)) for key, value in node.value]


def _has_texts(key: yaml.Node, depth: int) -> bool:
    return depth >= ENTRY and key.value in TEXTS


def _text(node: yaml.Node) -> yaml.Node:
    """Return a scalar as the text that is written; another node as it is."""
    if not isinstance(node, yaml.ScalarNode):
        return node
    return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark, node.style)


def _texts(node: yaml.Node) -> yaml.Node:
    """Return a scalar as text, or a list or mapping with its scalars as texts.

    The result is a copy: an alias may name the same scalar as a number.
    """
    if isinstance(node, yaml.SequenceNode):
        items = [_text(item) if isinstance(item, yaml.ScalarNode) else _texts(item) for item in node.value]
        return yaml.SequenceNode(node.tag, items, node.start_mark)
    if not isinstance(node, yaml.MappingNode):
        return node if node.tag == _NULL else _text(node)
    pairs = [(key, _texts(value) if key.tag == _MERGE else _variable(value)) for key, value in node.value]
    return yaml.MappingNode(node.tag, pairs, node.start_mark)


def _variable(node: yaml.Node) -> yaml.Node:
    return yaml.ScalarNode(_TEXT, "", node.start_mark, node.end_mark) if node.tag == _NULL else _text(node)
