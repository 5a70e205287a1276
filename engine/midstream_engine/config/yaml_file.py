"""YAML files as plain values that know file and line of each key."""

from __future__ import annotations

import re
from typing import Any

import yaml

from midstream_core.yaml_includes import YamlError, compose_file, compose_text, malformed, place_of
from midstream_engine.config.errors import ConfigError

_PLAIN = (type(None), bool, int, float, str, list, dict)
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_INTEGER = "tag:yaml.org,2002:int"
_MAX_INTEGER = 2**63 - 1
_SHOWN = 40  # characters of a value in a message


class Mapping(dict):
    """A mapping read from a file.

    ``places`` has file and line of each key: ``"file.yaml:12"``.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.places: dict[str, str] = {}


class _ConfigLoader(yaml.SafeLoader):
    """SafeLoader of plain values, with YAML 1.2's spelling of floats.

    ``6E-4`` is a number, and ``2024-05-01`` a text.

    Raises ConfigError with the place of a value that has the wrong form for its tag.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            value = super().construct_object(node, deep)
        except (yaml.YAMLError, ConfigError):
            raise
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            raise _unfit(node) from None
        if not isinstance(value, _PLAIN):
            raise ConfigError(f"{place_of(node)}: the tag {node.tag} is not supported")
        if isinstance(value, str) and not _is_text(value):
            raise ConfigError(f"{place_of(node)}: {value!r} has a null byte or half of a surrogate pair")
        if isinstance(value, int) and abs(value) > _MAX_INTEGER:
            raise _unfit(node)
        return value


_ConfigLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def _is_text(value: str) -> bool:
    """Return whether ``value`` can be encoded and be part of a path."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _unfit(node: yaml.Node) -> ConfigError:
    shown = str(node.value) if len(str(node.value)) <= _SHOWN else f"{str(node.value)[:_SHOWN]}..."
    what = "is no integer of 64 bits" if node.tag == _INTEGER else f"does not fit the tag {node.tag}"
    return ConfigError(f"{place_of(node)}: {shown} {what}")


def _mapping(loader: _ConfigLoader, node: yaml.MappingNode) -> Mapping:
    result = Mapping()
    for key_node, _ in node.value:
        key = _key(loader, key_node)
        if key in result.places:
            raise ConfigError(f"{place_of(key_node)}: {key!r} is given twice (first at {result.places[key]})")
        result.places[key] = place_of(key_node)
    loader.flatten_mapping(node)
    result.places = {}
    for key_node, value_node in node.value:  # merged ones first, which the mapping's own replace
        key = _key(loader, key_node)
        result.places[key] = place_of(key_node)
        result[key] = loader.construct_object(value_node, deep=True)
    return result


def _key(loader: _ConfigLoader, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{place_of(node)}: a key is a text, not a list or mapping")
    return node.value if node.tag == _MERGE else str(loader.construct_object(node))


_ConfigLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)

# Levanter writes its enumerations and a few dataclasses with the Python names of their classes.
_PYTHON = "tag:yaml.org,2002:python/object"
_PACKAGES = ("levanter.", "haliax.")


def _enumeration(loader: _ConfigLoader, name: str, node: yaml.Node) -> object:
    """Return the value of an enumeration of Levanter's as a string.

    In YAML it is ``!!python/object/apply:CLASS [value]``.
    """
    if not isinstance(node, yaml.SequenceNode) or [type(item) for item in node.value] != [yaml.ScalarNode]:
        raise _not_constructed(name, node)
    return loader.construct_scalar(node.value[0])


def _fields(loader: _ConfigLoader, name: str, node: yaml.Node) -> Mapping:
    """Return the fields of a dataclass, ``!!python/object:CLASS {...}``, as a mapping."""
    if not isinstance(node, yaml.MappingNode):
        raise _not_constructed(name, node)
    return _mapping(loader, node)


def _not_constructed(name: str, node: yaml.Node) -> ConfigError:
    return ConfigError(f"{place_of(node)}: {name.rpartition('.')[2]} is a Python object, which is not constructed")


for _package in _PACKAGES:
    _ConfigLoader.add_multi_constructor(f"{_PYTHON}/apply:{_package}", _enumeration)
    _ConfigLoader.add_multi_constructor(f"{_PYTHON}:{_package}", _fields)


def parse_value(text: str, name: str) -> Any:
    """Return the value of the flag ``name``.

    Raises:
        ConfigError: The value is malformed; the message names the flag.
    """
    try:
        return _constructed(compose_text(text, name, _ConfigLoader)) if text else ""
    except YamlError as error:
        raise ConfigError(f"{error} (hint: quote it)") from None


def load(path: str) -> Any:
    """Return the value in the YAML file ``path``, its ``!include`` files inserted.

    Raises:
        ConfigError: A file is malformed or cannot be included; the message names file and line.
        FileNotFoundError: ``path`` does not exist.
    """
    try:
        root = compose_file(path, _ConfigLoader).root
    except YamlError as error:
        raise ConfigError(str(error)) from None
    return _constructed(root)


def _constructed(root: yaml.Node | None) -> object:
    if root is None:
        return None
    loader = _ConfigLoader("")
    try:
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ConfigError(str(malformed(root.start_mark.name, error))) from None
    finally:
        loader.dispose()
