"""Every reader of files that strangers may have written, with small sound files for it."""

import hashlib
import io
import json
import random
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import nn

from fuzz import mutations as m
from fuzz.oracle import Reader
from helpers import calibrators, trees
from helpers.made_up_models import made_up
from helpers.predictions import sample, write_csv, write_parquet
from helpers.small_training import own_recipe, tabular
from macc import data, experiments, losses, metrics, posthoc, training
from macc.data._parts import Part
from macc.metrics import states
from macc.models._weights import load_weights
from macc.monitor import Monitor
from macc.monitor.logs import count_log, open_log
from macc.monitor.report import numbers, summary
from macc.predictions import groups, label_files, open_source
from macc.predictions.opening import open_any
from macc.ship import Predictor, files
from macc.training import checkpoints, engine, restoring

NAMES = ("cat", "dog", "owl")
READING = {"logits": False, "label_column": "label"}


def predictions(path: Path, *more: Path) -> None:
    """Read whole and in batches."""
    open_source(path, *more).load()
    for _ in open_source(path, *more).batches():
        pass


def write_npz(folder: Path) -> None:
    probs, labels = sample(n=30, k=3)
    np.savez(folder / "p.npz", probs=probs, labels=labels, classes=np.array(NAMES))


def write_npy(folder: Path) -> None:
    probs, labels = sample(n=30, k=3)
    np.save(folder / "p.npy", probs)
    np.save(folder / "l.npy", labels)


def write_table(folder: Path) -> None:
    probs, labels = sample(n=30, k=3)
    write_csv(folder / "p.csv", probs, [NAMES[k] for k in labels], ["label", *NAMES])


def write_columns(folder: Path) -> None:
    probs, labels = sample(n=30, k=3)
    write_parquet(folder / "p.parquet", probs, labels)


def write_log(folder: Path) -> None:
    probs, labels = sample(n=30, k=3)
    rows = [
        f"2026-01-01T00:{k:02}:00,{NAMES[y]}," + ",".join(map(repr, map(float, p)))
        for k, (p, y) in enumerate(zip(probs, labels, strict=True))
    ]
    (folder / "log.csv").write_text("\n".join(["time,label," + ",".join(NAMES), *rows]) + "\n")


def read_log(folder: Path) -> None:
    source, labelled = open_log(folder / "log.csv", READING, time="time", row_id=None)
    monitor = Monitor(source.num_classes)
    adding = monitor.begin("log")
    count_log(adding, source, time="time", labelled=labelled)
    adding.finish()
    summary(monitor)


def write_groups(folder: Path) -> None:
    """What stands beside predictions: groups of rows, and how often each counts."""
    probs, labels = sample(n=30, k=3)
    sites, weights = np.array(["north", "south"] * 15), np.arange(30) % 4 + 0.5
    np.savez(folder / "g.npz", probs=probs, labels=labels, site=sites, weight=weights)
    rows = [[str(v) for v in row] for row in zip(*probs.T, labels, sites, weights, strict=True)]
    text = [[*"012", "label", "site", "weight"], *rows]
    (folder / "g.csv").write_text("\n".join(map(",".join, text)))
    (folder / "who.csv").write_text("\n".join(["id,site", *(f"{k},{site}" for k, site in enumerate(sites))]))
    import pyarrow as arrow
    from pyarrow import parquet

    columns = {name: [float(p) for p in column] for name, column in zip("012", probs.T, strict=True)}
    beside = {"label": labels.tolist(), "site": sites.tolist(), "weight": weights}
    parquet.write_table(arrow.table(columns | beside), folder / "g.parquet")


def read_groups(folder: Path) -> None:
    for path in sorted(folder.glob("g.*")):
        table = {} if path.suffix == ".npz" else {"class_columns": tuple("012"), "labels_are": "indices"}
        loaded = open_source(path, weight_column="weight", **table).load()
        for second in (None, folder / "who.csv"):
            groups.groups_of(path, loaded, ["site"], second, 30)
        metrics.ece(loaded.scores, loaded.labels, weights=loaded.weights)


