"""What tools/soak.py does in turn: each function is a case, which raises `Failed` where a program does what it must not."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import soak_tensor as tensors
from soak_run import Case, fingerprint
from soak_tensor import Tensor

ERRORS = ("5", "28", "12", "24", "short")  # EIO, ENOSPC, ENOMEM, EMFILE, half a transfer
CALLS = ("any", "open", "read", "write", "sync", "rename", "remove", "spawn", "allocate")


# -- inputs -----------------------------------------------------------------------------------------------------------


def store_options(rng: Random, order: int) -> list[str]:
    """How a store is written: what its bytes depend on."""
    if rng.random() < 0.5:
        options = ["--format", "blco", "--encoding", rng.choice(("tiled", "tiled", "raw"))]
    else:
        leaf = rng.choice(("csr", "ell", "auto"))
        options = ["--format", "hocfs", "--main-mode", str(rng.randint(1, order)), "--slice", leaf]
    if rng.random() < 0.3:
        options += ["--zstd", str(rng.choice((1, 3, 9)))]
    return options + ["--chunk-bytes", rng.choice(("64KiB", "256KiB", "8MiB"))]


def packing(rng: Random) -> list[str]:
    """How it is made: what its bytes do not depend on."""
    options = ["--threads", str(rng.randint(1, 5)), "--quiet"]
    options += rng.choice(([], ["--memory", "0"], ["--memory", "512MiB"]))
    return options + rng.choice(([], ["--temp-dir", "spill"]))


def running(rng: Random) -> list[str]:
    """How a store is streamed: what results do not depend on."""
    options = ["--backend", "cpu", "--quiet", "--threads", str(rng.randint(1, 5))]
    options += rng.choice(([], ["--workers", str(rng.randint(1, 5))]))
    return options + rng.choice(([], [], ["--direct"]))


def small_tensor(case: Case) -> tuple[Tensor, list[str]]:
    """A random tensor as in/t.tns, and how that is read."""
    tensor = tensors.random_tensor(case.rng)
    name = case.rng.choice(("t.tns", "t.tns", "t.tns.gz"))
    options = tensors.write_text(tensor, case.path("in", name), case.rng)
    case.soak.count("tensors", f"order {tensor.order}")
    case.soak.count("values", tensor.kind)
    case.soak.count("nonzeros", n=len(tensor.rows))
    return tensor, [f"in/{name}", *options]


def large_tensor(case: Case, name: str = "in/t.tns", most: int = 300_000) -> int:
    """A generated one that takes programs long enough to be disturbed: its order."""
    rng = case.rng
    order = rng.randint(2, 6)
    dims = ",".join(str(rng.randint(2, rng.choice((50, 3000)))) for _ in range(order))
    nnz, skew = rng.randint(30_000, most), rng.choice(("1", "2", "3"))
    values = rng.choice(("1", "1..5", "uniform", "-3..3"))
    case.run("blco-gen", "--dims", dims, "--nnz", str(nnz), "--skew", skew, "--values", values, "--seed", str(rng.randrange(1000)), name, "--quiet")
    case.soak.count("tensors", f"order {order}, generated")
    case.soak.count("nonzeros", n=nnz)
    return order


def pack_small(case: Case) -> tuple[Tensor, str, list[str]]:
    """A random tensor, packed as in/s: with the policy for duplicates and all that the store's bytes depend on."""
    tensor, reading = small_tensor(case)
    rng = case.rng
    duplicates = rng.choice(("sum", "keep") if tensor.kind in tensors.EXACT else ("sum", "keep", "error"))
    options = [*store_options(rng, tensor.order), "--duplicates", duplicates]
    case.run("blco-pack", *reading, "-o", "in/s", *options, *packing(rng))
    return tensor, duplicates, options


def expect(case: Case, same: bool, what: str) -> None:
    case.soak.count("comparisons")
    if not same:
        case.fail(what)


# -- undisturbed ------------------------------------------------------------------------------------------------------


