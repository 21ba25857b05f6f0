"""CIFAR and Fashion-MNIST from files in their true format: found, unpacked, downloaded, refused."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.command import run
from helpers.shared_data import SHARED
from helpers.trees import CIFAR10_NAMES, batch, old_pickle, write_cifar10, write_cifar100, write_fashion
from macc import data, training
from macc.data import _archives, cifar, files
from macc.data._pickles import read_pickle
from macc.data._splits import check_sizes
from macc.data.files import Download, Sources


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("MACC_OFFLINE", "1")
    monkeypatch.delenv("MACC_DATA", raising=False)


def files_below(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


class TestCifar:
    def test_cifar10(self, tmp_path):
        write_cifar10(tmp_path)
        splits = data.load("cifar10", root=tmp_path, verify=False)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (90, 10, 20)
        assert splits.classes == tuple(name.decode() for name in CIFAR10_NAMES)
        expected = batch(20, 6)
        assert splits.test.labels.tolist() == expected[b"labels"]
        assert torch.equal(splits.test.inputs.flatten(1), torch.from_numpy(expected[b"data"]))
        every = {tuple(row[:8]) for k in range(1, 6) for row in batch(20, k)[b"data"].tolist()}
        ours = torch.cat([splits.train.inputs, splits.val.inputs]).flatten(1)[:, :8]
        assert {tuple(row) for row in ours.tolist()} == every
        assert splits.normalisation.mean == (0.4914, 0.4822, 0.4465)
        assert splits.augmentation == data.Augmentation(pad=4, flip=True)

    def test_cifar100(self, tmp_path):
        write_cifar100(tmp_path)
        splits = data.load("cifar100", root=tmp_path, verify=False)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (36, 4, 10)
        assert splits.num_classes == 100
        assert splits.test.labels.tolist() == batch(10, 10, classes=100, key=b"fine_labels")[b"fine_labels"]

    def test_the_environment_says_where(self, tmp_path, monkeypatch):
        write_cifar100(tmp_path)
        monkeypatch.setenv("MACC_DATA", str(tmp_path))

        assert len(data.load("cifar100", verify=False).train) == 36

    def test_verify_refuses_other_files_before_opening_them(self, tmp_path, monkeypatch):
        write_cifar10(tmp_path)
        monkeypatch.setattr(cifar, "read_pickle", lambda *_: pytest.fail("opened unverified"))
        with pytest.raises(
            ValueError, match=r"batches.meta is not the published file: its MD5 is \w+, expected 5ff9c5"
        ):
            data.load("cifar10", root=tmp_path)

    def test_the_published_sizes_are_asserted(self, tmp_path):
        write_cifar100(tmp_path)
        splits = data.load("cifar100", root=tmp_path, verify=False)
        with pytest.raises(ValueError, match=r"must have \(45000, 5000, 10000\) .* got \(36, 4, 10\)"):
            check_sizes(splits, cifar.SIZES)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c.pop(b"data"), r"must hold 'data' as uint8 \(N, 3072\), got NoneType"),
            (lambda c: c.update({b"data": c[b"data"][:, :99]}), r"got uint8 \(20, 99\)"),
            (lambda c: c.update({b"data": c[b"data"].astype("f4")}), "got float32"),
            (lambda c: c.update({b"labels": c[b"labels"][1:]}), "20 images and 19 labels"),
            (lambda c: c.update({b"labels": "none"}), "must hold 'labels' as a list of class indices"),
            (lambda c: c.update({b"labels": [10] * 20}), r"must lie in \[0, 9\] for 10 classes, got 10"),
        ],
    )
    def test_contents_that_do_not_match(self, tmp_path, change, message):
        folder = write_cifar10(tmp_path)
        content = batch(20, 6)
        change(content)
        (folder / "test_batch").write_bytes(old_pickle(content))
        with pytest.raises(ValueError, match=message):
            data.load("cifar10", root=tmp_path, verify=False)

    @pytest.mark.parametrize("keep", [0, 10, 1000, -1])
    def test_a_cut_file(self, tmp_path, keep):
        path = write_cifar10(tmp_path) / "data_batch_3"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ValueError, match="data_batch_3 is damaged"):
            data.load("cifar10", root=tmp_path, verify=False)


class TestPickles:
    @pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
    def test_plain_values_and_arrays_of_every_protocol(self, protocol):
        value = {
            "a": np.arange(6, dtype="<u2").reshape(2, 3),
            b"b": [1, "x", b"\xff", {"c": (1.5, None, True)}],
        }
        if protocol == 5:
            value.pop("a")  # protocol 5 rebuilds arrays by another function, which no published file uses
        found = read_pickle(pickle.dumps(value, protocol=protocol), Path("x"))

        assert found["b"] == value[b"b"]
        if "a" in value:
            np.testing.assert_array_equal(found["a"], value["a"])

    @pytest.mark.parametrize("protocol", [0, 2, 4])
    @pytest.mark.parametrize(
        "call",
        [
            (os.system, ("true",)),
            (eval, ("1",)),
            (np.load, ("x",)),
            (getattr, ("x", "y")),
            (subprocess.Popen, ("true",)),
            (np.ndarray.tofile, (np.zeros(1), "x")),
        ],
        ids=lambda call: call[0].__name__,
    )
    def test_nothing_is_called(self, call, protocol, tmp_path, monkeypatch):
        class Trap:
            def __reduce__(self):
                return call

        monkeypatch.chdir(tmp_path)
        with pytest.raises(ValueError, match="which data does not need; refused"):
            read_pickle(pickle.dumps({"a": Trap()}, protocol=protocol), Path("x"))
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (
                b"(I1\n(I1000000000000\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI0\nS'x'\nt",
                "an array of shape .* and 1 bytes",
            ),
            (
                b"(I1\n(I1\ntcnumpy\ndtype\n(S'O8'\nI0\nI1\ntRI0\nS'abcdefgh'\nt",
                "an array of 'O8', which is no number",
            ),
            (b"(I1\n(I1\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI0\n(lt", "not made of numbers"),
        ],
    )
    def test_an_array_cannot_ask_for_memory_nor_hold_objects(self, array, message):
        start = b"(dS'a'\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        with pytest.raises(ValueError, match=message):
            read_pickle(start + array + b"bs.", Path("x"))

    def test_no_numpy_function_can_be_called(self):
        with pytest.raises(ValueError, match="damaged"):
            read_pickle(b"(dS'a'\ncnumpy\nndarray\n((I1000000000000\nttRs.", Path("x"))

    def test_orders_of_bytes_and_axes(self):
        arrays = {
            "big": np.arange(6, dtype=">i4"),
            "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "none": np.zeros((0, 3)),
        }
        found = read_pickle(old_pickle(arrays), Path("x"))
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype

    def test_other_things_than_a_dictionary(self):
        with pytest.raises(ValueError, match="holds a list, not the dictionary"):
            read_pickle(pickle.dumps([1]), Path("x"))


class TestFashion:
    @pytest.mark.parametrize("packed", [True, False])
    def test_both_forms(self, tmp_path, packed):
        write_fashion(tmp_path, packed=packed)
        splits = data.load("fashion_mnist", root=tmp_path, verify=False)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (27, 3, 10)
        assert splits.shape == (1, 28, 28)
        rng = np.random.default_rng(0)
        rng.integers(0, 256, (30, 28, 28)), rng.integers(0, 10, 30)
        images, labels = rng.integers(0, 256, (10, 28, 28)), rng.integers(0, 10, 10)
        np.testing.assert_array_equal(splits.test.inputs[:, 0].numpy(), images)
        np.testing.assert_array_equal(splits.test.labels.numpy(), labels)

    def test_verify(self, tmp_path):
        write_fashion(tmp_path)
        with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is not the published file"):
            data.load("fashion_mnist", root=tmp_path)

    def test_what_the_files_hold_is_checked_and_not_who_packed_them(self, tmp_path, monkeypatch):
        folder = write_fashion(tmp_path)
        module = sys.modules["macc.data.fashion_mnist"]
        unpacked = {path.stem: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}
        known = {name: (hashlib.md5(each).hexdigest(), len(each)) for name, each in unpacked.items()}
        assert known.keys() == module.CONTENT.keys()
        monkeypatch.setattr(module, "CONTENT", known)
        monkeypatch.setattr(module, "SIZES", (27, 3, 10))
        for name, content in unpacked.items():  # packed with another time, and one of them not at all
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=7))
        (folder / "t10k-labels-idx1-ubyte.gz").unlink()
        (folder / "t10k-labels-idx1-ubyte").write_bytes(unpacked["t10k-labels-idx1-ubyte"])

        assert len(data.load("fashion_mnist", root=tmp_path).test) == 10
        for path in (folder / "t10k-labels-idx1-ubyte", folder / "train-images-idx3-ubyte.gz"):
            content = unpacked[path.name.removesuffix(".gz")]
            changed = bytes([*content[:-1], content[-1] ^ 1]), content + bytes(10**6)
            for wrong in changed:
                path.write_bytes(gzip.compress(wrong) if path.suffix else wrong)
                with pytest.raises(ValueError, match=f"{path.name} is not the published file.*--no-verify"):
                    data.load("fashion_mnist", root=tmp_path)
            path.write_bytes(gzip.compress(content) if path.suffix else content)

    def test_the_files_that_a_linux_distribution_packs(self, tmp_path):
        packed = Path("/usr/share/datasets/fashion-mnist")
        if not packed.is_dir():
            pytest.skip("needs the Debian package dataset-fashion-mnist")
        (tmp_path / "FashionMNIST").mkdir()
        (tmp_path / "FashionMNIST" / "raw").symlink_to(packed)

        assert len(data.load("fashion_mnist", root=tmp_path).test) == 10_000

    def test_damaged_files(self, tmp_path):
        folder = write_fashion(tmp_path)
        path = folder / "t10k-images-idx3-ubyte.gz"
        whole = path.read_bytes()
        for content, message in [
            (whole[:-30], "is damaged or cut"),
            (
                gzip.compress(b"\0\0\x08\3" + struct.pack(">3I", 2**31, 2**31, 9)),
                "should have .* bytes by its header and has 16",
            ),
            (
                gzip.compress(gzip.decompress(whole) + b"x"),
                "should have 7856 bytes by its header and has 7857",
            ),
            (gzip.compress(b"\0\0\x08\1abcd"), "does not start like an IDX file of 3 axes"),
            (b"not gzip", "is damaged or cut"),
        ]:
            path.write_bytes(content)
            with pytest.raises(ValueError, match=message):
                data.load("fashion_mnist", root=tmp_path, verify=False)

    def test_labels_that_do_not_match(self, tmp_path):
        folder = write_fashion(tmp_path)
        (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 3) + b"abc")
        )
        with pytest.raises(ValueError, match="10 t10k images and 3 labels"):
            data.load("fashion_mnist", root=tmp_path, verify=False)


def add(tar, name, content=b"x", **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in fields.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


class TestArchives:
    def pack(self, root):
        write_cifar10(root / "made")
        with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
            tar.add(root / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
        shutil.rmtree(root / "made")
        return root / "cifar-10-python.tar.gz"

    def test_an_archive_beside_is_unpacked_once(self, tmp_path):
        archive = self.pack(tmp_path)
        first = data.load("cifar10", root=tmp_path, verify=False)
        archive.unlink()

        assert data.load("cifar10", root=tmp_path, verify=False).digest() == first.digest()
        assert not list(tmp_path.glob(".unpacking*"))

    def test_missing_files_are_added_and_others_stay(self, tmp_path):
        self.pack(tmp_path)
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        (folder / "mine.txt").write_text("stays")
        data.load("cifar10", root=tmp_path, verify=False)

        assert (folder / "mine.txt").read_text() == "stays"
        assert len(files_below(folder)) == 8

    def test_another_archive_is_refused_by_its_checksum(self, tmp_path):
        self.pack(tmp_path)
        with pytest.raises(ValueError, match="cifar-10-python.tar.gz is not the published file"):
            data.load("cifar10", root=tmp_path)
        assert files_below(tmp_path) == ["cifar-10-python.tar.gz"]

    @pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
    def test_a_cut_archive_leaves_nothing_behind(self, tmp_path, keep):
        archive = self.pack(tmp_path)
        content = archive.read_bytes()
        archive.write_bytes(content[: int(keep * len(content))])
        with pytest.raises(ValueError, match="cifar-10-python.tar.gz is damaged or cut"):
            data.load("cifar10", root=tmp_path, verify=False)
        assert files_below(tmp_path) == ["cifar-10-python.tar.gz"]

    @pytest.mark.parametrize(
        ("name", "fields"),
        [
            ("../outside", {}),
            ("/tmp/macc-outside", {}),
            ("cifar-10-batches-py/../../outside", {}),
            ("..\\outside", {}),
            ("cifar-10-batches-py/link", {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
            ("cifar-10-batches-py/hard", {"type": tarfile.LNKTYPE, "linkname": "../../outside"}),
            ("cifar-10-batches-py/device", {"type": tarfile.CHRTYPE}),
        ],
    )
    def test_what_would_leave_the_folder_is_refused(self, tmp_path, name, fields):
        root = tmp_path / "root"
        root.mkdir()
        with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
            add(tar, "cifar-10-batches-py/data_batch_1")
            add(tar, name, b"" if fields else b"x", **fields)
        with pytest.raises(ValueError, match="leads outside its folder; refused|holds a link or a device"):
            data.load("cifar10", root=root, verify=False)
        assert files_below(tmp_path) == ["root/cifar-10-python.tar.gz"]
        assert not Path("/tmp/macc-outside").exists()

    def test_an_entry_without_a_name_is_refused(self, tmp_path):
        archive = tmp_path / "a.zip"
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr("X", "x")
        content = archive.read_bytes().replace(b"X", b"")  # in both places where names stand
        local, central = content.find(b"PK\3\4"), content.find(b"PK\1\2")
        content = bytearray(content)
        content[local + 26 : local + 28] = content[central + 28 : central + 30] = bytes(2)
        end = content.find(b"PK\5\6")
        content[end + 12 : end + 20] = struct.pack("<II", end - central, central)
        archive.write_bytes(content)
        with (
            pytest.raises(ValueError, match="a.zip holds an entry without a name; refused"),
            _archives.unpacked(archive, beside=tmp_path / "out"),
        ):
            pass

    def test_zip_paths_and_links_are_refused(self, tmp_path):
        for number, (name, mode) in enumerate([("../outside", 0), ("a/link", 0o120777), ("/abs", 0)]):
            archive = tmp_path / f"{number}.zip"
            with zipfile.ZipFile(archive, "w") as opened:
                entry = zipfile.ZipInfo(name)
                entry.external_attr = mode << 16
                opened.writestr(entry, "x")
            with (
                pytest.raises(ValueError, match="leads outside|holds a link"),
                _archives.unpacked(archive, beside=tmp_path / "in"),
            ):
                pytest.fail("unpacked")
        assert files_below(tmp_path) == ["0.zip", "1.zip", "2.zip"]

    def test_an_archive_of_something_else(self, tmp_path):
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
            add(tar, "other/file")
        with pytest.raises(ValueError, match="holds no folder cifar-10-batches-py"):
            data.load("cifar10", root=tmp_path, verify=False)

    def test_an_archive_that_lacks_a_file(self, tmp_path):
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
            add(tar, "cifar-10-batches-py/data_batch_1")
        with pytest.raises(ValueError, match="cifar10 is incomplete: .* lacks data_batch_2, "):
            data.load("cifar10", root=tmp_path, verify=False)

    def test_more_than_the_disk_holds(self, tmp_path, monkeypatch):
        self.pack(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(ValueError, match="unpacks to 0.0 GB and .* has 0.0 GB free"):
            data.load("cifar10", root=tmp_path, verify=False)


@pytest.fixture
def server(tmp_path_factory):
    """A folder on the loopback interface."""
    folder = tmp_path_factory.mktemp("served")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


class TestDownload:
    def sources(self, url, md5, name="cifar-10-python.tar.gz"):
        return Sources(
            folder="cifar-10-batches-py",
            files=dict.fromkeys(cifar.CIFAR10.files, ""),
            downloads=(Download(name=name, url=f"{url}/{name}", md5=md5, megabytes=1),),
        )

    @pytest.fixture(autouse=True)
    def _online(self, monkeypatch):
        monkeypatch.delenv("MACC_OFFLINE")
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)

    def test_fetched_checked_and_unpacked(self, server, tmp_path, monkeypatch):
        pytest.importorskip("pooch")
        served, url = server
        archive = TestArchives().pack(served)
        md5 = hashlib.md5(archive.read_bytes()).hexdigest()
        monkeypatch.setattr(cifar, "CIFAR10", self.sources(url, md5))
        splits = data.load("cifar10", root=tmp_path / "new", verify=False)

        assert len(splits.train) == 90

    def test_a_wrong_checksum_is_never_opened_nor_kept(self, server, tmp_path):
        pytest.importorskip("pooch")
        served, url = server
        TestArchives().pack(served)
        with pytest.raises(
            ValueError, match="is not the file it should be .*: put cifar-10-python.tar.gz .* into"
        ):
            self.sources(url, "0" * 32).prepare("cifar10", tmp_path, verify=False)
        assert files_below(tmp_path) == []

    def test_no_such_address(self, server, tmp_path):
        pytest.importorskip("pooch")
        _, url = server
        with pytest.raises(
            ValueError, match="is not in .* and could not be downloaded .*404.*--data or \\$MACC_DATA"
        ):
            self.sources(url, "0" * 32).prepare("cifar10", tmp_path, verify=True)

    def test_single_files_of_which_some_are_there(self, server, tmp_path, monkeypatch):
        pytest.importorskip("pooch")
        served, url = server
        folder = write_fashion(served)
        module = sys.modules["macc.data.fashion_mnist"]  # the name in the package is the set, not the module
        downloads = tuple(
            Download(
                name=f"FashionMNIST/raw/{name}",
                url=f"{url}/FashionMNIST/raw/{name}",
                md5=hashlib.md5((folder / name).read_bytes()).hexdigest(),
                megabytes=1,
            )
            for name in module.MD5
        )
        monkeypatch.setattr(
            module, "SOURCES", Sources(folder=module.FOLDER, files=module.MD5, downloads=downloads)
        )
        (tmp_path / module.FOLDER).mkdir(parents=True)
        kept = "train-images-idx3-ubyte.gz"
        shutil.copy(folder / kept, tmp_path / module.FOLDER / kept)
        (folder / kept).unlink()

        assert len(data.load("fashion_mnist", root=tmp_path, verify=False).test) == 10

    def test_no_connection_leaves_no_folder(self, tmp_path):
        pytest.importorskip("pooch")
        sources = self.sources("http://127.0.0.1:9", "0" * 32)
        with pytest.raises(
            ValueError, match="is not in .*new, and there is no connection to 127.0.0.1: put cifar-10-python"
        ):
            sources.prepare("cifar10", tmp_path / "new", verify=True)
        assert not (tmp_path / "new").exists()

    def test_single_files_say_where_they_go(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MACC_OFFLINE", "1")
        with pytest.raises(
            ValueError,
            match=f"put train-images-idx3-ubyte.gz, .*, t10k-labels-idx1-ubyte.gz into {tmp_path}/FashionMNIST/raw, or",
        ):
            data.load("fashion_mnist", root=tmp_path)

    def test_without_pooch(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(
            ValueError,
            match=r"cifar10 is not in .*: pip install 'macc-torch\[data\]' .* or put cifar-10-python",
        ):
            data.load("cifar10", root=tmp_path)

    def test_offline_says_which_file_goes_where(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MACC_OFFLINE", "1")
        with pytest.raises(ValueError) as error:
            data.load("cifar10", root=tmp_path)
        assert str(error.value) == (
            f"cifar10 is not in {tmp_path} and $MACC_OFFLINE forbids downloads: put cifar-10-python.tar.gz "
            f"(or the unpacked folder cifar-10-batches-py) into {tmp_path}, or say where it is with --data or $MACC_DATA; "
            "it comes from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        )

    def test_a_root_that_cannot_be_a_folder(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(ValueError, match="cannot hold the files of cifar10"):
            data.load("cifar10", root=tmp_path / "file")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MACC_CACHE", str(tmp_path))
    assert files.data_root(None) == tmp_path / "data"
    monkeypatch.delenv("MACC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert files.data_root(None) == tmp_path / "macc" / "data"
    assert files.data_root("~/x") == Path.home() / "x"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not on this machine")
class TestRealCifar10:
    @pytest.fixture
    def root(self):
        """Made once for this machine: it takes the pixels from a package registry."""
        root = Path(tempfile.gettempdir()) / "macc-real-cifar10"
        if not (root / "cifar-10-batches-py" / "batches.meta").is_file():
            made = subprocess.run(
                [sys.executable, SHARED / "get-cifar10", root], capture_output=True, text=True
            )
            if made.returncode:
                pytest.skip(f"get-cifar10 did not work here: {made.stderr[-200:]}")
        return root

    def test_every_byte_is_the_published_one(self, root):
        splits = data.load("cifar10", root=root)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (45_000, 5_000, 10_000)
        together = splits.train.counts(10) + splits.val.counts(10)
        assert together.tolist() == [5000] * 10
        assert splits.test.counts(10).tolist() == [1000] * 10
        fitted = data.Normalisation.fit(splits.train.inputs)
        assert fitted.mean == pytest.approx(splits.normalisation.mean, abs=1e-3)
        # The published standard deviations are means over images, smaller than those over all pixels.
        assert fitted.std == pytest.approx((0.247, 0.243, 0.261), abs=1e-3)


class TestUnverified:
    def test_files_of_your_own_making_are_trained_on_when_that_is_said(self, tmp_path, monkeypatch):
        write_fashion(tmp_path)
        recipe = [
            "--set",
            "dataset=fashion_mnist",
            "--set",
            "model=linear",
            "--set",
            "epochs=1",
            "--set",
            "batch_size=8",
        ]
        words = [
            "train",
            "digits",
            "--loss",
            "CrossEntropy",
            *recipe,
            "--data",
            tmp_path,
            "--out",
            tmp_path / "runs",
        ]
        refused = run(*words)
        assert refused.code == 2
        assert "is not the published file" in refused.err
        assert "--no-verify" in refused.err

        trained = run(*words, "--no-verify")
        assert trained.code == 0, trained.err
        (folder,) = (tmp_path / "runs").glob("fashion_mnist-*")
        assert training.open_run(folder).environment["data_verified"] is False
        again = ["predict", folder, "--perturb", "--data", tmp_path]
        assert run(*again).code == 2
        assert run(*again, "--no-verify").code == 0
        file = tmp_path / "mine.yaml"
        file.write_text(
            "name: mine\ndatasets: fashion_mnist\nmethods: [CrossEntropy]\ntests: {test: test}\n"
            "set: {model: linear, epochs: 1, batch_size: 8}\n"
        )
        both = ["run", file, "--seeds", 1, "--workers", 1, "--data", tmp_path, "--out", tmp_path / "runs"]
        assert "is not the published file" in run(*both).err
        assert run(*both, "--no-verify", "--dry-run").code == 0
