"""Protects the process around it: Ctrl-C, forks, leaks, the interpreter's lock, logging."""

import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from conftest import Tensor, same

import blco

INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import blco

directory = sys.argv[1]
rng = np.random.default_rng(0)
shape = (3000, 2000, 1000)
engine = blco.Engine(threads=2, memory="400MiB")

def batches():
    while True:
        yield np.stack([rng.integers(0, dim, 50_000) for dim in shape], axis=1), rng.random(50_000)

def interrupt(seconds):
    def later():
        time.sleep(seconds)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    sent = []
    threading.Thread(target=later, daemon=True).start()
    return sent

def ends(work, seconds=1.0):
    sent = interrupt(seconds)
    try:
        work()
    except KeyboardInterrupt:
        took = time.monotonic() - sent[0]
        print(f"{took:.3f}", flush=True)
        assert took < LIMIT, took
        return
    raise SystemExit("it ended by itself")

LIMIT = 1.0
before = sorted(os.listdir(directory))
store = blco.open(os.path.join(directory, "big.blco"), engine=engine)
factors = [rng.random((dim, 64)) for dim in store.shape]
{work}
assert sorted(os.listdir(directory)) == before, os.listdir(directory)
# What was interrupted is in nobody's way.
assert engine.open(store.path).mttkrp([factor[:, :2] for factor in factors], 0, calls=1).shape == (store.shape[0], 2)
print("fine")
"""

WORK = {
    "cp": "ends(lambda: store.cp(32, tol=0, max_iters=100_000))",
    "callback": "ends(lambda: store.cp(2, tol=0, max_iters=100_000, callback=lambda it: None))",
    "mttkrp": """
def forever():
    while True:
        store.mttkrp(factors)
ends(forever)
""",
    "pack": 'ends(lambda: engine.pack(batches(), os.path.join(directory, "new.blco"), shape=shape))',
    "arrays": """
coords = tuple(rng.integers(0, dim, 40_000_000, dtype=np.uint32) for dim in shape)
values = np.ones(40_000_000)
ends(lambda: engine.pack((coords, values), os.path.join(directory, "new.blco"), memory="64MiB"), 0.3)
""",
    "batches": """
def forever():
    while True:
        for coords, values in store.batches():
            pass
ends(forever)
""",
}


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A store that is worked on for a while."""
    directory = tmp_path_factory.mktemp("big")
    tensor = np.random.default_rng(1)
    shape = (3000, 2000, 1000)
    coords = np.stack([tensor.integers(0, dim, 1_000_000) for dim in shape], axis=1)
    blco.pack((coords, tensor.random(len(coords))), directory / "big.blco", shape=shape)
    return directory


@pytest.mark.parametrize("work", [work if work == "cp" else pytest.param(work, marks=pytest.mark.slow) for work in WORK])
def test_an_interrupt_ends_it_and_leaves_nothing(work, big):
    script = INTERRUPTED.replace("{work}", WORK[work])
    # Where this runs in the background, children ignore the signal.
    restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    done = subprocess.run([sys.executable, "-c", script, str(big)], capture_output=True, text=True, timeout=300, preexec_fn=restore)
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stdout + done.stderr