def pack(case: Case) -> None:
    """Equal tensors and options give equal bytes, however they are packed; export gives the tensor back."""
    tensor, duplicates, options = pack_small(case)
    rng = case.rng
    order = list(range(len(tensor.rows)))
    rng.shuffle(order)
    again = Tensor(tensor.dims, [tensor.rows[i] for i in order], [tensor.values[i] for i in order], tensor.kind, True)
    reading = tensors.write_text(again, case.path("in", "again.tns"), rng)
    case.run("blco-pack", "in/again.tns", *reading, "-o", "out/s", *options, *packing(rng))
    case.check_names({"out/s"}, "after a pack")
    expect(case, fingerprint(case.path("in/s")) == fingerprint(case.path("out/s")), "stores differ")
    case.run("blco-info", "out/s", "--verify", "--quiet")
    case.run("blco-info", "in/s", "--storage", "--storage-dir", "spill", "--quiet")
    wanted = tensor.nonzeros(duplicates)
    threads = ["--threads", str(rng.randint(1, 5)), "--quiet"]
    case.run("blco-export", "in/s", "out/t.tns", *threads)
    text = case.path("out/t.tns").read_text()
    expect(case, tensors.read_text(text) == wanted, "text that is exported is another tensor")
    expect(case, case.run("blco-export", "out/s", "-").out == text, "exports differ")
    case.run("blco-export", "in/s", "out/t.npz", *threads)
    found, dims = tensors.read_npz(case.path("out/t.npz"))
    expect(case, found == wanted, "the archive that is exported is another tensor")
    expect(case, dims == tensor.dims, f"dims {dims}, not {tensor.dims}")
    case.check_names({"out/s", "out/t.tns", "out/t.npz"}, "after exports")


def mttkrp(case: Case) -> None:
    """Results lie within their bound and have the same bits for any threads, workers, memory and modes."""
    tensor, _, _ = pack_small(case)
    if not tensor.is_dense_enough:
        return
    rng = case.rng
    rank, precision = rng.choice((1, 3, 8, 16, 17)), rng.choice(("f64", "f32"))
    factors = tensors.random_factors(tensor, rank, rng, case.path("in/a"))
    common = ["in/s", "--factors", "in/a", "--precision", precision]
    case.run("blco-run", *common, "--output", "out/m", *running(rng))
    wanted = fingerprint(case.path("out/m"))
    expect(case, len(wanted) == tensor.order, f"results {sorted(wanted)}")
    mode = rng.randrange(tensor.order)
    result = case.path("out/m", f"mode-{mode + 1}.npy").read_bytes()
    if tensor.kind != "single" and precision == "f32":
        problem = None  # values are rounded on the way: the bound holds for values that f32 holds
    else:
        problem = tensors.mttkrp_problem(tensor, factors, rank, mode, result, precision)
    expect(case, problem is None, str(problem))
    again = ["blco-run", *common, "--output", "out/again", *running(rng), "--memory"]
    ended = case.run(*again, rng.choice(("64MiB", "1GiB")), allowed=(0, 2))
    if ended.status == 2:
        least = re.search(r"needs at least ([0-9.]+) (MiB|TiB)", ended.err)
        expect(case, least is not None, f"within --memory: {ended.err}")
        case.run(*again, least[1] + least[2])
    expect(case, fingerprint(case.path("out/again")) == wanted, "results differ")
    case.run("blco-run", *common, "--output", "out/one", "--modes", str(mode + 1), *running(rng))
    one = fingerprint(case.path("out/one"))
    expect(case, one == {f"mode-{mode + 1}.npy": wanted[f"mode-{mode + 1}.npy"]}, f"mode {mode + 1} alone differs")
    case.check_names({"out/m", "out/again", "out/one"}, "after runs")


def ttv(case: Case) -> None:
    """The same of TTV along each mode."""
    tensor, duplicates, _ = pack_small(case)
    if not tensor.is_dense_enough:
        return
    rng = case.rng
    mode = rng.randrange(tensor.order)
    vector = [tensors.VALUES["single"](rng) for _ in range(tensor.dims[mode])]
    tensors.write_npy(case.path("in/x.npy"), (len(vector),), vector)
    common = ["in/s", "--op", "ttv", "--modes", str(mode + 1), "--vector", "in/x.npy"]
    case.run("blco-run", *common, "--output", "out/y", *running(rng))
    text = case.path("out/y/result.tns").read_text()
    problem = tensors.ttv_problem(tensor, vector, mode, text)
    expect(case, problem is None, str(problem))
    small = rng.choice(([], ["--memory", "64MiB", "--temp-dir", "spill"]))
    expect(case, case.run("blco-run", *common, "--output", "-", *running(rng), *small).out == text, "elements differ")
    case.check_names({"out/y"}, "after TTV")


