"""Protects Arrow streams: wrong ones raise and leave nothing, long ones stay within the memory that packing may take."""

import ctypes
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import blco

pyarrow = pytest.importorskip("pyarrow")

ROWS = 1000
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Schema(ctypes.Structure):
    """``ArrowSchema`` of the C data interface."""


class Array(ctypes.Structure):
    """``ArrowArray``."""


Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.c_void_p),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
_Next = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Said = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Stream(ctypes.Structure):
    """``ArrowArrayStream``, in a capsule, which says what a test has it say."""

    _fields_ = [("schema", _Next), ("next", _Next), ("said", _Said), ("release", _Release), ("private_data", ctypes.c_void_p)]

    def __init__(self, schema, following):
        self.released = 0
        self.text = ctypes.create_string_buffer(b"the disk is on fire")

        def release(stream):
            self.released += 1
            Stream.from_address(stream).release = _Release()

        steps = _Next(lambda _, to: schema(to)), _Next(lambda _, to: following(to)), _Said(lambda _: ctypes.addressof(self.text))
        super().__init__(*steps, _Release(release), None)

    def __arrow_c_stream__(self, requested_schema=None):
        return _capsule(ctypes.addressof(self), b"arrow_array_stream", None)


def batch(rows=ROWS):
    rng = np.random.default_rng(0)
    return pyarrow.record_batch({"user": rng.integers(0, 50, rows), "item": rng.choice(["a", "b"], rows), "x": rng.random(rows)})


def good_schema(to):
    batch(1).schema._export_to_c(to)
    return 0


def good_next(to):
    batch()._export_to_c(to)
    return 0


def changed(name, value, part=Schema, child=None, step=good_schema):
    """A step whose struct, or one of its children, is changed afterwards."""

    def step_with_it(to):
        step(to)
        struct = part.from_address(to)
        if child is not None:
            struct = struct.children[child].contents
        setattr(struct, name, value)
        return 0

    return step_with_it


def fails(_):
    return 5


def pack(source, tmp_path, **options):
    return blco.pack(source, tmp_path / "t.blco", modes=["user", "item"], value="x", **options)


def test_the_streams_of_these_tests_pack(tmp_path):
    left = [good_next, good_next, lambda to: Array.from_address(to).__setattr__("release", None) or 0]
    stream = Stream(good_schema, lambda to: left.pop(0)(to))
    store = pack(stream, tmp_path)
    assert store.shape == (50, 2) and store.report["nnz"] == store.nnz
    assert stream.released == 1
    assert store.stats["norm"] == pytest.approx(pack(pyarrow.Table.from_batches([batch()] * 2), tmp_path, replace=True).norm())


@pytest.mark.parametrize(
    "schema",
    [
        fails,
        changed("format", b"zz"),
        changed("format", b""),
        changed("format", b"l"),
        changed("format", b"tiX", child=0),
        changed("format", b"w:-4", child=1),
        changed("format", b"\xff\xfe", child=1),
        changed("format", b"+s", child=2),
        changed("name", b"\xff\xfe", child=0),
        changed("n_children", 0),
    ],
)
def test_a_broken_schema(schema, tmp_path):
    stream = Stream(schema, good_next)
    with pytest.raises((ValueError, TypeError, OSError)):
        pack(stream, tmp_path)
    assert os.listdir(tmp_path) == [] and stream.released == 1


@pytest.mark.parametrize("source", ["nothing", "another name", "no capsule", "raises"])
def test_what_is_no_stream(source, tmp_path):
    class Source:
        def __arrow_c_stream__(self, requested_schema=None):
            match source:
                case "nothing":
                    return None
                case "another name":
                    return _capsule(ctypes.addressof(stream), b"arrow_schema", None)
                case "no capsule":
                    return b"arrow_array_stream"
            raise ZeroDivisionError("mine")

    stream = Stream(good_schema, good_next)
    with pytest.raises(ZeroDivisionError if source == "raises" else (TypeError, ValueError)):
        pack(Source(), tmp_path)
    assert os.listdir(tmp_path) == [] and stream.released == 0


@pytest.mark.parametrize(
    "broken, said",
    [
        (fails, "the disk is on fire"),
        (changed("n_children", 2, Array, step=good_next), "damaged"),
        (changed("length", ROWS + 1, Array, step=good_next), "damaged"),
        (changed("length", -1, Array, step=good_next), "damaged"),
        (changed("n_buffers", 1, Array, child=0, step=good_next), "damaged"),
        (changed("n_buffers", 1, Array, child=1, step=good_next), "damaged"),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_a_stream_that_breaks(broken, said, before, tmp_path):
    left = [good_next] * before
    stream = Stream(good_schema, lambda to: (left.pop() if left else broken)(to))
    with pytest.raises(ValueError, match=said):
        pack(stream, tmp_path)
    assert os.listdir(tmp_path) == [] and stream.released == 1


def test_a_stream_of_python_that_raises_in_the_middle(tmp_path):
    def batches():
        yield batch()
        yield batch()
        raise ZeroDivisionError("mine")

    reader = pyarrow.RecordBatchReader.from_batches(batch(1).schema, batches())
    with pytest.raises((ValueError, OSError, ZeroDivisionError), match="mine"):
        pack(reader, tmp_path)
    assert os.listdir(tmp_path) == []


def test_batches_of_another_schema(tmp_path):
    def batches():
        yield batch()
        yield pyarrow.record_batch({"user": ["a"], "item": [1], "x": [2.0]})

    reader = pyarrow.RecordBatchReader.from_batches(batch(1).schema, batches())
    with pytest.raises((ValueError, OSError, TypeError)):
        pack(reader, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_long_stream_stays_within_its_memory(tmp_path):
    """Batches go as they come: 40 MiB a second time would be seen, and all of them are 240 MiB."""
    script = """
    import resource, sys
    import numpy as np
    import pyarrow
    import blco

    rows, count = 100_000, 100
    rng = np.random.default_rng(0)
    parts = [pyarrow.record_batch({"user": rng.integers(0, 500, rows), "item": rng.integers(0, 50, rows), "x": rng.random(rows)})]
    engine = blco.Engine(threads=2, device="cpu")
    pack = lambda count: blco.pack(
        pyarrow.RecordBatchReader.from_batches(parts[0].schema, (parts[0].take(pyarrow.array(rng.permutation(rows))) for _ in range(count))),
        sys.argv[1], modes=["user", "item"], value="x", memory="96MiB", replace=True, engine=engine)
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    pack(2)
    before = peak()
    assert pack(count).shape == (500, 50)
    print((peak() - before) >> 20)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "t.blco")], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) < 140, done.stdout + done.stderr
