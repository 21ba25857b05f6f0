"""``python -m benchmarks.scale [head] [states] [grid]``: what ``docs/scale.md`` says, measured on
this machine.

``head`` checks the memory of the head on the meta device, and its time at a smaller size.
``states`` merges states as ``macc merge`` does. ``grid`` has simulated workers ask a PostgreSQL
server for points.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import macc
from benchmarks._timing import best_times
from macc import losses, metrics
from macc.metrics import states as kept

IMAGENET_21K = {"batch": 4096, "features": 2048, "classes": 21_841, "samples": 10}


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of all tensors that operations make, by the largest and in all."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[int] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor) and one._base is None:
                self.made.append(one.numel() * one.element_size())
        return out


def saved_bytes(head: nn.Module, criterion: nn.Module, features: Tensor, labels: Tensor) -> tuple[int, int]:
    """What autograd keeps for the backward pass beside parameters and inputs, and the largest
    tensor.
    """
    kept_storage: dict[int, int] = {}
    own = {parameter.untyped_storage()._cdata for parameter in head.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own | {features.untyped_storage()._cdata}:
            kept_storage[tensor.untyped_storage()._cdata] = tensor.numel() * tensor.element_size()
            alive.append(tensor)
        return tensor

    alive: list[Tensor] = []
    with _Largest() as seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        criterion(head(features), labels)
    return sum(kept_storage.values()), max(seen.made)


def _attached(layer: nn.Module, estimator: str) -> nn.Module:
    return macc.attach(layer, estimator="sampled" if estimator == "sampled" else "analytic")


def head() -> None:
    """Memory at the size of ImageNet-21k without the memory, and time at a smaller size."""
    n, d, k = (IMAGENET_21K[name] for name in ("batch", "features", "classes"))
    criterion = losses.CrossEntropy() + 10 * losses.MACC()
    for share in (1, 8):
        for estimator in ("plain", "analytic", "sampled"):
            with torch.device("meta"):
                rows, columns = n, -(-k // share)
                features = torch.empty(rows, d, requires_grad=True)
                labels = torch.empty(rows, dtype=torch.int64)
                module: nn.Module = nn.Linear(d, columns)
                loss: nn.Module = nn.CrossEntropyLoss()
                if estimator != "plain":
                    module, loss = _attached(module, estimator), criterion
                saved, largest = saved_bytes(module, loss, features, labels)
            print(
                f"{estimator:9} K / {share}: {saved / 2**30:6.2f} GiB kept for the backward pass, "
                f"largest tensor {largest / 2**30:5.2f} GiB"
            )
    torch.manual_seed(0)
    n, d, k = n // 16, d // 4, k // 8
    x, y = torch.randn(n, d).relu().requires_grad_(), torch.randint(0, k, (n,))

    def step(module: nn.Module, loss: nn.Module) -> None:
        loss(module(x), y).backward()

    plain = nn.Linear(d, k)
    candidates = [lambda: step(plain, nn.CrossEntropyLoss())]
    for estimator in ("analytic", "sampled"):
        attached = _attached(nn.Linear(d, k), estimator)
        candidates.append(lambda attached=attached: step(attached, criterion))  # type: ignore[misc]
    base, closed, sampled = best_times(*candidates, repeats=5, clock=time.process_time)
    print(
        f"N {n}, D {d}, K {k}: closed form {closed / base:.2f} x, sampled {sampled / base:.2f} x cross-entropy"
    )


def states(count: int = 10_000, classes: int = 10, rows: int = 1000) -> None:
    """States as of so many machines, and the error of what is merged of them."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths, parts = [], []
        for number in range(20):
            probs = generator.dirichlet(np.ones(classes), rows)
            labels = np.array([generator.choice(classes, p=row) for row in probs])
            parts.append((probs, labels))
            one = metrics.Calibration(classes, intervals=True, seed=number)
            one.update(probs, labels)
            kept.save(one, Path(folder, f"{number}"))
        size = Path(folder, "0").stat().st_size
        memory = sum(part.nbytes for part in one.sums().parts.values())
        for number in range(count):
            path = Path(folder, f"state{number}")
            path.hardlink_to(Path(folder, f"{number % 20}"))
            paths.append(path)
        start, cpu = time.perf_counter(), time.process_time()
        merged = kept.merged(paths)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        whole = metrics.evaluate(
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            resamples=100,
        )
        found = merged.compute()
        error = max(
            abs(found[name] - whole[name].value) for name in ("ece", "sce", "nll", "brier", "accuracy")
        )
    print(
        f"K {classes}: a state takes {size / 1e6:.2f} MB on disk and {memory / 1e6:.1f} MB in memory; {count} merged in "
        f"{wall:.1f} s ({cpu:.1f} s of one processor); largest error of a metric {error:.1e}"
    )


@contextmanager
def server() -> Iterator[str]:
    """The address of a PostgreSQL server of our own, with its own settings; it does not run as
    root.
    """
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    folder = Path(tempfile.mkdtemp(prefix="macc-postgres-", dir="/tmp"))
    prefix = []
    if os.geteuid() == 0:
        prefix = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        shutil.chown(folder, "nobody", "nogroup")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])

    def call(program: str, *arguments: str) -> None:
        command = [*prefix, str(programs / program), "-D", str(folder / "data"), *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)

    try:
        call("initdb", "-U", "macc", "-A", "trust")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://macc@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def grid(points: int = 10_000, workers: int = 64, seconds: float = 30) -> None:
    """How many points a second so many workers can take from a grid and bring back, if training
    took no time.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with server() as address:
        storage = optuna.storages.RDBStorage(
            address, engine_kwargs={"pool_size": workers, "max_overflow": workers}
        )
        study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
        start = time.perf_counter()
        for number in range(points):
            study.enqueue_trial({"weight": number}, user_attrs={"point": {"weight": number}})
        queued = time.perf_counter() - start
        start = time.perf_counter()
        study.get_trials(deepcopy=False)
        listing = time.perf_counter() - start
        done, end = [0] * workers, time.perf_counter() + seconds

        def work(index: int) -> None:
            own = optuna.load_study(
                study_name=study.study_name, storage=storage, sampler=optuna.samplers.RandomSampler()
            )
            while time.perf_counter() < end:
                trial = own.ask()
                trial.suggest_int("weight", 0, points)
                own.tell(trial, 0.5)
                done[index] += 1

        threads = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(
        f"{points} points queued in {queued:.0f} s and listed in {listing:.2f} s; {workers} workers brought back "
        f"{sum(done)} in {seconds:.0f} s: {sum(done) / seconds:.1f} a second"
    )


def main(arguments: list[str]) -> None:
    """Measure the named parts, all by default."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    known = ("head", "states", "grid")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(known)}")
    parser.add_argument("--count", type=int, default=10_000, help="states to merge, and points of the grid")
    given = parser.parse_args(arguments)
    for part in given.parts or known:
        head() if part == "head" else {"states": states, "grid": grid}[part](given.count)


if __name__ == "__main__":
    main(sys.argv[1:])
