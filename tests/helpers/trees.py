"""Small files in the layouts that published data sets come in."""

import gzip
import io
import pickle
import shutil
import struct
import tarfile

import numpy as np

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS_DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
GROUPS = tuple(f"group.{k:02}" for k in range(20))


def write_image(path, value, *, side=16, mode="RGB"):
    """A picture of one colour whose first channel is ``value``."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (value, value // 2, 255 - value) if mode == "RGB" else value
    Image.new(mode, (side, side), colour).save(path, **({"quality": 100} if path.suffix != ".png" else {}))


def write_pacs(root, per_class=20, *, side=16):
    """``per_class`` images of each class and domain; the colour says which domain and class."""
    for d, domain in enumerate(PACS_DOMAINS):
        for k, name in enumerate(PACS_CLASSES):
            for i in range(per_class):
                mode = "L" if domain == "sketch" else "RGB"
                write_image(
                    root / "PACS" / domain / name / f"pic_{i:03}.png", 60 * d + 8 * k, side=side, mode=mode
                )
    return root / "PACS"


def write_pacs_features(root, per_class=20, width=8):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(7), per_class)
    arrays = {"classes": np.array(PACS_CLASSES)}
    for d, domain in enumerate(PACS_DOMAINS):
        arrays[f"{domain}_features"] = (rng.normal(size=(len(labels), width)) + d).astype(np.float16)
        arrays[f"{domain}_labels"] = labels
    np.savez(root / "pacs-resnet50-features.npz", **arrays)
    return root / "pacs-resnet50-features.npz"


def write_chest(root, train=50, val=2, test=8, *, side=16):
    """``train``, ``val`` and ``test`` images of each of the two classes."""
    for part, count in (("train", train), ("val", val), ("test", test)):
        for k, name in enumerate(("NORMAL", "PNEUMONIA")):
            for i in range(count):
                write_image(
                    root / "chest_xray" / part / name / f"{part}-{i:03}.png", 100 * k + i, side=side, mode="L"
                )
    return root / "chest_xray"


def write_chest_features(root, train=100, val=4, test=20, width=8):
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array(["NORMAL", "PNEUMONIA"])}
    for part, count in (("train", train), ("val", val), ("test", test)):
        arrays[f"{part}_features"] = rng.normal(size=(count, width)).astype(np.float16)
        arrays[f"{part}_labels"] = np.arange(count) % 2
    np.savez(root / "chest_xray-resnet50-features.npz", **arrays)
    return root / "chest_xray-resnet50-features.npz"


def write_svhn(root, train=40, test=10):
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        pixels = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        savemat(root / f"{part}_32x32.mat", {"X": pixels, "y": labels}, do_compression=True)


def message(group, number, words="some words here"):
    return f"From: someone\nSubject: header{number}\n\n{words} topic{group} {'x' * (number % 3)}\n".encode()


def write_newsgroups(root, per_group=50):
    """The layout of the 19 997 documents."""
    for g, group in enumerate(GROUPS):
        folder = root / "20_newsgroups" / group
        folder.mkdir(parents=True)
        for i in range(per_group):
            (folder / str(1000 + i)).write_bytes(message(g, i))
    return root / "20_newsgroups"


def write_newsgroups_by_date(root, train=50, test=10):
    """The archive that scikit-learn downloads."""
    path = root / "20news-bydate.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for part, count in (("train", train), ("test", test)):
            for g, group in enumerate(GROUPS):
                for i in range(count):
                    words = "some words here" if part == "train" else "words unseen in training"
                    content = message(g, i, words)
                    entry = tarfile.TarInfo(f"20news-bydate-{part}/{group}/{5000 + i}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    return path


def write_glove(root, words=("some", "words", "here"), width=5):
    lines = [" ".join([word, *(f"{k + 0.5:.2f}" for _ in range(width))]) for k, word in enumerate(words)]
    path = root / "glove.6B.100d.txt.gz"
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def write_tiny_imagenet(root, classes=4, train=10, val=3):
    """The official tree: ``train`` and ``val`` images of each class; ids are not in sorted
    order.
    """
    folder = root / "tiny-imagenet-200"
    ids = [f"n{k:08}" for k in reversed(range(classes))]
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(ids) + "\n")
    lines = []
    for k, wnid in enumerate(sorted(ids)):
        for i in range(train):
            write_image(
                folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG",
                (20 * k + i) % 256,
                side=64,
                mode="L" if i == 0 else "RGB",
            )
        for i in range(val):
            name = f"val_{i * classes + k}.JPEG"
            write_image(folder / "val" / "images" / name, 20 * k, side=64)
            lines.append(f"{name}\t{wnid}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(sorted(lines)) + "\n")
    return folder


def write_tiny_imagenet_c(root, corruptions, classes=4, val=3):
    for corruption in corruptions:
        for level in range(1, 6):
            for k in range(classes):
                for i in range(val):
                    path = (
                        root
                        / "Tiny-ImageNet-C"
                        / corruption
                        / str(level)
                        / f"n{k:08}"
                        / f"val_{i * classes + k}.JPEG"
                    )
                    write_image(path, 20 * k + level, side=64)
    return root / "Tiny-ImageNet-C"


def write_cifar_c(folder, labels, corruptions):
    """``labels``: of the clean test images."""
    folder.mkdir(parents=True)
    np.save(folder / "labels.npy", np.tile(np.asarray(labels, np.uint8), 5))
    for c, corruption in enumerate(corruptions):
        pixels = np.zeros((5 * len(labels), 32, 32, 3), np.uint8)
        pixels[..., 0] = c
        pixels[..., 1] = (np.repeat(np.arange(1, 6), len(labels)))[:, None, None]
        pixels[..., 2] = np.tile(np.arange(len(labels)), 5)[:, None, None]
        np.save(folder / f"{corruption}.npy", pixels)
    return folder


CIFAR10_NAMES = [
    b"airplane",
    b"automobile",
    b"bird",
    b"cat",
    b"deer",
    b"dog",
    b"frog",
    b"horse",
    b"ship",
    b"truck",
]


def old_pickle(value):
    """What Python 2 and an old numpy wrote: protocol 2, and the old name of numpy's core."""
    return pickle.dumps(value, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def batch(count, seed, classes=10, key=b"labels"):
    rng = np.random.default_rng(seed)
    return {
        b"batch_label": b"a batch",
        key: [int(label) for label in rng.integers(0, classes, count)],
        b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
        b"filenames": [f"{i}.png".encode() for i in range(count)],
    }


def write_cifar10(root, count=20):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for k in range(1, 6):
        (folder / f"data_batch_{k}").write_bytes(old_pickle(batch(count, k)))
    (folder / "test_batch").write_bytes(old_pickle(batch(count, 6)))
    meta = {b"label_names": CIFAR10_NAMES, b"num_cases_per_batch": count, b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(old_pickle(meta))
    return folder


def pack_cifar10(root):
    """The archive as it is published, and nothing beside it."""
    write_cifar10(root / "made")
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(root / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    shutil.rmtree(root / "made")
    return root / "cifar-10-python.tar.gz"


def write_cifar100(root):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, count in (("train", 40), ("test", 10)):
        content = batch(count, count, classes=100, key=b"fine_labels")
        content[b"coarse_labels"] = [0] * count
        (folder / name).write_bytes(old_pickle(content))
    meta = {b"fine_label_names": [f"f{k}".encode() for k in range(100)], b"coarse_label_names": [b"c"] * 20}
    (folder / "meta").write_bytes(old_pickle(meta))
    return folder


def write_fashion(root, train=30, test=10, *, packed=True):
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for which, count in (("train", train), ("t10k", test)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), rng.integers(0, 10, count)
        for name, array in ((f"{which}-images-idx3-ubyte", images), (f"{which}-labels-idx1-ubyte", labels)):
            content = (
                bytes((0, 0, 8, array.ndim))
                + struct.pack(f">{array.ndim}I", *array.shape)
                + array.astype("u1").tobytes()
            )
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)
    return folder
