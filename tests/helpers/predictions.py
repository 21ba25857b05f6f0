"""Predictions of a calibrated model, and the files that people keep predictions in."""

import io
import json
import zipfile

import numpy as np


def sample(n=400, k=5, scale=2.0, seed=0, dtype=np.float64):
    """Probabilities, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * scale
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(k, p=row) for row in probs])
    return probs.astype(dtype), labels


def write_csv(path, probs, labels, header):
    rows = [",".join([str(y), *(repr(float(p)) for p in row)]) for row, y in zip(probs, labels, strict=True)]
    path.write_text("\n".join([",".join(header), *rows]) + "\n")


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def sharpened(rows, classes=3, *, seed=0, sharpen=1.7):
    """Predictions that are right as often as they were sure before they were sharpened."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 1.5
    probs = np.exp(logits)
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random((rows, 1))).sum(1).clip(max=classes - 1)
    probs = probs**sharpen
    return probs / probs.sum(1, keepdims=True), labels


def write_parquet(path, probs, labels, names=("cat", "dog", "owl"), **options):
    """A column for each class, and the labels."""
    import pyarrow as arrow
    from pyarrow import parquet

    columns = {name: probs[:, j] for j, name in enumerate(names)}
    parquet.write_table(arrow.table({**columns, "label": labels}), path, **options)


def certain(labels, num_classes=3):
    """Predictions that are all right."""
    return np.eye(num_classes)[labels] * 0.7 + 0.1


def accuracy(path):
    """The accuracy that ``--json`` has written."""
    return json.loads(path.read_text())["accuracy"]["value"]