def write_maps(folder: Path) -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(3), (2, 4, 4)), rng.integers(0, 3, (2, 4, 4))
    maps = probs.transpose(0, 3, 1, 2)
    np.savez(folder / "m.npz", probs=maps, labels=labels)
    np.save(folder / "m.npy", maps)
    np.save(folder / "l.npy", labels)
    for k in range(2):
        for part, values in (("probs", maps), ("labels", labels)):
            (folder / "maps" / part).mkdir(parents=True, exist_ok=True)
            np.save(folder / "maps" / part / f"{k}.npy", values[k])


def read_maps(folder: Path) -> None:
    for given in ((folder / "m.npz",), (folder / "m.npy", folder / "l.npy"), (folder / "maps",)):
        maps = open_any(*given)
        for batch in maps.batches():
            metrics.Calibration(3).update(batch.scores, batch.labels)


def write_labels(folder: Path) -> None:
    """Several labels of each sample, which do not exclude one another."""
    rng = np.random.default_rng(0)
    probs = rng.random((30, 2))
    labels = (rng.random((30, 2)) < probs).astype(int)
    np.savez(folder / "y.npz", probs=probs, labels=labels)
    rows = [f"{p},{q},{a},{b}" for (p, q), (a, b) in zip(probs, labels, strict=True)]
    (folder / "y.csv").write_text("\n".join(["prob_a,prob_b,label_a,label_b", *rows]))


def read_labels(folder: Path) -> None:
    for path in sorted(folder.glob("y.*")):
        given = label_files.read_labels(path)
        metrics.evaluate_labels(given.scores, given.labels, metrics=["brier"], resamples=100)


def write_calibrators(folder: Path) -> None:
    logits, labels = calibrators.data(60, 3)
    for name in ("Temperature", "VectorScaling", "Isotonic", "Dirichlet"):
        calibrators.fit(name, logits, labels).save(folder / f"{name}.json")
    for name in ("Spline", "Histogram", "VennAbers", "Beta"):
        calibrators.fit(name, logits[:, :2], labels % 2).save(folder / f"{name}.json")
    posthoc.Sets.fit(logits, labels, from_logits=True).save(folder / "sets.json")
    groups = ["north", "south"] * 30
    posthoc.Grouped.fit(logits, labels, groups).save(folder / "grouped.json")


def read_calibrators(folder: Path) -> None:
    for path in sorted(folder.glob("[A-Z]*.json")):
        fitted = posthoc.load(path)
        fitted(torch.zeros(2, fitted.num_classes))
    posthoc.Sets.load(folder / "sets.json")
    posthoc.Grouped.load(folder / "grouped.json")(torch.zeros(2, 3), ["north", "south"])


def write_state(folder: Path) -> None:
    probs, labels = sample(n=60, k=3)
    stream = metrics.Calibration(3, intervals=True, classes=list(NAMES))
    stream.update(probs, labels)
    states.save(stream, folder / "s.npz")


def write_monitor(folder: Path) -> None:
    probs, labels = sample(n=60, k=3)
    monitor = Monitor(3, window="1d")
    monitor.update(probs, labels, 3600.0 * np.arange(60), batch="a")
    monitor.save(folder / "m.json")


def read_monitor(folder: Path) -> None:
    monitor = Monitor.load(folder / "m.json")
    summary(monitor)
    numbers(monitor)
    probs, labels = sample(n=5, k=3)
    monitor.update(probs, labels, 1e7 + np.arange(5.0), batch="next")


@cache
def learner() -> engine.Learner:
    """What a checkpoint is restored to."""
    parts = {name: Part(inputs=inputs, labels=labels) for name, (inputs, labels) in tabular(n=80).items()}
    splits = data.Splits(name="mine", kind="features", classes=NAMES, **parts)
    recipe = own_recipe(epochs=3).resolved()
    model = nn.Linear(6, 3)
    return engine.learner_for(recipe, model, splits, engine.accelerator_for(recipe))


