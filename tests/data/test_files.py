"""Files of data sets: where they are looked for, how they are downloaded and checked, and what is
refused.
"""

import hashlib
import http.server
import shutil
import sys
import threading
from pathlib import Path

import pytest

from helpers.command import run
from helpers.data_files import files_below
from helpers.trees import pack_cifar10, write_fashion
from macc import data, training
from macc.data import cifar, files
from macc.data.files import Download, Sources


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
        archive = pack_cifar10(served)
        md5 = hashlib.md5(archive.read_bytes()).hexdigest()
        monkeypatch.setattr(cifar, "CIFAR10", self.sources(url, md5))
        splits = data.load("cifar10", root=tmp_path / "new", verify=False)

        assert len(splits.train) == 90

    def test_a_wrong_checksum_is_never_opened_nor_kept(self, server, tmp_path):
        pytest.importorskip("pooch")
        served, url = server
        pack_cifar10(served)
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
