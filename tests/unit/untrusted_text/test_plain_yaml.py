"""Plain YAML: values from a host, without tags and aliases."""

from __future__ import annotations

import pytest
import yaml

from midstream.errors import MidstreamError
from midstream.migrate.source_config import parse_config
from midstream.plain_yaml import load_plain
from midstream.watch import resolved_config

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
ODD = {
    "aliases": BOMB,
    "a tag": "a: !!python/object/apply:os.system [true]",
    "an include": "a: !include /etc/passwd",
    "nested": "[" * 20000,
    "no YAML": "a: [",
    "a date that is none": "a: 2001-99-99",
}


def test_plain_values_are_read() -> None:
    text = "a: 1\nb: [x, null, 1.5, true]\nc: {d: 'e'}\n"
    assert load_plain(text) == yaml.safe_load(text)


@pytest.mark.long
@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_tags_aliases_and_malformed_yaml_are_refused(text: str) -> None:
    with pytest.raises((yaml.YAMLError, ValueError, RecursionError)):
        load_plain(text)
    with pytest.raises(MidstreamError, match="cannot be read"):
        resolved_config.changes("a: 1", text)
    with pytest.raises(MidstreamError, match=r"lab:/x/run\.yaml"):
        parse_config(text, "lab:/x/run.yaml")
