"""Protects computing on a GPU: the machine's (``BLCO_REAL_CUDA=1``), or the mock driver that ``BLCO_MOCK_CUDA`` names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np
import blco
from conftest import Tensor

tensor = Tensor((60, 50, 40), 3000)
engine = blco.Engine(device="cuda", deterministic=True)
store = engine.pack((tensor.coords, tensor.values), sys.argv[1], shape=tensor.shape)
for dtype in (np.float64, np.float32):
    factors = tensor.factors(8, dtype)
    for _ in range(3):
        for mode, sums in enumerate(store.mttkrp(factors)):
            assert sums.dtype == dtype and np.array_equal(sums, tensor.mttkrp(factors, mode))
assert len(store.plans()) == 2 and all(plan["device"] for plan in store.plans()), store.plans()
model = store.cp(3, tol=0, max_iters=4)
on_cpu = blco.Engine(device="cpu").open(store.path).cp(3, tol=0, max_iters=4)
assert abs(model.fit - on_cpu.fit) < 1e-9, (model.fit, on_cpu.fit)
assert np.array_equal(store.ttv(np.ones(40), 2).to_dense(), tensor.dense.sum(axis=2))
print("fine")
"""


DLPACK = """
import ctypes, sys
import numpy as np
import blco
from conftest import Tensor
from gpu_array import Cuda, GpuArray, same

cuda = Cuda()
tensor = Tensor((60, 50, 40), 3000)
engine = blco.Engine(device="cuda", deterministic=True)
store = engine.pack((tensor.coords, tensor.values), sys.argv[1], shape=tensor.shape)
for dtype in (np.float64, np.float32):
    factors = tensor.factors(8, dtype)
    wanted = [tensor.mttkrp(factors, mode) for mode in range(3)]
    there = [cuda.put(factor) for factor in factors]
    for calls in (1, 16, 16):
        for mode, sums in enumerate(store.mttkrp(there, calls=calls)):
            assert isinstance(sums, GpuArray) and sums.dtype == dtype and same(sums, wanted[mode])
    # Some on the host, results where the caller says.
    mixed = [factors[0], there[1], factors[2].tolist() if dtype == np.float64 else factors[2]]
    out = [cuda.put(np.full_like(factors[m], np.nan)) for m in (2, 0)]
    assert store.mttkrp(mixed, [2, 0], out=out) is not None
    assert same(out[0], wanted[2]) and same(out[1], wanted[0])
    assert store.mttkrp(factors, 1, out=(one := cuda.put(np.zeros_like(factors[1])))) is one and same(one, wanted[1])
    assert all(array.streams == {1} for array in there), "the producer is told which stream reads"
assert GpuArray.capsules == 0, GpuArray.capsules
GpuArray.counts = False
for wrong, said in [
    ([there[0], there[1]], "2 factors"),
    ([there[1], there[0], there[2]], "factor of mode 1"),
    ([there[0], cuda.put(np.asfortranarray(factors[1])), there[2]], "not C-contiguous"),
    ([there[0], cuda.put(factors[1].astype(np.int32)), there[2]], "give float64 or float32"),
    ([there[0], cuda.put(factors[1].astype(float)), there[2]], "one precision"),
    ([there[0], cuda.put(factors[1][0]), there[2]], "1 axes"),
    ([there[0], GpuArray(cuda, there[1].address, (50, 8), factors[1].dtype, device=1), there[2]], "GPU 1"),
    ([there[0], GpuArray(cuda, 4096, (50, 8), factors[1].dtype), there[2]], "has no"),
    ([there[0], GpuArray(cuda, there[1].address, (2**40, 2**40), factors[1].dtype), there[2]], "factor of mode 2"),
]:
    try:
        store.mttkrp(wrong)
    except (TypeError, ValueError) as error:
        assert said in str(error), error
    else:
        raise SystemExit(said)
for out, said in [(factors[1], "no array in a GPU's memory"), (there[0], "rows and columns"), (cuda.put(factors[1].astype(float)), "precision")]:
    try:
        store.mttkrp(there, 1, out=out)
    except (TypeError, ValueError) as error:
        assert said in str(error), error
    else:
        raise SystemExit(said)
try:
    blco.Engine(device="cpu").open(store.path).mttkrp(there)
except ValueError as error:
    assert "Device::Cuda" in str(error) or "device" in str(error), error
print("fine")
"""


def run(script, target, **environment):
    done = subprocess.run(
        [sys.executable, "-c", script, str(target)],
        cwd=Path(__file__).parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", [SCRIPT, DLPACK], ids=["arrays", "dlpack"])
def test_on_a_gpu(script, tmp_path):
    mock = os.environ.get("BLCO_MOCK_CUDA")
    if "BLCO_REAL_CUDA" in os.environ:
        said = run(script, tmp_path / "t.blco")
    elif mock:
        said = run(script, tmp_path / "t.blco", LD_LIBRARY_PATH=mock)
    else:
        pytest.skip("no GPU: BLCO_MOCK_CUDA does not name the mock driver")
    assert said.endswith("fine\n"), said


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_other_libraries(library, tmp_path):
    """PyTorch's and CuPy's own arrays, on the machine's GPU."""
    if "BLCO_REAL_CUDA" not in os.environ:
        pytest.skip("no GPU")
    pytest.importorskip(library)
    script = """
import sys
import numpy as np
import blco
from conftest import Tensor

tensor = Tensor((600, 500, 400), 30_000)
engine = blco.Engine(device="cuda", deterministic=True)
store = engine.pack((tensor.coords, tensor.values), sys.argv[1], shape=tensor.shape)
put = (lambda a: library.from_numpy(a).cuda()) if (library := __import__(NAME)).__name__ == "torch" else library.asarray
get = (lambda a: a.cpu().numpy()) if library.__name__ == "torch" else library.asnumpy
for dtype in (np.float64, np.float32):
    factors = tensor.factors(8, dtype)
    wanted = [tensor.mttkrp(factors, mode) for mode in range(3)]
    there = [put(factor) for factor in factors]
    for repeat in range(20):
        # Still being computed when the engine is called: an addition that cancels.
        busy = [(factor * 2 - factor) for factor in there]
        for mode, sums in enumerate(store.mttkrp(busy)):
            assert type(sums) is type(there[0]) and np.array_equal(get(sums), wanted[mode])
print("fine")
"""
    said = run(script.replace("NAME", repr(library)), tmp_path / "t.blco")
    assert said.endswith("fine\n"), said


def test_without_a_gpu(tmp_path):
    if "BLCO_REAL_CUDA" in os.environ:
        pytest.skip("there is a GPU")
    script = SCRIPT.split("for dtype", 1)[0]
    script += """
try:
    store.mttkrp(tensor.factors(2))
except ValueError as error:
    print(error)
"""
    assert "install a driver" in run(script, tmp_path / "t.blco")
