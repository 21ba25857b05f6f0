"""Archives are unpacked whole, and never outside their folder."""

import io
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from helpers.data_files import files_below
from helpers.trees import pack_cifar10
from macc import data
from macc.data import _archives


def add(tar, name, content=b"x", **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in fields.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


class TestArchives:
    def test_an_archive_beside_is_unpacked_once(self, tmp_path):
        archive = pack_cifar10(tmp_path)
        first = data.load("cifar10", root=tmp_path, verify=False)
        archive.unlink()

        assert data.load("cifar10", root=tmp_path, verify=False).digest() == first.digest()
        assert not list(tmp_path.glob(".unpacking*"))

    def test_missing_files_are_added_and_others_stay(self, tmp_path):
        pack_cifar10(tmp_path)
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        (folder / "mine.txt").write_text("stays")
        data.load("cifar10", root=tmp_path, verify=False)

        assert (folder / "mine.txt").read_text() == "stays"
        assert len(files_below(folder)) == 8

    def test_another_archive_is_refused_by_its_checksum(self, tmp_path):
        pack_cifar10(tmp_path)
        with pytest.raises(ValueError, match="cifar-10-python.tar.gz is not the published file"):
            data.load("cifar10", root=tmp_path)
        assert files_below(tmp_path) == ["cifar-10-python.tar.gz"]

    @pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
    def test_a_cut_archive_leaves_nothing_behind(self, tmp_path, keep):
        archive = pack_cifar10(tmp_path)
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
        pack_cifar10(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(ValueError, match="unpacks to 0.0 GB and .* has 0.0 GB free"):
            data.load("cifar10", root=tmp_path, verify=False)
