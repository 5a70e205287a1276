"""Where text comes from: urls to files, files to documents."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from midstream_engine.data.errors import DataError

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Source:
    """One file, as it was when it was listed. ``name`` does not depend on the machine where that can be avoided."""

    path: str
    name: str
    size: int  # bytes
    mtime_ns: int


def expand_braces(url: str) -> list[str]:
    """``a.{1..3}.{x,y}`` -> every combination, in order. Numbers keep the width of a zero-padded first one."""
    match = _BRACES.search(url)
    if match is None:
        return [url]
    span = _RANGE.fullmatch(match[1])
    if span:
        first, last = int(span[1]), int(span[2])
        width = len(span[1]) if span[1].startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
    else:
        choices = match[1].split(",")
    return [rest for choice in choices for rest in expand_braces(url[: match.start()] + choice + url[match.end() :])]


def list_sources(urls: Sequence[str]) -> list[Source]:
    """The files that ``urls`` name: urls in order, the matches of a glob sorted by name.

    Raises DataError for a url that names nothing and for schemes that are not read here.
    """
    sources: list[Source] = []
    for url in urls:
        found: list[Source] = []
        for pattern in expand_braces(url):
            found += _standard_library(pattern[len("stdlib:") :]) if pattern.startswith("stdlib:") else _local(pattern)
        if not found:
            raise DataError(f"data: {url!r} names no file")
        sources += found
    return sources


def _local(pattern: str) -> list[Source]:
    scheme, separator, rest = pattern.partition("://")
    if separator:
        if scheme != "file":
            raise DataError(f"data: {pattern!r}: only local files and stdlib: are read; copy the data to this host")
        pattern = rest
    pattern = os.path.expanduser(pattern)
    if os.path.isfile(pattern):
        return [_source(pattern, os.path.basename(pattern))]
    return [
        _source(path, os.path.basename(path))
        for path in sorted(glob.glob(pattern, recursive=True))
        if os.path.isfile(path)
    ]


def _standard_library(pattern: str) -> list[Source]:
    root = sysconfig.get_path("stdlib")
    names = sorted(name.replace(os.sep, "/") for name in glob.glob(pattern, root_dir=root, recursive=True))
    kept = [
        name
        for name in names
        if not name.startswith(("site-packages/", "dist-packages/")) and "__pycache__" not in name
    ]
    return [_source(os.path.join(root, name), name) for name in kept if os.path.isfile(os.path.join(root, name))]


def _source(path: str, name: str) -> Source:
    status = os.stat(path)
    return Source(os.path.abspath(path), name, status.st_size, status.st_mtime_ns)


def documents(sources: Sequence[Source], *, text_key: str, max_bytes: int | None) -> Iterator[bytes]:
    """The text of each document, UTF-8. Stops before the document that would exceed ``max_bytes`` in total, unless it
    is the first."""
    total = 0
    for source in sources:
        for text in _read(source, text_key):
            total += len(text)
            if max_bytes is not None and total > max_bytes and total > len(text):
                return
            yield text


def _read(source: Source, text_key: str) -> Iterator[bytes]:
    path = source.path
    try:
        if path.endswith((".jsonl", ".jsonl.gz", ".json.gz")):
            with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _document(line, f"{path}:{number}", text_key)
        elif path.endswith(".gz"):
            with gzip.open(path, "rb") as file:
                yield file.read()
        else:
            with open(path, "rb") as file:
                yield file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: {error}") from None


def _document(line: bytes, where: str, text_key: str) -> bytes:
    try:
        return json.loads(line)[text_key].encode()
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{where}: has no text under {text_key!r} (data.text_key names the field)") from None
