"""Archives of torch that are written without it."""

from __future__ import annotations

import io
import zipfile

import pytest

from midstream_core import torch_writer
from midstream_core.torch_members import members_of
from midstream_core.torch_writer import ALIGNMENT, NewMember, text_member, write_archive

MEMBERS = {"data.pkl": b"pickle", "byteorder": b"little", "data/0": b"", "data/1": b"x" * 1000, "version": b"3\n"}


def archive() -> bytes:
    file = io.BytesIO()
    write_archive(file, "global_step4", [text_member(name, data) for name, data in MEMBERS.items()])
    return file.getvalue()


@pytest.mark.parametrize("limit", [None, 500, 10])
def test_archive_has_what_was_written(monkeypatch, limit: int | None) -> None:
    """``limit``: of the fields of 4 bytes, so that the larger ones for files above 4 GiB are written."""
    if limit is not None:
        monkeypatch.setattr(torch_writer, "_LIMIT", limit)
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    data = archive()
    if limit is not None:
        # What says "see the larger field" is 0xffffffff in a file; here it is the limit.
        data = data.replace(limit.to_bytes(4, "little"), (0xFFFFFFFF).to_bytes(4, "little"))
    with zipfile.ZipFile(io.BytesIO(data)) as written:
        assert written.testzip() is None
        assert {name: written.read(name) for name in written.namelist()} == {
            f"global_step4/{name}": content for name, content in MEMBERS.items()
        }
    members = members_of(io.BytesIO(data), len(data))
    for name, content in MEMBERS.items():
        member = members[f"global_step4/{name}"]
        assert data[member.start : member.start + member.size] == content
        assert member.start % ALIGNMENT == 0


def test_same_content_is_the_same_bytes() -> None:
    assert archive() == archive()


def test_member_that_is_shorter_than_announced_is_an_error() -> None:
    with pytest.raises(ValueError, match="data/0: not as long as announced"):
        write_archive(io.BytesIO(), "a", [NewMember("data/0", 7, lambda write: len(str(write(memoryview(b"abc")))))])
