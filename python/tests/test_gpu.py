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


def test_on_a_gpu(tmp_path):
    mock = os.environ.get("BLCO_MOCK_CUDA")
    if "BLCO_REAL_CUDA" in os.environ:
        said = run(SCRIPT, tmp_path / "t.blco")
    elif mock:
        said = run(SCRIPT, tmp_path / "t.blco", LD_LIBRARY_PATH=mock)
    else:
        pytest.skip("no GPU: BLCO_MOCK_CUDA does not name the mock driver")
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
