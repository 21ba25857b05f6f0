"""Arrays that nobody vouches for: read whole, or refused."""

import contextlib
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from macc.io.arrays import open_npy, read_npy, read_npz

rng = np.random.default_rng(0)


def write_header(path, name, *, shape, content=b"", dtype="<f4"):
    """An entry that claims a shape and holds other bytes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", buffer.getvalue() + content)


class TestReadNpz:
    def test_every_dtype_and_order_comes_back(self, tmp_path):
        arrays = {
            "f": np.asfortranarray(rng.normal(size=(3, 4))),
            "u": np.array(["ab", "c"]),
            "e": np.zeros((0, 3), "int32"),
            "s": np.float16(2.5),
            "b": np.array([True, False]),
            "big": np.arange(4, dtype=">i4"),
        }
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "a.npz", **arrays)
            found = read_npz(tmp_path / "a.npz")

            assert list(found) == list(arrays)
            for name, expected in arrays.items():
                np.testing.assert_array_equal(found[name], expected)
                assert found[name].dtype == expected.dtype

    def test_a_small_file_cannot_ask_for_terabytes(self, tmp_path):
        write_header(tmp_path / "a.npz", "features", shape=(10**6, 10**6))

        with pytest.raises(
            ValueError, match="header promises 4000000000000 bytes of data .* and it has 0; write it anew"
        ):
            read_npz(tmp_path / "a.npz")

    @pytest.mark.parametrize(
        "header",
        [
            "{[]: 1}",
            "{'descr': ('<f8',), 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 2)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -1)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000000000000000000000, 0)}",
            f"{{'descr': '<f8', 'fortran_order': False, 'shape': {(1,) * 70}}}",
            "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000, 1000000)}",
            "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000, 1000000)}",
            "{'descr': ('<f8', (2,)), 'fortran_order': False, 'shape': (0,)}",
            "-" * 9000,
            "(" * 150,
            "a" + ".a" * 3000,
            "{'descr': " + "[" * 90 + "]" * 90 + "}",
            "{'descr': '<f8', ",
            "",
        ],
    )
    def test_a_header_can_say_anything(self, tmp_path, header):
        text = header.encode("latin1")
        array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 16
        (tmp_path / "a.npy").write_bytes(array)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("labels.npy", array)
        for read, name in ((read_npz, "a.npz"), (read_npy, "a.npy"), (open_npy, "a.npy")):
            with pytest.raises(ValueError, match=f"{name} is damaged or (not a numpy array|cut)"):
                read(tmp_path / name)

    def test_every_kind_of_packing_may_be_damaged(self, tmp_path):
        array = io.BytesIO()
        np.save(array, np.arange(1000))
        for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            with zipfile.ZipFile(tmp_path / "a.npz", "w", kind) as archive:
                archive.writestr("a.npy", array.getvalue())
            whole = (tmp_path / "a.npz").read_bytes()
            for at in range(40, len(whole), max(1, len(whole) // 60)):
                changed = bytearray(whole)
                changed[at] ^= 0xFF
                (tmp_path / "a.npz").write_bytes(bytes(changed))
                with contextlib.suppress(ValueError):
                    found = read_npz(tmp_path / "a.npz")
                    assert not found or np.array_equal(next(iter(found.values())), np.arange(1000))

    def test_objects_are_refused_unread(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "sprung",))

        np.savez(tmp_path / "a.npz", labels=np.array([Trap(), 1], dtype=object))
        with pytest.raises(ValueError, match="'labels' .* holds Python objects, which are never loaded"):
            read_npz(tmp_path / "a.npz")
        assert not (tmp_path / "sprung").exists()

    def test_damaged_files(self, tmp_path):
        whole = tmp_path / "whole.npz"
        np.savez_compressed(whole, features=rng.normal(size=(100, 5)), labels=np.arange(100))
        cut = tmp_path / "cut.npz"
        cut.write_bytes(whole.read_bytes()[:-200])
        with pytest.raises(ValueError, match="cut.npz is damaged, cut or not an .npz file"):
            read_npz(cut)
        changed = bytearray(whole.read_bytes())
        changed[300] ^= 0xFF
        cut.write_bytes(bytes(changed))
        with pytest.raises(ValueError, match="damaged|cut"):
            read_npz(cut)
        (tmp_path / "p.npz").write_bytes(pickle.dumps([1, 2]))
        with pytest.raises(ValueError, match="not an .npz file"):
            read_npz(tmp_path / "p.npz")
        with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
            archive.writestr("readme.txt", "x")
        with pytest.raises(ValueError, match="'readme.txt', which is not an array"):
            read_npz(tmp_path / "t.npz")
        with pytest.raises(ValueError, match="there is no file"):
            read_npz(tmp_path / "none.npz")
