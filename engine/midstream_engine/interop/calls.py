"""Table of the names that a checkpoint's pickle may use, and their meaning here.

No name is looked up in a module.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from midstream_core.json_types import JsonValue
from midstream_core.restricted_pickle import SCALARS, Global, Record
from midstream_engine.interop.errors import ConversionError, PickleRejectedError
from midstream_engine.interop.foreign_values import TorchValue

# torch's storage classes, as their element types. Quantized and complex ones are no part of a training state.
STORAGES = {
    "FloatStorage": np.dtype("<f4"), "DoubleStorage": np.dtype("<f8"), "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16), "LongStorage": np.dtype("<i8"), "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"), "CharStorage": np.dtype("i1"), "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}  # fmt: skip
_MAX_DIMENSIONS = 16


class Storage:
    """Numbers in a file."""

    dtype: np.dtype
    size: int  # elements

    def read(self) -> np.ndarray:
        """Return all numbers, mapped, read-only. [size]. The first call checks the CRC."""
        raise NotImplementedError

    def stretch(self, start: int, stop: int) -> np.ndarray:
        """Return numbers [start, stop), read-only.

        Their memory is freed with the last reference.

        Damage is found when the file is verified.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Tensor:
    """A view of a storage, in elements, as torch describes it."""

    storage: Storage = field(repr=False)
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.storage.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def read(self) -> np.ndarray:
        """Return a read-only view of the mapped storage."""
        row = self.storage.read()
        if not self.size:
            return np.empty(self.shape, row.dtype)
        strides = [step * row.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(row[self.offset :], self.shape, strides, writeable=False)

    def stretch(self, start: int, stop: int) -> np.ndarray:
        """Return elements [start, stop) in row-major order, like :meth:`Storage.stretch`."""
        without_gaps = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        if any(size > 1 and a != b for size, a, b in zip(self.shape, self.stride, without_gaps, strict=True)):
            return self.read().reshape(-1)[start:stop]
        return self.storage.stretch(self.offset + start, self.offset + stop)


def scalar(value: object) -> TorchValue:
    """Return ``value`` if it may be a key, which must be fast to hash."""
    if not isinstance(value, SCALARS):
        raise PickleRejectedError(f"a key of type {type(value).__name__} is not allowed in a checkpoint")
    return value


def _dict(*arguments: object) -> dict[object, TorchValue]:
    (pairs,) = arguments or ([],)
    if type(pairs) is not list or any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in pairs):
        raise ConversionError("broken pickle: a dict of what are no pairs")
    return {scalar(key): value for key, value in pairs}


def _set(*arguments: TorchValue) -> set[object]:
    (items,) = arguments or ([],)
    if type(items) not in (list, tuple):
        raise ConversionError("broken pickle: a set of what is no list")
    return {scalar(item) for item in items}


def _encoded(text: object, encoding: object = "latin1") -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise ConversionError(f"broken pickle: bytes in the encoding {encoding!r}"[:200])
    return codecs.encode(text, "latin1")


def _tensor(storage: object, offset: object, shape: TorchValue, stride: TorchValue, *_: object) -> Tensor:
    """Make a tensor of ``_rebuild_tensor_v2``.

    Other arguments are requires_grad, hooks (never run) and metadata.
    """
    if not isinstance(storage, Storage):
        raise ConversionError("broken pickle: a tensor without a storage")
    shape, stride = _sizes(shape), _sizes(stride)
    if type(offset) is not int or offset < 0 or len(shape) != len(stride) or len(shape) > _MAX_DIMENSIONS:
        raise ConversionError("broken pickle: a tensor that makes no sense")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if math.prod(shape) and last >= storage.size:
        raise ConversionError("broken pickle: a tensor reaches beyond the end of its storage")
    return Tensor(storage, offset, shape, stride)


def _parameter(tensor: object, *_: object) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise ConversionError("broken pickle: a parameter that is no tensor")
    return tensor


def _sizes(values: Sequence[TorchValue]) -> tuple[int, ...]:
    if type(values) not in (tuple, list) or any(type(size) is not int or size < 0 for size in values):
        raise ConversionError("broken pickle: a shape of what are no sizes")
    return tuple(values)


def _numpy_scalar(kind: object, data: object = b"") -> object:
    """Return a number; its dtype is a record whose first argument is its code."""
    codes = {"f8": "<f8", "f4": "<f4", "i8": "<i8", "i4": "<i4", "b1": "?"}
    code = kind.arguments[0] if isinstance(kind, Record) and kind.arguments else None
    if code not in codes or type(data) is not bytes or len(data) != np.dtype(codes[code]).itemsize:
        raise ConversionError("broken pickle: a numpy number of a kind that is not known")
    return np.frombuffer(data, codes[code])[0].item()


CALLS: dict[tuple[str, str], Callable[..., object]] = {
    ("collections", "OrderedDict"): _dict,
    ("__builtin__", "set"): _set,
    ("builtins", "set"): _set,
    ("_codecs", "encode"): _encoded,
    ("torch", "Size"): lambda sizes: _sizes(sizes),
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("numpy.core.multiarray", "scalar"): _numpy_scalar,
    ("numpy._core.multiarray", "scalar"): _numpy_scalar,
}
# Objects that become records and are never executed.
_INERT = {
    ("argparse", "Namespace"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("torch", "device"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    *(("torch", name) for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")),
}
_STORAGES = {("torch", name) for name in STORAGES}


def allows(module: str, name: str) -> bool:
    """Return whether a checkpoint may name a global."""
    pair = (module, name)
    return pair in CALLS or pair in _INERT or pair in _STORAGES


def call(function: Global, arguments: tuple[JsonValue, ...]) -> object:
    """Return the result of calling a global: a plain value, a tensor or a record."""
    pair = (function.module, function.name)
    if pair in CALLS:
        return CALLS[pair](*arguments)
    if pair in _INERT:
        return Record(function, arguments)
    raise ConversionError(f"the global {function.module}.{function.name} is not called in a checkpoint")
