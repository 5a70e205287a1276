"""A training config as one text, with included files inserted.

The files are inserted because only the text is sent to a host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

from midstream.bundled_files import config_path
from midstream.errors import UsageError
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_core.yaml_includes import YamlError, compose_file


def read_config(name: str | Path) -> str:
    """Return the config's text, each ``!include`` replaced by the file's content.

    A config without includes is returned unchanged. Scalars keep their spelling. ``name`` is a path, or that of a
    bundled config (``configs/gpt2_nano.yaml``).

    Raises:
        UsageError: A file cannot be read or is malformed; the message names file and line.
    """
    path = config_path(name)
    try:
        composed = compose_file(str(path))
    except YamlError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file ({error.reason})") from None
    if not composed.has_includes:
        return composed.text
    text: str = yaml.serialize(  # pyright: ignore[reportUnknownMemberType]
        composed.root, Dumper=yaml.SafeDumper, allow_unicode=True, width=120
    )
    return text


def config_values(text: str) -> dict[str, JsonValue]:
    """Return the config's top-level mapping, to look values up.

    Raises:
        UsageError: The text is no mapping.
    """
    try:
        value: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        # SafeLoader raises the others for values that do not fit their tag, such as a date with a month 13.
        raise UsageError(f"the config is malformed YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise UsageError("the config has no keys and values (hint: data, model, trainer, optimizer)")
    return cast(dict[str, Any], value)


def config_section(text: str, name: str) -> dict[str, JsonValue]:
    """Return the mapping under a top-level key, empty if there is none.

    Raises:
        UsageError: The text is no mapping.
    """
    section = config_values(text).get(name)
    return object_or_empty(section)
