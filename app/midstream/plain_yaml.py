"""YAML from a host or of a lock file: plain values without tags and aliases.

Aliases let a kilobyte of text expand to gigabytes.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

_MERGE = "tag:yaml.org,2002:merge"


def check_keys(node: yaml.MappingNode) -> None:
    """Refuse a key which is given twice: PyYAML takes the last one without a word.

    Raises:
        ConstructorError: With the key, its line and that of the first one.
    """
    first: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        if key.value in first:
            twice = f"{key.value} is given twice, first in line {first[key.value]}"
            raise ConstructorError(None, None, twice, key.start_mark)
        first[key.value] = key.start_mark.line + 1


class _PlainLoader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)  # type: ignore[no-untyped-call]
        check_keys(node)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "an alias (*name), which midstream never writes", mark)
        return super().compose_node(parent, index)


def load_plain(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: The text is not YAML, or has tags or aliases.
        ValueError: A value is invalid, such as a date.
        RecursionError: It is nested too deeply.
    """
    return yaml.load(text, _PlainLoader)


def load_plain_quickly(text: str) -> Any:
    """Parse a long YAML text with libyaml, if PyYAML has it: some twenty times faster.

    Errors as of `load_plain`.
    """
    loader: Any = getattr(yaml, "CSafeLoader", None)
    if loader is None:
        return load_plain(text)
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, loader)):
        raise ComposerError(None, None, "an alias (*name), which no lock file has", None)
    return yaml.load(text, loader)
