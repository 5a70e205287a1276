"""List the files of URLs; ``formats`` reads their contents."""

from __future__ import annotations

import glob
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence

from midstream_core.object_store.urls import in_bucket
from midstream_engine.base_directory import resolved_path
from midstream_engine.data.errors import DataError
from midstream_engine.data.sources import bucket, formats, http, hugging_face_hub
from midstream_engine.data.sources.source_file import SourceFile, listed_version

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand_braces(url: str) -> list[str]:
    """Expand ``a.{1..3}.{x,y}`` to every combination, in order.

    Numbers have the width of a zero-padded first one.
    """
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


def list_sources(urls: Sequence[str]) -> list[SourceFile]:
    """Return the files of ``urls``.

    URLs are in order, the matches of a glob sorted by name.

    Raises:
        DataError: A URL matches nothing, is unreachable, or has an unknown scheme.
    """
    sources: list[SourceFile] = []
    for url in urls:
        if url.startswith(hugging_face_hub.SCHEME):
            sources.append(hugging_face_hub.describe(url))
            continue
        listed = [source for pattern in expand_braces(url) for source in _listed(pattern)]
        if not listed:
            raise DataError(f"data: {url!r} names no file")
        sources += listed
    return sources


def documents(sources: Sequence[SourceFile], *, text_key: str, max_bytes: int | None) -> Iterator[bytes]:
    """Yield the text of each document, UTF-8, up to ``max_bytes`` in total.

    The first document is always yielded.
    """
    total = 0
    for source in sources:
        for text in formats.documents(formats.SourcePart(source), text_key):
            total += len(text)
            if max_bytes is not None and total > max_bytes and total > len(text):
                return
            yield text


def _listed(pattern: str) -> list[SourceFile]:
    if pattern.startswith("stdlib:"):
        return _standard_library(pattern.removeprefix("stdlib:"))
    scheme, separator, rest = pattern.partition("://")
    if not separator:
        return _local(pattern)
    if scheme == "file":
        return _local(rest)
    if in_bucket(pattern):
        return bucket.list_objects(pattern)
    if scheme in ("http", "https"):
        return [http.describe(pattern)]
    raise DataError(f"data: {pattern!r}: unknown scheme {scheme} (hint: a local path, gs://, s3:// or https://)")


def _local(pattern: str) -> list[SourceFile]:
    pattern = resolved_path(pattern)
    if os.path.isfile(pattern):
        return [_file(pattern, os.path.basename(pattern))]
    return [
        _file(path, os.path.basename(path))
        for path in sorted(glob.glob(pattern, recursive=True))
        if os.path.isfile(path)
    ]


def _standard_library(pattern: str) -> list[SourceFile]:
    root = sysconfig.get_path("stdlib")
    names = sorted(name.replace(os.sep, "/") for name in glob.glob(pattern, root_dir=root, recursive=True))
    kept = [
        name
        for name in names
        if not name.startswith(("site-packages/", "dist-packages/")) and "__pycache__" not in name
    ]
    return [_file(os.path.join(root, name), name) for name in kept if os.path.isfile(os.path.join(root, name))]


def _file(path: str, name: str) -> SourceFile:
    return SourceFile(os.path.abspath(path), name, *listed_version(os.stat(path)))
