"""Pickles of the true format are read, and nothing else in them runs."""

import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers.trees import old_pickle
from macc.data._pickles import read_pickle


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
