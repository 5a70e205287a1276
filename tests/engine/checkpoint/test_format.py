"""A reader written from checkpoint-format.md alone and two public readers agree."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorstore
from safetensors import safe_open

from midstream_core.records import Manifest, RunPaths
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.chunk_grid import grid_of
from support.checkpoints.checkpoint_states import STATE, plain_state, save
from support.paths import REPOSITORY

# ------------------------------------------------------------------- the reader: numpy and the standard library


def read_checkpoint(directory: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Read arrays by name (bfloat16 as uint16 bits) and the training state.

    Raises:
        ValueError: The checkpoint is not as the page states.
    """
    manifest = json.loads((directory / "manifest.json").read_bytes())
    if (manifest["format"], manifest["version"]) != ("midstream-checkpoint", 2):
        raise ValueError("not a checkpoint of version 2")
    sha256 = {}
    for entry in manifest["objects"]:
        data = (directory / entry["path"]).read_bytes()
        sha256[entry["path"]] = hashlib.sha256(data).hexdigest()
        if (len(data), sha256[entry["path"]]) != (entry["size"], entry["sha256"]):
            raise ValueError(f"{entry['path']} is not what was saved")
    state = json.loads((directory / "train.json").read_bytes())["state"]
    described = [
        {key: array[key] for key in ("name", "axes", "shape", "dtype", "grid")}
        | {"objects": [[path, sha256[path]] for path in array["objects"]]}
        for array in sorted(manifest["arrays"], key=lambda array: array["name"])
    ]
    document = json.dumps(
        {"arrays": described, "state": state}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    if hashlib.sha256(document.encode()).hexdigest() != manifest["root_digest"]:
        raise ValueError("root digest")
    arrays = {}
    for array in manifest["arrays"]:
        dtype = np.dtype("uint16" if array["dtype"] == "bfloat16" else array["dtype"]).newbyteorder("<")
        read = read_cells if array["grid"] else read_packed
        arrays[array["name"]] = read(directory, array, dtype)
    return arrays, state


def read_cells(directory: Path, array: dict, dtype: np.dtype) -> np.ndarray:
    shape, grid = array["shape"], array["grid"]
    cell = [length // parts for length, parts in zip(shape, grid, strict=True)]
    result = np.empty(shape, dtype)
    for index in np.ndindex(*grid):
        data = directory.joinpath("arrays", array["name"], "c", *map(str, index)).read_bytes()
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise ValueError(f"crc32c of cell {index} of {array['name']}")
        place = tuple(slice(i * length, (i + 1) * length) for i, length in zip(index, cell, strict=True))
        result[place] = np.frombuffer(data[:-4], dtype).reshape(cell)
    return result


def read_packed(directory: Path, array: dict, dtype: np.dtype) -> np.ndarray:
    raw = (directory / "small.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8:start])[array["name"]]["data_offsets"]
    return np.frombuffer(raw[start + begin : start + end], dtype).reshape(array["shape"])


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial, reflected: 0x82F63B78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def table_entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


TABLE = [table_entry(value) for value in range(256)]

# ------------------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, dict[str, np.ndarray]]:
    paths = RunPaths(str(tmp_path_factory.mktemp("format")), "run")
    tree = plain_state()
    manifest = save(paths, tree)
    arrays = {name: array.value for name, array in flatten(tree).items()}
    return Path(paths.checkpoint(manifest.name)), manifest, arrays


def test_format_page_reader_agrees_bit_for_bit(
    saved: tuple[Path, Manifest, dict[str, np.ndarray]],
) -> None:
    directory, manifest, arrays = saved
    assert any(entry.grid for entry in manifest.array_entries)
    found, state = read_checkpoint(directory)
    assert state == STATE
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


def test_tensorstore_opens_every_chunked_array(saved: tuple[Path, Manifest, dict[str, np.ndarray]]) -> None:
    directory, manifest, arrays = saved
    cut = [entry for entry in manifest.array_entries if entry.grid]
    assert {entry.dtype for entry in cut} == {"float32", "bfloat16"}
    for entry in cut:
        kvstore = {"driver": "file", "path": str(directory / "arrays" / entry.name)}
        opened = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()
        assert opened.domain.labels == tuple(entry.axes)
        assert opened.chunk_layout.read_chunk.shape == tuple(
            length // parts for length, parts in zip(entry.shape, entry.grid, strict=True)
        )
        value = opened.read().result()
        assert value.dtype == arrays[entry.name].dtype
        assert value.tobytes() == arrays[entry.name].tobytes()


def test_safetensors_opens_packed_file_with_sorted_names(
    saved: tuple[Path, Manifest, dict[str, np.ndarray]],
) -> None:
    directory, manifest, arrays = saved
    with safe_open(directory / "small.safetensors", framework="numpy") as packed:
        names = list(packed.keys())
        assert names == sorted(entry.name for entry in manifest.array_entries if not entry.grid)
        for name in names:
            assert packed.get_tensor(name).tobytes() == arrays[name].tobytes()
            assert list(packed.get_slice(name).get_shape()) == list(arrays[name].shape)
    raw = (directory / "small.safetensors").read_bytes()
    assert int.from_bytes(raw[:8], "little") % 8 == 0


def test_chunk_crc32c_is_as_the_page_defines(
    saved: tuple[Path, Manifest, dict[str, np.ndarray]],
) -> None:
    _, manifest, _ = saved
    cells = [entry for entry in manifest.object_entries if "/c/" in entry.path]
    assert len(cells) == 3
    assert {entry.crc32c for entry in cells} == {"SGdLxw=="}


def test_manual_check_command_finds_flipped_bit(
    saved: tuple[Path, Manifest, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    directory, manifest, _ = saved
    page = (REPOSITORY / "docs" / "reference" / "checkpoint-format.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("python3 -c"))
    assert subprocess.run(line, shell=True, cwd=directory, capture_output=True).returncode == 0
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    cell = copy / next(entry.path for entry in manifest.object_entries if "/c/" in entry.path)
    cell.write_bytes(bytes([cell.read_bytes()[0] ^ 1]) + cell.read_bytes()[1:])
    outcome = subprocess.run(line, shell=True, cwd=copy, capture_output=True, text=True)
    assert outcome.returncode == 1
    assert "FAILED" in outcome.stdout
    with pytest.raises(ValueError, match="is not what was saved"):
        read_checkpoint(copy)


def test_format_page_describes_grid_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "reference" / "checkpoint-format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:GPT|\d+B).*?\| (.*?) \| (.*?) \| ([\d.]+) MiB \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for described, cells, size in rows:
        axes, shape = zip(*(part.split() for part in described.split(", ")), strict=True)
        lengths = tuple(map(int, shape))
        grid = grid_of(axes, lengths, "float32")
        assert grid == tuple(map(int, cells.split(" × ")))
        assert round(math.prod(lengths) * 4 / math.prod(grid) / 2**20, 1) == float(size)
