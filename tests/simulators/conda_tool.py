#!/usr/bin/env python3
"""A tool of conda that creates environments from explicit lists, for machines without one.

It reads the command line that micromamba, mamba and conda share, downloads each package, checks its hash, extracts it
and records it in conda-meta. `install` writes it as a program of such a name. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
import urllib.request
from pathlib import Path


def install(directory: Path, name: str, fault: str = "") -> Path:
    """Write the tool as a program; ``fault``: what it does wrong, one of `FAULTS`."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / name
    program.write_text(f'#!/bin/sh\nCONDA_TOOL_FAULT="{fault}" exec {sys.executable} -I {__file__} "$@"\n')
    program.chmod(0o755)
    return program


FAULTS = ("", "ignores hashes", "leaves one out", "adds one", "prints the address")


def create(prefix: Path, listed: Path, fault: str) -> None:
    """Create the environment."""
    lines = [line for line in listed.read_text().splitlines() if line and line[0] not in "#@"]
    cache = Path(os.environ["CONDA_PKGS_DIRS"])
    cache.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(lines):
        url, _, digest = line.partition("#")
        if fault == "prints the address":
            sys.exit(f"CondaHTTPError: HTTP 403 FORBIDDEN for url <{url}>")
        if fault == "leaves one out" and number:
            break
        file = cache / url.rpartition("/")[2]
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                file.write_bytes(answer.read())
        except OSError as error:
            sys.exit(f"CondaHTTPError: {error} for url <{url}>")
        hashes = {kind: hashlib.new(kind, file.read_bytes()).hexdigest() for kind in ("sha256", "md5")}
        if digest not in hashes.values() and fault != "ignores hashes":
            sys.exit(f"ChecksumMismatchError: {file.name}: expected {digest}, actual {hashes['sha256']}")
        with tarfile.open(file) as archive:
            index = json.loads((archive.extractfile("info/index.json") or sys.exit("no index")).read())
            where = prefix
            if index.get("noarch") == "python":
                where = prefix / "lib" / "python{}.{}".format(*sys.version_info[:2])
            for member in archive.getmembers():
                if not member.name.startswith("info/"):
                    archive.extract(member, where)
        record(prefix, {**index, **hashes, "fn": file.name, "url": url})
    if fault == "adds one":
        record(prefix, {"name": "x", "version": "1", "build": "0", "fn": "x-1-0.conda", "sha256": "0" * 64})


def record(prefix: Path, value: dict) -> None:
    """Record an installed package."""
    meta = prefix / "conda-meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "{name}-{version}-{build}.json".format(**value)).write_text(json.dumps(value))


def main() -> None:
    """Run the command line."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print("2.3.1")
        return
    if not words or words[0] != "create":
        sys.exit(f"unknown command: {words}")
    prefix, listed = (words[words.index(flag) + 1] for flag in ("--prefix", "--file"))
    create(Path(prefix), Path(listed), os.environ.get("CONDA_TOOL_FAULT", ""))


if __name__ == "__main__":
    main()