def write_checkpoint(folder: Path) -> None:
    made = learner()
    row = {"epoch": 1, "seconds": 1.0, **{f"val/{name}": 0.5 for name in metrics.headline()}}
    sums = {"loss": 1.0}
    from macc.training.randomness import generator_states

    checkpoint = checkpoints.Checkpoint(
        run="0" * 64,
        epoch=1,
        step=1,
        history=[row],
        model=made.model.state_dict(),
        criterion=made.criterion.state_dict(),
        optimiser={0: {"momentum_buffer": torch.zeros(3, 6)}, 1: {"momentum_buffer": torch.zeros(3)}},
        unfinished=[{"sums": sums, "generators": generator_states()}],
    )
    checkpoints.save(checkpoint, folder)


def seal_checkpoint(folder: Path) -> None:
    place = folder / "1.1"
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in place.iterdir()
        if path.name != "complete"
    }
    (place / "complete").write_text(json.dumps(sums))


def read_checkpoint(folder: Path) -> None:
    checkpoint = checkpoints.read(folder / "1.1", run="0" * 64, processes=1)
    restoring.restore(learner(), checkpoint)


def write_weights(folder: Path) -> None:
    state = nn.Linear(6, 3).state_dict()
    (folder / "w.safetensors").write_bytes(save(state))
    torch.save(state, folder / "w.pth")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)


def read_weights(folder: Path) -> None:
    for name in ("w.safetensors", "w.pth", "old.pt"):
        load_weights(nn.Linear(6, 3), folder / name)


def spoil_about(content: bytes, draw: random.Random) -> bytes:
    """A shipped model that says something else of itself, with a checksum that fits."""
    if draw.random() < 0.2:
        return m.safetensors(content, draw)
    size = int.from_bytes(content[:8], "little")
    about, tensors = json.loads(content[8 : 8 + size])["__metadata__"]["macc"], load(content)
    text = m.json_text(about.encode(), draw).decode("utf-8", "replace")
    if draw.random() < 0.2:
        name = draw.choice(sorted(tensors))
        tensors[name] = draw.choice(
            (tensors[name].half(), tensors[name][:1], tensors[name].long(), torch.zeros(()))
        )
    return save(tensors, metadata={"macc": text, "sha256": files._digest(text, tensors)})


def write_arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 3
    np.savez(folder / "f.npz", features=rng.normal(size=(30, 4)), labels=labels)
    np.savez(folder / "t.npz", tokens=rng.integers(0, 50, (30, 5)), labels=labels, classes=np.array(NAMES))
    np.savez(folder / "i.npz", images=rng.integers(0, 256, (30, 4, 4), dtype=np.uint8), labels=labels)


def write_arrow(folder: Path) -> None:
    import pyarrow as arrow
    from PIL import Image
    from pyarrow import parquet

    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "png")
    labels = [NAMES[k % 3] for k in range(30)]
    images = [{"bytes": buffer.getvalue(), "path": None}] * 30
    parquet.write_table(arrow.table({"image": images, "label": labels}), folder / "i.parquet")
    features = [[float(k), 1.0] for k in range(30)]
    parquet.write_table(arrow.table({"features": features, "label": labels}), folder / "f.parquet")


def read_every(pattern: str, scheme: str):
    def read(folder: Path) -> None:
        for path in sorted(folder.glob(pattern)):
            data.load(f"{scheme}:{path}").digest()

    return read


def write_images(folder: Path) -> None:
    for name in NAMES[:2]:
        for k in range(6):
            trees.write_image(folder / "images" / name / f"{k}.png", 40 * k, side=4)
    trees.write_image(folder / "images" / "cat" / "x.jpg", 9, side=4)


def write_archives(folder: Path) -> None:
    write_images(folder)
    found = sorted((folder / "images").rglob("*.*g"))
    with zipfile.ZipFile(folder / "a.zip", "w") as packed, tarfile.open(folder / "a.tar.gz", "w:gz") as tar:
        for path in found:
            packed.write(path, path.relative_to(folder))
            tar.add(path, path.relative_to(folder))
            path.unlink()


def of_set(name: str):
    return lambda folder: data.load(name, root=folder, verify=False)


def every(*readers):
    def read(folder: Path) -> None:
        for each in readers:
            each(folder)

    return read


def recipe_files(folder: Path) -> None:
    for name in ("digits", "cifar10"):
        (folder / f"{name}.yaml").write_text(
            Path(training.__file__).parents[1].joinpath("recipes", f"{name}.yaml").read_text()
        )


