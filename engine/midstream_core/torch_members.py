"""Members of an archive of ``torch.save``: their places in the file, and CRC-32.

The archive is a zip of stored members whose directory is written last, so a file that is still being written has none.
A member's own header is looked at too: bytes that are missing in the middle of a file shift the ones after them.
Nothing in an archive is executed. Standard library alone, Python 3.8.
"""

from __future__ import annotations

import struct
import zipfile
from typing import BinaryIO, Dict, List, NamedTuple, Tuple

_LOCAL = struct.Struct("<4s5H3I2H")
_UTF8, _ENCRYPTED = 0x800, 0x1  # flags of a member


class Member(NamedTuple):
    """Place of a member's bytes in the file."""

    start: int
    size: int
    crc: int


def members_of(file: BinaryIO, total: int) -> Dict[str, Member]:
    """Return the members of an archive by name.

    Args:
        file: Open for reading, seekable.
        total: Its bytes.

    Raises:
        ValueError: It is no such archive, partial, damaged or hostile; the message is without the file's name.
        OSError: It cannot be read.
    """
    if not total:
        raise ValueError("is empty")
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError, EOFError):
        raise ValueError(
            "is no complete zip archive of torch: the end of the file is missing or damaged "
            "(hint: save files of torch before 1.6 again)"
        ) from None
    members: Dict[str, Member] = {}
    taken: List[Tuple[int, int, str]] = []
    for info in infos:
        name = info.filename
        shown = "its member {!r}".format(name[:80])
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError("{} is compressed, which torch never does".format(shown))
        if info.flag_bits & _ENCRYPTED:
            raise ValueError("{} is encrypted".format(shown))
        if name in members or name.startswith("/") or "\\" in name or {"", ".", ".."} & set(name.split("/")):
            raise ValueError("{} is duplicate or leaves the archive".format(shown))
        start = _start(file, info, shown, total)
        if start + info.file_size > total:
            raise ValueError("{} exceeds the file, which is truncated".format(shown))
        members[name] = Member(start, info.file_size, info.CRC)
        taken.append((info.header_offset, start + info.file_size, shown))
    taken.sort()
    for (_, end, _), (begin, _, shown) in zip(taken, taken[1:]):  # noqa: RUF007 (Python 3.8)
        if begin < end:
            raise ValueError("{} overlaps with another one".format(shown))
    if len({name.split("/")[0] for name in members}) != 1:
        raise ValueError("does not have exactly one folder, as torch's archives do")
    return members


def _start(file: BinaryIO, info: zipfile.ZipInfo, shown: str, total: int) -> int:
    """Return where a member's bytes begin, by its own header. Raises as `members_of`."""
    name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
    header = b""
    if 0 <= info.header_offset <= total:
        file.seek(info.header_offset)
        header = file.read(_LOCAL.size + len(name))
    if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
        raise ValueError("{} has no header of its own".format(shown))
    fields = _LOCAL.unpack(header[: _LOCAL.size])
    own = header[_LOCAL.size :]
    if fields[9] != len(name) or own != name:
        raise ValueError("{} is called {!r} in its own header".format(shown, own[:80]))
    return info.header_offset + _LOCAL.size + fields[9] + fields[10]
