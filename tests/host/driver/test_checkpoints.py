"""Completeness of other trainers' checkpoints, on what the trainers wrote: what holds for every rule."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints
from support.paths import FIXTURES
from support.trainers.checkpoint_cases import Case, each_case, files_of, look, refused


@each_case
def test_a_checkpoint_as_written_is_complete(case: Case) -> None:
    found = look(case, FIXTURES / case.run / case.path)
    assert (found.complete, found.reason, found.step) == (True, "", case.step)
    on_disk = {
        str(each.relative_to(FIXTURES / case.run)): each.stat().st_size
        for each in files_of(FIXTURES / case.run / case.path)
    }
    assert {each.path: each.size for each in found.files} == on_disk


@each_case
def test_a_missing_file_is_named(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    if path.is_file():
        pytest.skip("it is one file")
    for each in files_of(path):
        name = str(each.relative_to(path))
        content = each.read_bytes()
        each.unlink()
        if re.fullmatch(case.optional, name):
            assert look(case, path).complete, name
        else:
            reason = refused(case, path)
            assert each.name in reason or each.parent.name in reason, (name, reason)
        each.write_bytes(content)
    assert look(case, path).complete


def boundaries(path: Path) -> Iterator[int]:
    """Lengths to cut a file at: none, one byte, at each part of its format, all but one byte."""
    size = path.stat().st_size
    yield from {0, 1, size // 2, size - 1}
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from {info.header_offset for info in archive.infolist()}
            yield archive.start_dir
        yield size - 22
    elif path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        yield from (8, 8 + length)


@pytest.mark.long
@each_case
def test_a_truncated_file_is_named_at_each_length(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    for each in files_of(path):
        name = "" if each == path else str(each.relative_to(path))
        content = each.read_bytes()
        if not content or re.fullmatch(case.unchecked, name):
            continue
        for length in sorted(set(boundaries(each))):
            if content[:length] == content.rstrip():  # JSON without the end of its line
                continue
            each.write_bytes(content[:length])
            found = look(case, path)
            assert not found.complete, (name, length)
            assert each.name in found.reason, (name, length, found.reason)
        each.write_bytes(content)
    assert look(case, path).complete


@each_case
def test_bytes_missing_in_an_archive_are_found(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    archives = [each for each in files_of(path) if zipfile.is_zipfile(each) and each.name != "training_args.bin"]
    for each in archives:
        content = each.read_bytes()
        each.write_bytes(content[:64] + content[128:])
        assert each.name in refused(case, path)
        each.write_bytes(content)


@each_case
def test_a_link_is_refused_since_only_files_are_copied(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    each = files_of(path)[-1]
    each.rename(each.with_name("elsewhere"))
    each.symlink_to("elsewhere")
    if each == path:
        found = find_checkpoints(case.rule, str(path.parent), path.name.replace("[", "[[]"), case.ranks)
        assert found == []
    else:
        assert "link" in refused(case, path)


@each_case
def test_a_pipe_among_the_files_is_refused(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    each = files_of(path)[0]
    each.unlink()
    os.mkfifo(each)
    assert "no regular file" in refused(case, path)
