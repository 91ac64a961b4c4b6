"""Arrays in a GPU's memory, by DLPack: only addresses and shapes pass through Python.

https://dmlc.github.io/dlpack/latest/ defines the structures. A capsule is read, not consumed: its own destructor
releases it.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_CUDA = 2
#: The consumer's stream, as producers of CUDA arrays count them: the default stream, for whose work the engine waits.
_DEFAULT_STREAM = 1
_FLOAT = 2


class _Tensor(ctypes.Structure):
    """``DLTensor``, with which both kinds of ``DLManagedTensor`` hold their data."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclass
class DeviceArray:
    """A row-major matrix in a GPU's memory.

    Attributes
    ----------
    array : object
        Whose memory it is.
    capsule : object
        Keeps the memory while the engine uses it.
    at : tuple of int
        GPU, address, rows and columns.
    dtype : float64 or float32
    """

    array: Any
    capsule: Any
    at: tuple[int, int, int, int]
    dtype: npt.DTypeLike

    def empty(self, rows: int, columns: int) -> Any:
        """A new matrix of the same library, GPU and precision."""
        if hasattr(self.array, "new_empty"):  # PyTorch
            return self.array.new_empty((rows, columns), requires_grad=False)
        if hasattr(self.array, "__array_namespace__"):
            namespace = self.array.__array_namespace__()
            return namespace.empty((rows, columns), dtype=self.array.dtype, device=self.array.device)
        module: Any = sys.modules.get(type(self.array).__module__.partition(".")[0])
        if hasattr(self.array, "__cuda_array_interface__") and hasattr(module, "empty") and hasattr(self.array, "device"):  # CuPy
            with self.array.device:
                return module.empty((rows, columns), dtype=self.array.dtype)
        raise TypeError(f"{type(self.array).__name__}: nothing is known to make such arrays; give `out`")


def is_on_gpu(array: Any) -> bool:
    """Whether something is an array in a GPU's memory."""
    return hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) == _CUDA


def on_gpu(name: str, array: Any) -> DeviceArray:
    """Where a matrix lies in a GPU's memory. What its library has queued for it is done before the engine reads it."""
    if not is_on_gpu(array):
        raise TypeError(f"{name}: {type(array).__name__} is no array in a GPU's memory")
    capsule = array.__dlpack__(stream=_DEFAULT_STREAM)
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    if (tensor.code, tensor.lanes) != (_FLOAT, 1) or tensor.bits not in (32, 64):
        raise TypeError(f"{name}: give float64 or float32")
    if tensor.ndim != 2:
        raise ValueError(f"{name}: {tensor.ndim} axes; a factor has two")
    rows, columns = tensor.shape[0], tensor.shape[1]
    # Strides of axes of length one mean nothing; without strides it is row-major.
    strides = (tensor.strides[0], tensor.strides[1]) if tensor.strides else (columns, 1)
    if (rows > 1 and strides[0] != columns) or (columns > 1 and strides[1] != 1):
        raise ValueError(f"{name}: not C-contiguous; take .contiguous() or ascontiguousarray")
    address = (tensor.data or 0) + tensor.byte_offset
    dtype = np.float64 if tensor.bits == 64 else np.float32
    return DeviceArray(array, capsule, (tensor.device_id, address, rows, columns), dtype)
