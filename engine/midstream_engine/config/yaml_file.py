"""YAML files that know their lines: ``!include``, and errors that name file and line."""

from __future__ import annotations

import os
import re
from typing import Any

import yaml

from midstream_engine.config.errors import ConfigError


class Mapping(dict):
    """A mapping read from a file. ``places`` says where each key stands: ``"file.yaml:12"``."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.places: dict[str, str] = {}


class _FlagLoader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's spelling of floats: ``6E-4`` is a number."""


class _Loader(_FlagLoader):
    """The same with ``!include`` and places."""

    directory: str
    chain: tuple[str, ...]


_FlagLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def _include(loader: _Loader, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{_place(node)}: !include takes the path of a file")
    path = os.path.join(loader.directory, os.path.expanduser(str(loader.construct_scalar(node))))
    try:
        return load(path, loader.chain)
    except FileNotFoundError:
        raise ConfigError(f"{_place(node)}: !include {path}: no such file") from None


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Mapping:
    loader.flatten_mapping(node)
    result = Mapping()
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            key = str(key)
        if key in result:
            raise ConfigError(f"{_place(key_node)}: {key!r} stands twice (first at {result.places[key]})")
        result.places[key] = _place(key_node)
        result[key] = loader.construct_object(value_node, deep=True)
    return result


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.name}:{node.start_mark.line + 1}"


_Loader.add_constructor("!include", _include)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_value(text: str) -> Any:
    """A single value as a flag gives it. Raises yaml.YAMLError."""
    return yaml.load(text, _FlagLoader) if text else ""


def load(path: str, chain: tuple[str, ...] = ()) -> Any:
    """The value in the YAML file ``path``; ``!include`` paths are relative to the file that includes.

    Raises ConfigError with ``file:line`` for malformed YAML, FileNotFoundError for a missing file.
    """
    real = os.path.realpath(path)
    if real in chain:
        raise ConfigError(f"{path}: !include leads back to the file itself")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    loader = _Loader(text)
    loader.name = path
    loader.directory = os.path.dirname(path)
    loader.chain = (*chain, real)
    try:
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: malformed YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: malformed YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()
