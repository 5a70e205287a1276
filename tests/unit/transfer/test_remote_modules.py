"""Modules that are sent to hosts: their Python, and what the programs of streams import."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import midstream_host
from midstream.hosts.rpc.remote_call import job_line
from support.remote_functions import function_of

REMOTE = Path(midstream_host.__file__).parent


@pytest.mark.long
@pytest.mark.parametrize("path", sorted(path.relative_to(REMOTE).as_posix() for path in REMOTE.rglob("*.py")))
def test_remote_modules_are_python_3_8(path: str) -> None:
    ast.parse((REMOTE / path).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(
    "function",
    [
        "copy.sender.send",
        "copy.disk_receiver.receive",
        "verify.objects.describe",
        "copy.session.serve",
    ],
)
def test_stream_programs_import_no_expensive_modules(function: str) -> None:
    """Both ends of every stream start an interpreter with these imports."""
    job = json.loads(job_line(function_of(function), {}, program=True))
    names = [name for name, _ in job["modules"]]
    assert not [name for name in names if "records" in name]
    text = "\n".join(text for _, text in job["modules"] if text)
    top = ast.parse(text.replace("from __future__ import annotations", "")).body
    imported = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    assert not imported & {"ssl", "shutil", "tempfile", "dataclasses", "logging", "subprocess"}
