"""A tensor that the GPU's memory does not hold, streamed through it.

Needs an NVIDIA GPU. The memory that blco may take is bounded, so that the tensor does not fit; with PyTorch, factors stay on the GPU
and results go there, without passing through the host.
"""

# %% A tensor with long modes, written batch by batch.
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import blco

NONZEROS = int(os.environ.get("BLCO_NONZEROS", 40_000_000))
SHAPE = (200_000, 50_000, 2_000)
engine = blco.Engine(device="cuda", device_memory=os.environ.get("BLCO_DEVICE_MEMORY", "200MiB"))
directory = Path(tempfile.mkdtemp())
rng = np.random.default_rng(7)
with blco.Packer(directory / "long.blco", shape=SHAPE, engine=engine) as packer:
    for start in range(0, NONZEROS, 1_000_000):
        n = min(1_000_000, NONZEROS - start)
        columns = tuple((dim * rng.random(n) ** 2).astype(np.uint32) for dim in SHAPE)
        packer.append(columns, rng.integers(1, 6, n).astype(np.float64))
store = packer.store
print(f"{store.nnz} nonzeros in {store.stats['bytes'] / 1e6:.0f} MB")

# %% MTTKRP of all modes from one pass. Chunks that do not stay on the GPU stream through it.
factors = [rng.random((dim, 16)) for dim in SHAPE]
store.mttkrp(factors)
start = time.perf_counter()
sums = store.mttkrp(factors)
print(f"a pass: {1000 * (time.perf_counter() - start):.1f} ms")
(plan,) = store.plans()
for part in plan["device"]["sets"][0]["residence"]:
    print(f"{part['bytes'] / 1e6:.0f} MB of chunks in memory of the {part['place']}")

# %% The CPU gets the same.
on_cpu = blco.Engine(device="cpu").open(store.path).mttkrp(factors, calls=1)
difference = max(np.abs(here - there).max() / np.abs(there).max() for here, there in zip(sums, on_cpu))
print(f"largest difference {difference:.1e} of the largest number")
assert difference < 1e-10

# %% With PyTorch: factors on the GPU, results as well.
import torch  # noqa: E402

there = [torch.from_numpy(factor).cuda() for factor in factors]
found = store.mttkrp(there)
print([tuple(result.shape) for result in found], found[0].device)
assert all(np.allclose(result.cpu().numpy(), here, rtol=1e-10) for result, here in zip(found, on_cpu))