def cpd(case: Case) -> None:
    """A decomposition has the same bits for any threads, and however often it is killed and resumed from its checkpoint."""
    rng = case.rng
    large_tensor(case, most=60_000)
    case.run("blco-pack", "in/t.tns", "-o", "in/s", *store_options(rng, 2), *packing(rng))
    common = ["in/s", "--rank", str(rng.randint(1, 6)), "--max-iters", "12", "--tol", "0", "--seed", str(rng.randrange(99))]
    common += rng.choice(([], ["--nonneg"])) + rng.choice(([], ["--precision", "f32"]))
    started = time.monotonic()
    case.run("blco-cpd", *common, "--output", "out/a", *running(rng))
    seconds = time.monotonic() - started
    wanted = fingerprint(case.path("out/a"))
    checkpointing = [*common, "--output", "out/b", "--checkpoint", "out/c", "--every", "1"]
    for _ in range(rng.randint(1, 4)):
        resume = ["--resume"] if case.path("out/c").exists() and any(case.path("out/c").iterdir()) else []
        if case.path("out/b").exists():
            break
        name = rng.choice(("KILL", "KILL", "TERM", "INT"))
        # Status 2: the one before was killed before its first checkpoint, and there is nothing to resume.
        ended = kill(case, name, seconds * 1.1, "blco-cpd", *checkpointing, *resume, *running(rng), also=(2,) if resume else ())
        case.soak.count("kills", "cpd with checkpoints", f"SIG{name}", str(ended))
    if not case.path("out/b").exists():
        has = case.run("blco-cpd", *checkpointing, "--resume", *running(rng), allowed=(0, 2))
        if has.status == 2:
            case.run("blco-cpd", *checkpointing, *running(rng))
    expect(case, fingerprint(case.path("out/b")) == wanted, "a decomposition that was resumed differs")
    score = json.loads(case.run("blco-cpd", "--score", "out/a", "out/b", "--json").out)["score"]
    expect(case, score > 1 - 1e-6, f"the score of equal models is {score}")
    case.check_names({"out/a", "out/b", "out/c"}, "after decompositions")


def repair(case: Case) -> None:
    """Damage is found, and what is intact is saved: nothing that was not in the tensor."""
    tensor, duplicates, _ = pack_small(case)
    rng = case.rng
    files = sorted(path for path in case.path("in/s").iterdir() if path.name != "provenance.json")
    damaged = rng.choice(files)
    data = bytearray(damaged.read_bytes())
    how = rng.choice(("flip", "flip", "cut", "remove"))
    if how == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[rng.randrange(len(data)) :]
    damaged.unlink()
    if how != "remove":
        damaged.write_bytes(data)
    case.soak.count("damage", how, "manifest" if damaged.name == "manifest" else "chunk")
    verified = case.run("blco-info", "in/s", "--verify", "--quiet", allowed=(1, 2))
    wanted = tensor.nonzeros(duplicates)
    exported = case.run("blco-export", "in/s", "out/t.tns", "--quiet", allowed=(0, 2))
    if exported.status == 0:
        expect(case, tensors.read_text(case.path("out/t.tns").read_text()) == wanted, f"{verified.out}: damage is exported")
    case.clear("out")
    saved = case.run("blco-info", "in/s", "--repair", "out/s", "--quiet", allowed=(0, 1, 2))
    if saved.status == 2:
        case.check_names(set(), "after a repair that failed")
        return
    case.check_names({"out/s"}, "after a repair")
    case.run("blco-info", "out/s", "--verify", "--quiet")
    found = tensors.read_text(case.run("blco-export", "out/s", "-").out)
    expect(case, found <= wanted, "a repaired store holds what the tensor does not")
    expect(case, saved.status == 1 or found == wanted, "nonzeros are lost and nobody says so")


# -- disturbed --------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A program that writes `target`, and the same with other inputs."""

    kind: str
    program: str
    args: list[str]
    old: list[str]
    target: str
    replaces: bool = False
    #: What it must leave: filled in by an undisturbed run.
    before: object = None
    after: object = None
    seconds: float = 0.0


