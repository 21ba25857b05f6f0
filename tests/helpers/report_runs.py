"""Small finished runs for tests of figures and reports: digits, two epochs, everything
predicted.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np

from macc import training

HOSTILE = "<script>window.hacked = 1</script>"
IMAGE = '"><img src=x onerror="window.hacked = 2">'


@functools.cache
def folder():
    """Kept for the session."""
    path = tempfile.mkdtemp(prefix="macc-report-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def digits_runs():
    """A run without and one with MACC, both with a head, with moments, epochs and shifted sets."""
    found = []
    for loss in ("CrossEntropy", "CrossEntropy + 5*MACC(warmup=10)"):
        recipe = training.load(
            "digits",
            scale="smoke",
            loss=loss,
            overrides=["epochs=2", "head.p=0.2", 'epoch_predictions=["test"]'],
        )
        run = training.fit(recipe, out=folder())
        training.predict(run, data="digits", moments=True)
        training.predict(run, moments=True)
        found.append(run.path)
    return tuple(found)


@functools.cache
def plain_run():
    """A run without a head, without predictions of epochs or shifted sets."""
    recipe = training.load("digits", scale="smoke", loss="CrossEntropy", overrides=["epochs=1"])
    return training.fit(recipe, out=folder()).path


def hostile_run(folder: Path) -> Path:
    """A run on images whose classes are called what an attacker would call them."""
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = generator.integers(0, 80, (120, 8, 8, 3)).astype(np.uint8)
    images[np.arange(120), :, labels * 2] += 60
    np.savez(
        folder / "evil.npz", images=images, labels=labels, classes=np.array([HOSTILE, IMAGE, r"$\frac{"])
    )
    recipe = training.load(
        "digits",
        scale="smoke",
        loss="CrossEntropy",
        overrides=[f"dataset=arrays:{folder / 'evil.npz'}", "epochs=1", "batch_size=16"],
    )
    return training.fit(recipe, out=folder / "runs").path


def hostile_csv(folder: Path) -> Path:
    """A file of predictions with such a name and such columns."""
    path = folder / "<img src=x onerror=alert(3)>.csv"
    rows = ["0.7,0.2,0.1,0", "0.1,0.8,0.1,1", "0.2,0.5,0.3,2", "0.3,0.3,0.4,2"] * 10
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (HOSTILE, IMAGE, r"$\frac{")]
    path.write_text("\n".join([",".join([*quoted, "label"]), *rows]) + "\n")
    return path
