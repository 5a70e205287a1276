"""Torch files, read without torch: hostile and broken ones are never executed."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import resource
import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_core.crc32_parts import combined
from midstream_engine.checkpoint.host_buffers import pages
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.calls import Record, Tensor
from midstream_engine.interop.direct_io import ALIGNMENT, open_directly, write_directly
from midstream_engine.interop.errors import ConversionError
from support.imports import torch_files

FLAG = "MIDSTREAM_TEST_EXECUTED"


def refused(path: Path, *words: str) -> None:
    """Assert a one-line error with these words, in 20 s of CPU time and 512 MiB."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConversionError) as caught:
        TorchFile(str(path))
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_values_and_tensors_are_read_bit_for_bit(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    half = np.array([1.5, -2, 65504], np.float16)
    value = {"a": array, "deep": [{"b": half}, (1, 2.5, None, True, "text", b"bytes")], 7: "number"}
    torch_files.save(tmp_path / "x.pt", value)
    found = TorchFile(str(tmp_path / "x.pt")).value
    np.testing.assert_array_equal(found["a"].read(), array)
    np.testing.assert_array_equal(found["deep"][0]["b"].read(), half)
    assert found["deep"][1] == (1, 2.5, None, True, "text", b"bytes")
    assert found[7] == "number"
    with pytest.raises(ValueError, match="read-only"):
        found["a"].read()[0, 0] = 1


def test_offsets_sizes_and_strides_are_honoured(tmp_path: Path) -> None:
    data = torch_files.storage_pickle(count=6).replace(
        b"tQK\x00J\x06\x00\x00\x00\x85K\x01\x85", b"tQK\x01K\x02K\x02\x86K\x01K\x02\x86"
    )  # offset 1, shape [2, 2], strides [1, 2]
    torch_files.write(tmp_path / "x.pt", data, {"0": np.arange(6, dtype="<f4").tobytes()})
    found = TorchFile(str(tmp_path / "x.pt")).value
    assert isinstance(found, Tensor)
    np.testing.assert_array_equal(found.read(), [[1, 3], [2, 4]])


class Runs:
    """An object that pickles as a call of ``function``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


def executing(protocol: int) -> list[bytes]:
    """Return pickles that execute code when `pickle` loads them."""
    command = f"touch {FLAG}"
    return [
        pickle.dumps(Runs(os.system, command), protocol),
        pickle.dumps(Runs(eval, f"open({FLAG!r}, 'w')"), protocol),
        pickle.dumps(Runs(exec, f"open({FLAG!r}, 'w')"), protocol),
        pickle.dumps(Runs(getattr, os, "system") if protocol < 0 else Runs(getattr, "x", "upper"), protocol),
        pickle.dumps({"fine": [1, 2], "bad": Runs(os.mkdir, FLAG)}, protocol),
    ]


RAW = {
    "a global of a part of an allowed one": b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93.",
    "a name put together on the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "a dotted way through an allowed module": b"\x80\x04\x8c\x05torch\x8c\x0eserialization.os\x93.",
    "builtins": b"cbuiltins\neval\n(V1+1\ntR.",
    "the old name of builtins": b"c__builtin__\ngetattr\n(cos\nsystem\nVx\ntR.",
    "INST": b"(Vtrue\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nVtrue\no.",
    "NEWOBJ_EX": b"\x80\x04ccollections\nOrderedDict\n)}\x92.",
    "extension registry": b"\x80\x02\x82\x01.",
    "extension registry, two bytes": b"\x80\x02\x83\x01\x01.",
    "extension registry, four bytes": b"\x80\x02\x84\x01\x00\x00\x00.",
    "a call within a call": b"\x80\x02cos\nsystem\n(cbuiltins\nstr\n(Vtrue\ntRtR.",
    "an attribute by name": b"\x80\x02cbuiltins\ngetattr\n(ccollections\nOrderedDict\nV__init__\ntR.",
    "a chain of attributes": b"\x80\x02coperator\nattrgetter\n(V__class__.__base__.__subclasses__\ntR.",
    "a chain within a name": b"\x80\x04\x8c\x05torch\x8c\x1bFloatStorage.__init__.__glob\x93.",
    "an import": b"\x80\x02cbuiltins\n__import__\n(Vos\ntR.",
    "a partial call": b"\x80\x02cfunctools\npartial\n(cos\nsystem\nVtrue\ntR.",
    "a class by way of copyreg": b"\x80\x02ccopyreg\n_reconstructor\n(cos\n_wrap_close\ncbuiltins\nobject\nNtR.",
    "a pickle within": b"\x80\x02cpickle\nloads\n(Vcos\ntR.",
    "torch's own pickle within": b"\x80\x02ctorch.storage\n_load_from_bytes\n(C\x04cos\ntR.",
    "a tensor from a call": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(ccollections\nOrderedDict\n)RK\x00)))tR.",
    "a numpy number that is an object": b"\x80\x02cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO8\ntRC\x01xtR.",
    "a set of lists": b"\x80\x02c__builtin__\nset\n(](]lt\x85R.",
    "state for a set": b"\x80\x04\x8f}b.",
    "a number of two gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "a negative length": b"\x80\x02\x8b\xff\xff\xff\xff\x01.",
    "a text of four gigabytes": b"\x80\x02X\xff\xff\xff\xffx.",
    "a byte array without an end": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7fx.",
    "a number of a million digits": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "a tensor of more elements than there are": torch_files.storage_pickle(count=2**31 - 1),
    "a persistent id as text": b"Pstorage\n.",
    "a persistent id that is a call": b"\x80\x02ccollections\nOrderedDict\n)RQ.",
    "a persistent id of another kind": b"\x80\x02(X\x04\x00\x00\x00fileX\x0b\x00\x00\x00/etc/passwdK\x01K\x01K\x01tQ.",
    "calling a value": b"\x80\x02X\x02\x00\x00\x00os)R.",
    "calling what a call gave": b"\x80\x02ccollections\nOrderedDict\n)R)R.",
    "state for a number": b"\x80\x02K\x01}b.",
    "state for a global": b"\x80\x02ctorch\nFloatStorage\n}b.",
    "calling a storage class": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "a far slot of the memo": b"\x80\x02K\x01r\xff\xff\xff\x7fj\xff\xff\xff\x7e.",
    "an unknown slot of the memo": b"\x80\x02h\x05.",
    "a frame without an end": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "bytes without an end": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fxx.",
    "a key that is a list": b"\x80\x02}]K\x01s.",
    "two values": b"\x80\x02K\x01K\x02.",
    "no value": b"\x80\x02.",
    "more after its end": b"\x80\x02K\x01.cos\nsystem\n(Vtrue\ntR.",
    "an encoding with a codec's name": b"c_codecs\nencode\n(Vabc\nVrot13\ntR.",
    "buffers from outside": b"\x80\x05\x97.",
    "a bare mark": b"\x80\x02(.",
    "a tuple without a mark": b"\x80\x02t.",
    "pop": b"\x80\x02K\x01K\x020.",
    "dup": b"\x80\x02K\x012.",
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(RAW))
def test_hostile_pickles_are_refused(what: str, tmp_path: Path) -> None:
    torch_files.write(tmp_path / "x.pt", RAW[what])
    refused(tmp_path / "x.pt", str(tmp_path / "x.pt"))


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for data in executing(protocol):
        torch_files.write(tmp_path / "x.pt", data)
        refused(tmp_path / "x.pt", "not allowed")
    assert os.listdir(tmp_path) == ["x.pt"]


def test_numpys_reconstruct_stays_a_record(tmp_path: Path) -> None:
    torch_files.write(tmp_path / "x.pt", pickle.dumps(np.arange(3), 2))
    found = TorchFile(str(tmp_path / "x.pt")).value
    assert isinstance(found, Record)


def test_exponential_references_take_little_time_and_memory(tmp_path: Path) -> None:
    """A tuple of two of the previous one, 60 times: harmless until it is traversed."""
    bomb = b"\x80\x02)q\x00" + b"".join(
        b"h" + bytes([number]) + b"h" + bytes([number]) + b"\x86q" + bytes([number + 1]) for number in range(60)
    )
    torch_files.write(tmp_path / "value.pt", bomb + b".")
    refused(tmp_path / "value.pt")  # 61 values are left on its stack
    torch_files.write(tmp_path / "key.pt", bomb[:2] + b"}q\xff" + bomb[2:] + b"K\x01s.")
    refused(tmp_path / "key.pt", "key")


def test_storages_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sixteen = bytes(16)
    cases: list[tuple[bytes, dict[str, bytes], str]] = [
        (torch_files.storage_pickle(), {}, "missing"),
        (torch_files.storage_pickle(), {"0": sixteen[:8]}, "8 bytes"),
        (torch_files.storage_pickle(count=2**30), {"0": sixteen}, "16 bytes"),
        (torch_files.storage_pickle(b"ComplexFloatStorage"), {"0": sixteen}, "ComplexFloatStorage"),
        (torch_files.storage_pickle(name="../../data.pkl"), {"0": sixteen}, "missing"),
        (torch_files.storage_pickle(name="/etc/passwd"), {"0": sixteen}, "missing"),
        (torch_files.storage_pickle().replace(b"tQK\x00", b"tQK\x01"), {"0": sixteen}, "beyond"),
        (torch_files.storage_pickle().replace(b"K\x01\x85\x89", b"J\xff\xff\xff\xff\x85\x89"), {"0": sixteen}, "sizes"),
    ]
    for number, (data, storages, words) in enumerate(cases):
        torch_files.write(tmp_path / f"{number}.pt", data, storages)
        refused(tmp_path / f"{number}.pt", words)


def test_hostile_zip_files_are_refused(tmp_path: Path) -> None:
    plain = pickle.dumps({"a": 1}, 2)
    path = tmp_path / "x.pt"
    torch_files.write(path, plain, compression=zipfile.ZIP_DEFLATED)
    refused(path, "compressed")
    for name in ("/archive/data/0", "archive/../data/0", "archive//0", "archive/./0", "other/data/0"):
        torch_files.write(path, plain)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, b"x")
        refused(path)
    torch_files.write(path, plain)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data.pkl", b"x")
    refused(path, "duplicate")
    torch_files.write(path, plain, byteorder="big")
    refused(path, "endian")
    path.write_bytes(b"")
    refused(path, "empty")
    path.write_bytes(pickle.dumps({"a": 1}))
    refused(path, "zip")


def test_overlapping_or_renamed_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch_files.write(path, pickle.dumps(1, 2), {"0": bytes(64), "1": bytes(64)})
    sound = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        first, second = (archive.getinfo(f"archive/data/{name}") for name in "01")
    entry = sound.rindex(b"PK\x01\x02")  # the directory's entry of the last member, pointed at the one before
    path.write_bytes(sound[: entry + 42] + struct.pack("<I", first.header_offset) + sound[entry + 46 :])
    refused(path, "header")
    name = second.header_offset + 30
    path.write_bytes(sound[:name] + b"b" + sound[name + 1 :])
    refused(path, "called")


def test_any_flipped_or_missing_byte_is_detected(tmp_path: Path) -> None:
    """With damage anywhere, the file is refused or the damaged bytes are not read."""
    array = np.arange(64, dtype=np.float32)
    path = tmp_path / "x.pt"
    torch_files.save(path, {"a": array, "n": 5})
    sound = path.read_bytes()
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(150):
        position = chance.randrange(len(sound))
        damaged = bytearray(sound)
        damaged[position] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged if chance.random() < 0.8 else sound[:position])
        try:
            found = TorchFile(str(path)).value
            assert found["n"] == 5, position
            np.testing.assert_array_equal(found["a"].read(), array)
        except ConversionError as error:
            assert str(path) in str(error)  # noqa: PT017 (either is right)


def test_damaged_storage_is_detected_when_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch_files.save(path, {"a": np.arange(64, dtype=np.float32)})
    data = bytearray(path.read_bytes())
    position = bytes(data).index(np.arange(64, dtype=np.float32).tobytes())
    data[position + 100] ^= 1
    path.write_bytes(data)
    found = TorchFile(str(path)).value["a"]
    with pytest.raises(ConversionError, match="CRC-32"):
        found.read()


@pytest.mark.parametrize("seed", range(3))
def test_storage_is_read_in_ranges_of_any_order(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    random = np.random.default_rng(seed)
    array = random.random(700_001, np.float32)
    path = tmp_path / "x.pt"
    torch_files.save(path, {"a": array, "b": array[:500_000] + 1})
    file = TorchFile(str(path))
    found = file.value["a"]
    edges = [0, *sorted(random.integers(0, array.size, 9).tolist()), array.size]
    parts = [part for part in itertools.pairwise(edges) if part[0] < part[1]]
    for number in random.permutation(len(parts))[1:]:  # one range is never read
        np.testing.assert_array_equal(found.stretch(*parts[number]), array[slice(*parts[number])])
    np.testing.assert_array_equal(found.stretch(*parts[0]), array[slice(*parts[0])])  # again
    file.verify()
    start, stop = edges[2], edges[4] + 1  # across what was read before
    np.testing.assert_array_equal(found.stretch(start, stop), array[start:stop])
    file.verify()


@pytest.mark.parametrize("read", [(0, 600_000), (1000, 1100), (300_000, 300_001)])
def test_damaged_storage_is_detected_for_any_range(read: tuple[int, int], tmp_path: Path) -> None:
    array = np.arange(600_000, dtype=np.float32)
    path = tmp_path / "x.pt"
    torch_files.save(path, {"a": array})
    data = bytearray(path.read_bytes())
    data[data.index(array.tobytes()) + 4 * 1050] ^= 1
    path.write_bytes(data)
    file = TorchFile(str(path))
    file.value["a"].stretch(*read)
    with pytest.raises(ConversionError, match="data/0 is damaged: its CRC-32"):
        file.verify()


def test_storage_changed_during_reading_is_refused(tmp_path: Path) -> None:
    array = np.zeros(600_000, np.float32)
    path = tmp_path / "x.pt"
    torch_files.save(path, {"a": array})
    found = TorchFile(str(path)).value["a"]
    found.stretch(0, 20_000)
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(data.index(bytes(8 * 4096)) + 4096)
        file.write(b"x" * 4096)
    with pytest.raises(ConversionError, match="changed between two reads"):
        found.stretch(0, 20_000)
    os.truncate(path, 8192)
    with pytest.raises(ConversionError, match="truncated"):
        found.stretch(500_000, 600_000)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (1, 1), (1000, 4097)])
def test_combined_crc_equals_crc_of_both(sizes: tuple[int, int]) -> None:
    first, second = (np.random.default_rng(size).bytes(size) for size in sizes)
    assert combined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_write_directly_accepts_unaligned_data(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    descriptor = open_directly(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    block = pages(2 * ALIGNMENT)
    block[:] = 7
    write_directly(descriptor, block.data, 0)
    write_directly(descriptor, memoryview(b"ab" * 50)[1:], len(block))
    os.close(descriptor)
    assert Path(path).read_bytes() == b"\7" * len(block) + (b"ab" * 50)[1:]