def random_job(case: Case) -> Job:
    """With large inputs, measured undisturbed."""
    rng = case.rng
    order = large_tensor(case)
    large_tensor(case, "in/other.tns", 31_000)
    options, packed = store_options(rng, 2), packing(rng)
    kind = rng.choice(("pack", "pack", "run", "ttv", "cpd", "export", "gen", "repair"))
    if kind in ("run", "ttv", "cpd", "export", "repair"):
        for name, store in (("t", "s"), ("other", "other")):
            case.run("blco-pack", f"in/{name}.tns", "-o", f"in/{store}", *options, "--quiet")
    seeds, streamed = ["--seed", str(rng.randrange(99))], running(rng)
    along, memory = str(rng.randint(1, order)), ["--memory", rng.choice(("8MiB", "24MiB"))]
    if kind == "ttv" and case.run("blco-run", "in/s", "--op", "ttv", "--modes", along, *memory, *streamed, allowed=(0, 2)).status:
        memory = []  # refused: less than it takes
    job = {
        "pack": lambda: Job(kind, "blco-pack", ["in/t.tns", *options, *packed], ["in/other.tns"], "out/x"),
        "run": lambda: Job(kind, "blco-run", ["in/s", *seeds, *streamed], ["in/other"], "out/x"),
        "ttv": lambda: Job(
            kind,
            "blco-run",
            ["in/s", "--op", "ttv", "--modes", along, *memory, *streamed],
            ["in/other", "--op", "ttv", "--modes", "1"],
            "out/x",
        ),
        "cpd": lambda: Job(kind, "blco-cpd", ["in/s", "--rank", "4", "--max-iters", "5", *streamed], ["in/other", "--rank", "3", "--max-iters", "1"], "out/x"),
        "export": lambda: Job(kind, "blco-export", ["in/s"], ["in/other"], rng.choice(("out/x.tns", "out/x.npz"))),
        "gen": lambda: Job(kind, "blco-gen", ["--dims", "300,200,100", "--nnz", "200000"], ["--dims", "3,3", "--nnz", "9"], rng.choice(("out/x.tns", "out/x.blco"))),
        "repair": lambda: Job(kind, "blco-info", ["in/s"], ["in/other"], "out/x"),
    }[kind]()
    job.replaces = rng.random() < 0.4
    started = time.monotonic()
    case.run(*command(job))
    job.seconds = time.monotonic() - started
    job.after = fingerprint(case.path(job.target))
    if job.replaces:
        case.clear("out")
        case.run(*command(job, old=True))
        job.before = fingerprint(case.path(job.target))
    return job


def command(job: Job, old: bool = False) -> list[str]:
    """The program with its arguments."""
    args = job.old if old else job.args
    place = {"blco-info": ["--repair", job.target], "blco-export": [job.target], "blco-gen": [job.target]}
    return [job.program, *args, *place.get(job.program, ["-o" if job.program == "blco-pack" else "--output", job.target])]


def prepare(case: Case, job: Job) -> list[str]:
    """Puts there what is to be replaced, and gives the command."""
    case.clear("out", "tmp", "spill")
    if job.replaces:
        case.run(*command(job, old=True))
    return command(job) + (["--force"] if job.replaces else [])


def inspect(case: Case, job: Job, status: int, how: str) -> str:
    """What a program that was disturbed has left: the old output or the new, and nothing else unless it was killed."""
    found = fingerprint(case.path(job.target))
    case.soak.count("comparisons")
    if found not in (job.before, job.after):
        case.fail(f"{how}: {job.target} is neither what was there nor what was to come")
    if status == 0 and found != job.after:
        case.fail(f"{how}: success without the result")
    if status != -signal.SIGKILL:
        case.check_names({job.target} if found is not None else set(), how)
    return "new" if found == job.after else "absent" if found is None else "old"


def finish(case: Case, job: Job, how: str) -> None:
    """After SIGKILL: the job is done again, or resumed, with the same result, and nothing is left."""
    there = fingerprint(case.path(job.target)) is not None
    again = command(job)
    if job.kind == "pack" and not job.replaces:
        unfinished = case.path("out/x.partial").exists()
        ended = case.run(*again, allowed=(0, 2))
        if ended.status == 2 and unfinished:
            case.run(*again, case.rng.choice(("--resume", "--force")))
        elif ended.status == 2 and there:
            case.run(*again, "--force")
        elif ended.status == 2:
            case.fail(f"{how}: packing again: {ended.err}")
    else:
        case.run(*again, *(["--force"] if there or job.kind == "pack" else []))
    expect(case, fingerprint(case.path(job.target)) == job.after, f"{how}: done again, the result differs")
    case.check_names({job.target}, f"{how}: done again")


