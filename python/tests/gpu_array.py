"""An array in a GPU's memory, which nothing but the driver and DLPack makes: for tests without CuPy or PyTorch."""

import ctypes
import types

import numpy as np

_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """``DLManagedTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Cuda:
    """The driver, with the primary context of its first GPU."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        assert getattr(self.driver, name)(*arguments) == 0, name

    def allocate(self, bytes):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes))
        return address.value

    def put(self, array):
        """A copy of a NumPy array, with its strides."""
        address = self.allocate(array.nbytes)
        flat = array.ravel(order="K")
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(flat.ctypes.data), ctypes.c_size_t(flat.nbytes))
        strides = [stride // array.itemsize for stride in array.strides]
        return GpuArray(self, address, array.shape, array.dtype, strides=strides)


class GpuArray:
    """What a library's array shows of itself."""

    # A destructor in Python cannot run while an exception is on its way: counted only where none is expected.
    counts, capsules = True, 0
    kept = {}

    def __init__(self, cuda, address, shape, dtype, strides=None, device=0):
        self.cuda, self.address, self.shape, self.dtype = cuda, address, shape, np.dtype(dtype)
        self.strides, self.device, self.streams = strides, device, set()

    def __dlpack_device__(self):
        return 2, self.device

    def __array_namespace__(self):
        def empty(shape, dtype, device):
            nbytes = int(np.prod(shape)) * dtype.itemsize
            return GpuArray(self.cuda, self.cuda.allocate(nbytes), shape, dtype, device=device)

        return types.SimpleNamespace(empty=empty)

    def __dlpack__(self, *, stream=None):
        self.streams.add(stream)
        axes = len(self.shape)
        shape = (ctypes.c_int64 * axes)(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * axes)(*self.strides)
        # A part of the address as the offset, which counts too.
        managed = Managed(data=self.address - 8, offset=8, ndim=axes, bits=8 * self.dtype.itemsize, lanes=1)
        managed.device[:] = 2, self.device
        managed.code = {"f": 2, "i": 0}[self.dtype.kind]
        managed.shape = ctypes.addressof(shape)
        managed.strides = None if strides is None else ctypes.addressof(strides)
        key = ctypes.addressof(managed)
        GpuArray.kept[key] = managed, shape, strides
        GpuArray.capsules += GpuArray.counts
        return _python.PyCapsule_New(key, b"dltensor", ctypes.cast(_destroy, ctypes.c_void_p) if GpuArray.counts else None)


@_Destructor
def _destroy(capsule):
    """A capsule that nobody consumed is gone."""
    GpuArray.capsules -= 1


def same(found, wanted):
    """Whether a GPU's memory holds these numbers."""
    here = np.empty(found.shape, found.dtype)
    found.cuda.call(
        "cuMemcpyDtoH_v2", ctypes.c_void_p(here.ctypes.data), ctypes.c_uint64(found.address), ctypes.c_size_t(here.nbytes)
    )
    return np.array_equal(here, wanted)