def in_fork(work):
    """What `work` returns or raises in a forked process, which has 20 seconds."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def child():
        try:
            answers.put(work())
        except Exception as error:
            answers.put(f"{type(error).__name__}: {error}")

    process = context.Process(target=child)
    process.start()
    answer = answers.get(timeout=20)
    process.join(20)
    assert process.exitcode == 0
    return answer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_and_a_new_store_works(store, tensor):
    factors = tensor.factors(2)
    expected = store.mttkrp(factors)
    batches = store.batches()
    packer, engine = blco.Packer(store.path + ".new"), blco.Engine(threads=1)
    for work in (
        lambda: store.mttkrp(factors),
        lambda: store.stats,
        lambda: store.cp(2),
        lambda: next(batches),
        lambda: packer.append([[0, 0]], [1.0]),
        lambda: engine.open(store.path),
    ):
        assert "RuntimeError: made in process" in (said := in_fork(work)) and "open the store again" in said
    # What the child drops does not hang it, and is not the parent's.
    assert in_fork(lambda: np.array_equal(blco.open(store.path).mttkrp(factors)[0], expected[0])) is True
    packer.append(tensor.coords, tensor.values)
    assert packer.close().nnz == len(tensor.values)
    assert np.array_equal(store.mttkrp(factors)[0], expected[0])


def _first(store):
    return store.nnz, os.getpid()


def test_a_pool_of_processes(store):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool:
        found = list(pool.map(_first, [store] * 4))
    assert {nnz for nnz, _ in found} == {store.nnz} and os.getpid() not in {pid for _, pid in found}


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_thousand_calls_leak_nothing(tmp_path):
    tensor = Tensor((400, 300, 200), 4000)
    store = blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", shape=tensor.shape)
    factors = tensor.factors(8)
    vector = np.ones(200)

    def calls(count):
        for _ in range(count):
            store.mttkrp(factors)
            store.ttv(vector, 2)
            sum(values.sum() for _, values in store.batches())
            store[3]
            repr(blco.open(store.path).stats)
        gc.collect()

    # MTTKRP's results take 58 KB, TTV's and batches 64 KB and more: a thousand of either that stay would be seen.
    calls(200)
    before = resident()
    calls(1000)
    assert resident() - before < 16 << 20
    threads = threading.active_count(), len(os.listdir("/proc/self/task"))
    calls(20)
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == threads


@pytest.mark.slow
def test_decompositions_and_packs_leak_nothing(tmp_path):
    tensor = Tensor((400, 300, 200), 20_000)

    def calls(count):
        for _ in range(count):
            store = blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", shape=tensor.shape, replace=True)
            store.cp(8, max_iters=2, tol=0)
            with pytest.raises(ValueError):
                store.mttkrp([])
        gc.collect()

    calls(20)
    before = resident()
    calls(60)
    assert resident() - before < 16 << 20


def test_the_lock_is_released(big):
    store = blco.open(big / "big.blco")
    factors = [np.random.default_rng(0).random((dim, 64)) for dim in store.shape]
    done = threading.Event()

    beats = 0

    def work():
        for _ in range(3):
            if beats <= 20:
                store.mttkrp(factors, calls=1)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        beats += 1
    thread.join()
    assert beats > 20, beats


def test_large_factors_are_not_copied(tmp_path):
    """In a process of its own, whose peak is measured: factors and results once, and nothing of their size beside them."""
    script = """
    import resource, sys
    import numpy as np
    import blco
    rows, rank = 1_000_000, 32
    coords = np.random.default_rng(0).integers(0, (rows, 50, 20), (20_000, 3))
    engine = blco.Engine(threads=1, device="cpu")
    store = engine.pack((coords, np.ones(20_000)), sys.argv[1], shape=(rows, 50, 20))
    factors = [np.ones((dim, rank)) for dim in store.shape]
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    before = peak()
    sums = store.mttkrp(factors, 0, calls=1)
    result = rows * rank * 8
    print((peak() - before) / result)
    assert sums.nbytes == result and (peak() - before) < 1.5 * result
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "t.blco")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_logging(tensor, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "blco"):
        store = blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco")
        store.cp(2, max_iters=2)
    said = [record.getMessage() for record in caplog.records if record.name == "blco"]
    assert "packed 400 nonzeros" in said[0] and "CP of rank 2: fit" in said[1]


def test_errors_of_the_system(tensor, tmp_path):
    if os.geteuid() == 0:
        target = "/proc/none.blco"
    else:
        target = "/none.blco"
    with pytest.raises(OSError) as raised:
        blco.pack((tensor.coords, tensor.values), target)
    assert target in str(raised.value) and raised.value.errno and "Errno" not in str(raised.value)


def test_a_signal_handler_that_raises(big):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    store = blco.open(big / "big.blco")
    old = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Alarm):
            store.cp(32, tol=0, max_iters=100_000)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert store[0, 0, 0] >= 0.0


def test_what_is_packed_is_found_by_another_thread(tensor, tmp_path):
    found = []

    def work():
        found.append(same(blco.pack((tensor.coords, tensor.values), tmp_path / "t.blco", shape=tensor.shape), tensor))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


def test_what_waits_for_python_holds_up_nothing(tensor, tmp_path):
    """With one thread: an iterator that is open, a packer, and a callback, while the same engine computes."""
    script = """
    import sys
    import numpy as np
    import blco
    from conftest import Tensor

    tensor = Tensor((200, 150, 100), 300_000)
    factors = tensor.factors(2)
    engine = blco.Engine(threads=1)
    store = engine.pack((tensor.coords, tensor.values), sys.argv[1] + "/t.blco", shape=tensor.shape)
    expected = store.mttkrp(factors, 0)
    same = lambda: np.array_equal(store.mttkrp(factors, 0, calls=1), expected)
    nnz = 0
    with blco.Packer(sys.argv[1] + "/new.blco", shape=tensor.shape, engine=engine) as packer:
        for (coords, values), _ in zip(store.batches(), store.batches()):
            assert same()
            packer.append(coords, values)
            nnz += len(values)
    assert nnz == store.nnz and packer.store.stats["digest"] == store.stats["digest"]
    assert all(store.cp(2, tol=0, max_iters=3, callback=lambda it: same()).fits)
    print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "fine\n", done.stdout + done.stderr