def kill(case: Case, name: str, within: float, *words: str, also: tuple[int, ...] = ()) -> int:
    """Sends SIG`name` to a program at some moment: its exit status."""
    number = getattr(signal, f"SIG{name}")
    started = case.start(*words)
    time.sleep(case.rng.uniform(0, within))
    started.process.send_signal(number)
    if name != "KILL" and case.rng.random() < 0.2:
        time.sleep(case.rng.uniform(0, 0.02))
        started.process.send_signal(number)
    # Before a program has set its handlers, the signal ends it.
    allowed = (0, -number) if name == "KILL" else (0, 130, -number)
    return case.finish(started, (*allowed, *also)).status


def kills(case: Case) -> None:
    """Signals at random moments."""
    job = random_job(case)
    for _ in range(5):
        words, name = prepare(case, job), case.rng.choice(("KILL", "KILL", "TERM", "INT", "HUP"))
        status = kill(case, name, 1.1 * job.seconds, *words)
        left = inspect(case, job, status, f"SIG{name}")
        case.soak.count("kills", job.kind, f"SIG{name}", left)
        if status == -signal.SIGKILL:
            finish(case, job, f"SIG{name}")


def ignored_signals(case: Case) -> None:
    """A signal that is inherited as ignored stays ignored."""
    job = random_job(case)
    words, name = prepare(case, job), case.rng.choice(("HUP", "INT", "TERM"))
    number = getattr(signal, f"SIG{name}")
    started = case.start(*words, ignored=number)
    for _ in range(3):
        time.sleep(case.rng.uniform(0, job.seconds / 3))
        started.process.send_signal(number)
    inspect(case, job, case.finish(started, (0,)).status, f"SIG{name}, ignored")
    case.soak.count("kills", job.kind, f"SIG{name} ignored", "new")


def faults(case: Case) -> None:
    """The n-th call of a kind fails."""
    job = random_job(case)
    for _ in range(6):
        # What a medium has lost, a repair reports and does without.
        errors = ERRORS[1:] if job.kind == "repair" else ERRORS
        call, error = case.rng.choice(CALLS), case.rng.choice(errors)
        nth = int(1.6 ** case.rng.uniform(0, 12)) - 1
        how = f"{call}:{nth}:{error}"
        ended = case.run(*prepare(case, job), env={"BLCO_FAULT": how}, allowed=(0, 2))
        left = inspect(case, job, ended.status, f"BLCO_FAULT={how}")
        came = "did not come" if "no such call" in ended.err else f"status {ended.status}"
        case.soak.count("faults", call, f"{came}, {left}")


