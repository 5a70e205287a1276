"""YAML from a host: plain values, as midstream itself writes them. Neither tags nor aliases, with which a text of a
kilobyte can stand for gigabytes."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError


class _PlainLoader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "an alias (*name), which midstream never writes", mark)
        return super().compose_node(parent, index)


def load_plain(text: str) -> Any:
    """The value of a YAML text. yaml.YAMLError, ValueError or RecursionError where it is none, or no plain one."""
    return yaml.load(text, _PlainLoader)
