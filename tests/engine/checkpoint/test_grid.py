"""The chunk grid follows from axes, shape and dtype alone; chunks are equal and bounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream_core.safetensors_header import NAMES
from midstream_engine.checkpoint.bounded_pool import run_bounded
from midstream_engine.checkpoint.boxes import copy_rows, extent, gather, overlap, volume
from midstream_engine.checkpoint.chunk_grid import MAX_CHUNK, MIN_CHUNK, PACK_BELOW, chunk_shape, chunks_of, grid_of
from midstream_engine.checkpoint.dtypes import numpy_dtype

AXES = ("layers", "vocab", "mlp", "heads", "head_size", "embed", "position", "dim_0")


@st.composite
def arrays(draw: st.DrawFn) -> tuple[tuple[str, ...], tuple[int, ...], str]:
    axes = tuple(draw(st.lists(st.sampled_from(AXES), max_size=4, unique=True)))
    length = st.one_of(st.integers(1, 4096), st.sampled_from([64, 768, 1024, 2048, 4096, 50304]))
    return axes, tuple(draw(length) for _ in axes), draw(st.sampled_from(sorted(NAMES)))


@given(arrays())
def test_grid_chunks_are_equal_and_of_bounded_size(array: Any) -> None:
    axes, shape, dtype = array
    grid = grid_of(axes, shape, dtype)
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    assert (grid == ()) == (size < PACK_BELOW)
    if not grid:
        return
    lengths = chunk_shape(shape, grid)
    assert all(length * parts == size for length, parts, size in zip(lengths, grid, shape, strict=True))
    cell = math.prod(lengths) * numpy_dtype(dtype).itemsize
    assert cell >= MIN_CHUNK or math.prod(grid) == 1
    for number, axis in enumerate(axes):
        if axis == "layers" and cell > MAX_CHUNK:  # as small as equal parts of the layers can be
            divisors = [n for n in range(1, lengths[number] + 1) if lengths[number] % n == 0]
            assert all(cell // n < MIN_CHUNK for n in divisors[1:])
    for axis, parts in zip(axes, grid, strict=True):
        if axis in ("head_size", "position"):
            assert parts == 1
        elif axis != "layers":
            assert parts <= 64
            assert parts & (parts - 1) == 0


@pytest.mark.parametrize(
    ("axes", "shape", "grid"),
    [
        (("layers", "mlp", "embed"), (12, 3072, 768), (1, 1, 32)),  # GPT-2 124M: 3.4 MiB objects
        (("position", "embed"), (1024, 768), (1, 1)),
        (("layers", "mlp"), (12, 3072), ()),
        (("vocab", "embed"), (50304, 768), (1, 64)),
        (("layers", "mlp", "embed"), (36, 14336, 4096), (1, 4, 64)),  # 8B: 31.5 MiB
        (("layers", "mlp", "embed"), (80, 28672, 8192), (4, 8, 64)),  # 70B: 35 MiB
        (("layers", "position", "embed"), (61, 2816, 7168), (1, 1, 64)),  # 73 MiB, because a 61st of it is too small
        ((), (), ()),
    ],
)
def test_grid_of_known_models_is_pinned(axes: tuple[str, ...], shape: tuple[int, ...], grid: tuple[int, ...]) -> None:
    """Another grid changes the digest of a state, so it requires a new format version."""
    assert grid_of(axes, shape, "float32") == grid


def test_grid_of_124m_model_has_hundreds_of_objects() -> None:
    block = {
        ("layers", "qkv", "heads", "head_size", "embed"): (12, 3, 12, 64, 768),
        ("layers", "heads", "head_size", "embed"): (12, 12, 64, 768),
        ("layers", "mlp", "embed"): (12, 3072, 768),
        ("layers", "embed", "mlp"): (12, 768, 3072),
        ("vocab", "embed"): (50304, 768),
    }
    objects = sum(math.prod(grid_of(axes, shape, "float32")) for axes, shape in block.items())
    assert 3 * objects < 600  # parameters and two moments


def test_grid_refuses_unknown_dtype_by_name() -> None:
    with pytest.raises(ValueError, match="'complex64' cannot be stored"):
        grid_of(("embed",), (4,), "complex64")


@given(st.data())
def test_box_assembles_from_disjoint_pieces(data: st.DataObject) -> None:
    import numpy as np

    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 4, 12]), min_size=1, max_size=3)))
    array = np.arange(math.prod(shape)).reshape(shape)

    def divisors(length: int):
        return st.sampled_from([parts for parts in range(1, length + 1) if length % parts == 0])

    cuts = [tuple(data.draw(divisors(length)) for length in shape) for _ in range(2)]
    pieces = [(box, array[tuple(slice(*part) for part in box)]) for _, box in chunks_of(shape, cuts[0])]
    for _, box in chunks_of(shape, cuts[1]):
        result = gather(box, pieces)
        assert result is not None
        assert result.shape == extent(box)
        assert (result == array[tuple(slice(*part) for part in box)]).all()
        needed = [piece for piece in pieces if overlap(piece[0], box)]
        if volume(box) > 0:
            assert gather(box, [piece for piece in pieces if piece is not needed[0]]) is None


def test_pool_bounds_bytes_and_runs_huge_task_alone() -> None:
    import random
    import threading

    seed = random.randrange(2**32)
    print(f"seed {seed}")
    sizes = [random.Random(seed).randint(1, 60) for _ in range(200)] + [250]
    lock, held, most = threading.Lock(), 0, []

    def work(size: int) -> None:
        nonlocal held
        with lock:
            held += size
            most.append((held, size))
        with lock:
            held -= size

    run_bounded([(size, lambda size=size: work(size)) for size in sizes], in_flight=100, threads=8)
    assert len(most) == len(sizes)
    assert all(total <= 100 or total == size for total, size in most)


def test_pool_cancels_queued_tasks_at_first_failure() -> None:
    begun = []

    def fail() -> None:
        raise OSError("no")

    tasks = [(1, fail)] + [(1, lambda number=number: begun.append(number)) for number in range(10_000)]
    with pytest.raises(OSError, match="no"):
        run_bounded(tasks, threads=2)
    assert len(begun) < 10_000


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["<f4", "<u2"])
def test_transposed_arrays_are_copied_completely(axes: tuple[int, ...], dtype: str) -> None:
    """Larger than a tile and no multiple of it, along each axis; also within a larger array."""
    source = np.arange(70 * 131 * 201, dtype=np.uint32).astype(dtype).reshape(70, 131, 201)
    for view in (source.transpose(axes), source[3:, 1:130, ::2].transpose(axes)):
        target = np.zeros(view.shape, dtype)
        copy_rows(target, view)
        np.testing.assert_array_equal(target, view)


@pytest.mark.parametrize("dtype", ["<f4", "<u2"])
@pytest.mark.parametrize("columns", [slice(0, 1), slice(3, 19), slice(8, 40), slice(0, 65)])
def test_narrow_columns_are_copied_as_rows(columns: slice, dtype: str) -> None:
    """As a chunk of a transposed matrix: few elements without gaps, more of them than are copied at a time."""
    source = np.arange(3 * 9001 * 80, dtype=np.uint32).astype(dtype).reshape(3, 9001, 80)
    for view in (source[1, :, columns].T, source[:, :, columns].transpose(0, 2, 1), source[:, ::3, columns].T):
        target = np.zeros(view.shape, dtype)
        copy_rows(target, view)
        np.testing.assert_array_equal(target, view)