@contextmanager
def small_disk(case: Case, kib: int):
    """`out` on a file system of its own, if one may be mounted: whether it is."""
    out = str(case.path("out"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "soak", out]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", out], check=True, capture_output=True)


def full_disks(case: Case) -> None:
    """A disk, or what one file may hold, is too small for what is written; or is large enough."""
    job = random_job(case)
    for _ in range(3):
        kib = int(2 ** case.rng.uniform(6, 14))
        if case.rng.random() < 0.6:
            case.clear("out", "tmp", "spill")
            with small_disk(case, kib) as mounted:
                if mounted:
                    before, job.before = job.before, None
                    ended = case.run(*command(job), allowed=(0, 2))
                    left = inspect(case, job, ended.status, f"a disk of {kib} KiB")
                    job.before = before
                    case.soak.count("full disks", job.kind, f"status {ended.status}, {left}")
                    continue
        ended = case.run(*prepare(case, job), limits={"fsize": kib << 10}, allowed=(0, 2))
        left = inspect(case, job, ended.status, f"files of at most {kib} KiB")
        case.soak.count("file size limits", job.kind, f"status {ended.status}, {left}")


def starving(case: Case) -> None:
    """Little memory, few open files: success or one line."""
    job = random_job(case)
    for _ in range(4):
        words, how = prepare(case, job), case.rng.choice(("as", "as", "nofile", "memory"))
        limits = {}
        if how == "memory":
            # An option that is given twice is an error; export and gen of text have none.
            words = [w for i, w in enumerate(words) if w != "--memory" and words[i - 1] != "--memory"]
            if job.kind in ("pack", "run", "ttv", "cpd", "repair"):
                words += ["--memory", f"{int(2 ** case.rng.uniform(0, 8))}MiB"]
        elif how == "nofile":
            limits = {how: case.rng.randint(8, 40)}
        else:
            limits = {how: (case.soak.bin / job.program).stat().st_size + (int(2 ** case.rng.uniform(5, 10)) << 20)}
        ended = case.run(*words, limits=limits, allowed=(0, 2))
        left = inspect(case, job, ended.status, f"{how} {limits}")
        case.soak.count("starved", f"{job.kind}, {how}", f"status {ended.status}, {left}")


def readers(case: Case) -> None:
    """Whoever reads while others replace reads the old or the new, whole; of two writers one may be refused."""
    rng = case.rng
    texts = {}
    for name in ("t", "other"):
        large_tensor(case, f"in/{name}.tns", 60_000)
        case.run("blco-pack", f"in/{name}.tns", "-o", "out/s", "--force", "--quiet")
        texts[case.run("blco-export", "out/s", "-").out] = fingerprint(case.path("out/s"))
    writers = []
    until = time.monotonic() + 4
    while time.monotonic() < until:
        for writer in [writer for writer in writers if writer.process.poll() is not None]:
            case.finish(writer, (0, 2))
            writers.remove(writer)
        while len(writers) < 2:
            name = rng.choice(("t", "other"))
            writers.append(case.start("blco-pack", f"in/{name}.tns", "-o", "out/s", "--force", *packing(rng)))
        if rng.random() < 0.5:
            expect(case, case.run("blco-export", "out/s", "-").out in texts, "a reader read neither store")
        else:
            case.run("blco-info", "out/s", "--verify", "--quiet")
        case.soak.count("reads while replaced")
    for writer in writers:
        case.finish(writer, (0, 2))
    expect(case, fingerprint(case.path("out/s")) in texts.values(), "a store is neither one nor the other")
    case.run("blco-pack", "in/t.tns", "-o", "out/s", "--force", "--quiet")
    case.check_names({"out/s"}, "after readers and writers")


def two_writers(case: Case) -> None:
    """Two programs that write one result: it is one's or the other's, never of both."""
    job = random_job(case)
    job.replaces = True
    case.clear("out")
    case.run(*command(job, old=True))
    job.before = fingerprint(case.path(job.target))
    case.clear("out", "tmp", "spill")
    for _ in range(3):
        both = [command(job), command(job, old=True)]
        case.rng.shuffle(both)
        there = case.path(job.target).exists()
        force = ["--force"] if there else []
        started = [case.start(*words, *force) for words in both]
        ended = [case.finish(one, (0, 2)).status for one in started]
        inspect(case, job, 2, "two writers")
        expect(case, 0 in ended or there, "two writers, and neither succeeded")
        case.soak.count("two writers", job.kind, "both" if ended == [0, 0] else "one" if 0 in ended else "none")


def changing_input(case: Case) -> None:
    """A text that grows or shrinks while it is packed: refused, or packed as it was at one moment."""
    large_tensor(case)
    rng = case.rng
    text = case.path("in/t.tns").read_bytes()
    lines = text.splitlines(keepends=True)
    if rng.random() < 0.5:
        changed = text + lines[rng.randrange(len(lines))] * rng.randint(1, 2000)
    else:
        changed = b"".join(lines[: rng.randrange(1, len(lines))])
    case.path("in/changed.tns").write_bytes(changed)
    wanted, options, seconds = [], store_options(rng, 2), 0.0
    for name in ("t", "changed"):
        started = time.monotonic()
        case.run("blco-pack", f"in/{name}.tns", "-o", "out/x", *options, "--quiet", "--force")
        seconds = max(seconds, time.monotonic() - started)
        wanted.append(fingerprint(case.path("out/x")))
    case.clear("out")
    words = ["blco-pack", "in/t.tns", "-o", "out/x", *options, *packing(rng)]
    packer = case.start(*words)
    time.sleep(rng.uniform(0, seconds))
    with case.path("in/t.tns").open("r+b") as file:
        if len(changed) > len(text):
            file.seek(len(text))
            file.write(changed[len(text) :])
        else:
            file.truncate(len(changed))
    ended = case.finish(packer, (0, 2))
    found = fingerprint(case.path("out/x"))
    expect(case, found in wanted if ended.status == 0 else found is None, f"status {ended.status}: a store of an input that changed")
    case.check_names({"out/x"} if found else set(), "after an input that changed")
    case.soak.count("inputs that changed", f"status {ended.status}")


#: Each with how often it comes.
CASES = [
    (pack, 4),
    (mttkrp, 3),
    (ttv, 3),
    (cpd, 1),
    (repair, 3),
    (kills, 4),
    (ignored_signals, 1),
    (faults, 3),
    (full_disks, 2),
    (starving, 2),
    (readers, 1),
    (two_writers, 1),
    (changing_input, 1),
]