def experiment_files(folder: Path) -> None:
    for name in ("demo", "demo_search"):
        place = Path(experiments.__file__).parent / "files" / f"{name}.yaml"
        (folder / f"{name}.yaml").write_text(place.read_text())


def write_losses(folder: Path) -> None:
    (folder / "loss.txt").write_text("Focal(gamma=3) + 10*MACC(warmup=8) + 0.5 * MMCE(weighted=False)")


READERS = {
    "npz": Reader(write_npz, lambda at: predictions(at / "p.npz"), {"*.npz": m.zipped(m.npy)}),
    "npy": Reader(write_npy, lambda at: predictions(at / "p.npy", at / "l.npy"), {"*.npy": m.npy}),
    "csv": Reader(write_table, lambda at: predictions(at / "p.csv"), {"*.csv": m.text}),
    "parquet": Reader(write_columns, lambda at: predictions(at / "p.parquet"), {"*.parquet": m.parquet}),
    "groups": Reader(
        write_groups,
        read_groups,
        {"*.npz": m.zipped(m.npy), "*.csv": m.text, "*.parquet": m.parquet},
    ),
    "maps": Reader(write_maps, read_maps, {"*.npz": m.zipped(m.npy), "*.npy": m.npy}),
    "labels": Reader(write_labels, read_labels, {"*.npz": m.zipped(m.npy), "*.csv": m.text}),
    "log": Reader(write_log, read_log, {"*.csv": m.text}),
    "recipe": Reader(
        recipe_files,
        lambda at: [training.load(path) for path in sorted(at.glob("*.yaml"))],
        {"*.yaml": m.text},
    ),
    "experiment": Reader(
        experiment_files,
        lambda at: [experiments.load(path) for path in sorted(at.glob("*.yaml"))],
        {"*.yaml": m.text},
    ),
    "loss": Reader(
        write_losses,
        lambda at: losses.parse((at / "loss.txt").read_bytes().decode("utf-8", "surrogateescape")),
        {"loss.txt": m.text},
    ),
    "calibrator": Reader(write_calibrators, read_calibrators, {"*.json": m.json_text}),
    "state": Reader(
        write_state, lambda at: states.load(at / "s.npz").report(resamples=100), {"*.npz": m.zipped(m.npy)}
    ),
    "monitor_state": Reader(write_monitor, read_monitor, {"*.json": m.json_text}),
    "checkpoint": Reader(
        write_checkpoint,
        read_checkpoint,
        {"state.json": m.json_text, "*.safetensors": m.safetensors},
        seal_checkpoint,
    ),
    "checksums": Reader(write_checkpoint, read_checkpoint, {"complete": m.json_text}),
    "weights": Reader(
        write_weights,
        read_weights,
        {"*.safetensors": m.safetensors, "w.pth": m.zipped(m.bytes_of), "old.pt": m.bytes_of},
    ),
    "predictor": Reader(
        lambda at: Predictor(made_up()).save(at / "p.safetensors"),
        lambda at: Predictor(files.read(at / "p.safetensors"))(torch.zeros(2, 5)),
        {"*.safetensors": spoil_about},
    ),
    "arrays": Reader(write_arrays, read_every("*.npz", "arrays"), {"*.npz": m.zipped(m.npy)}),
    "arrow": Reader(write_arrow, read_every("*.parquet", "arrays"), {"*.parquet": m.parquet}),
    "folder": Reader(write_images, read_every("images", "folder"), {"*.png": m.png, "*.jpg": m.bytes_of}),
    "archive": Reader(
        write_archives,
        every(read_every("*.zip", "folder"), read_every("*.tar.gz", "folder")),
        {"*.zip": m.zipped(m.png), "*.tar.gz": m.tarred(m.png)},
    ),
    "mat": Reader(lambda at: trees.write_svhn(at, 10, 10), of_set("svhn"), {"*.mat": m.mat}),
    "pickle": Reader(
        lambda at: trees.write_cifar10(at, 3), of_set("cifar10"), {"*_batch*": m.pickled, "*.meta": m.pickled}
    ),
    "idx": Reader(trees.write_fashion, of_set("fashion_mnist"), {"*.gz": m.gzipped}),
}
