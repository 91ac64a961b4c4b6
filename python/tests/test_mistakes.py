"""Protects the messages of a first hour: each says what to give instead."""

import os

import numpy as np
import pytest

import blco


def turned(f):
    return [factor.T for factor in f]


OF_A_STORE = {
    "no list": (lambda s, f: s.mttkrp(f[0]), TypeError, "give a list of arrays, one of shape"),
    "nothing": (lambda s, f: s.mttkrp(None), TypeError, "give a list of arrays"),
    "turned": (lambda s, f: s.mttkrp(turned(f)), ValueError, "transpose it"),
    "turned init": (lambda s, f: s.cp(4, init=turned(f)), ValueError, "transpose it"),
    "another rank": (lambda s, f: s.mttkrp([f[0], f[1][:, :3], f[2]]), ValueError, "the factor of mode 2 is 17 x 3, not 17 x 4"),
    "complex": (lambda s, f: s.mttkrp([f[0] + 1j, *f[1:]]), TypeError, "give real numbers"),
    "objects": (lambda s, f: s.mttkrp([f[0].astype(object), *f[1:]]), TypeError, "give real numbers"),
    "a name of init": (lambda s, f: s.cp(4, init="svd"), TypeError, "give a list of arrays"),
    "mode too large": (lambda s, f: s.mttkrp(f, 3), ValueError, "modes are 0 to 2"),
    "half a mode": (lambda s, f: s.mttkrp(f, 1.5), TypeError, "give a number from 0, a name"),
    "a name of nothing": (lambda s, f: s.mttkrp(f, "user"), ValueError, "give its number"),
    "no calls": (lambda s, f: s.mttkrp(f, calls=0), ValueError, "give 1 or more"),
    "negative rank": (lambda s, f: s.cp(-1), ValueError, "`rank` -1: give 1 or more"),
    "text for rank": (lambda s, f: s.cp("3"), TypeError, "`rank` '3': give an integer"),
    "no tol": (lambda s, f: s.cp(2, tol=float("nan")), ValueError, "`tol` NaN: give a finite number"),
    "no iterations": (lambda s, f: s.cp(2, max_iters=0), ValueError, "`max_iters` 0: give 1 or more"),
    "negative seed": (lambda s, f: s.cp(2, seed=-1), ValueError, "`seed` -1: give 0 or more"),
    "short vector": (lambda s, f: s.ttv(np.ones(5), 0), ValueError, "along mode 1, which has 23 indices"),
    "matrix for vector": (lambda s, f: s.ttv(f[0], 0), TypeError, "name several modes"),
    "array for store": (lambda s, f: s.inner(np.ones(s.shape)), TypeError, "give a store"),
    "mask": (lambda s, f: s[np.ones(23, bool)], IndexError, "give an integer, a label or a slice"),
    "component": (lambda s, f: s.cp(2).top(5, 0), IndexError, "component 5 of a model of rank 2"),
    "mode of a model": (lambda s, f: s.cp(2).top(0, 7), IndexError, "mode 7 of a model of order 3"),
    "coordinates": (lambda s, f: s.cp(2).values_at([[0, 0]]), ValueError, "give nonzeros x 3"),
    "no folder": (lambda s, f: s.cp(2).save("none/m.npz"), FileNotFoundError, "there is no directory none"),
    "there already": (lambda s, f: blco.pack(s, s.path), ValueError, "replace it with `replace`, or name another with `store`"),
    "small shape": (lambda s, f: blco.pack(s.to_coo(), "n", shape=(5, 5, 5)), ValueError, "`shape` is 5 x 5 x 5"),
    "text for modes": (lambda s, f: blco.pack({"user": [0]}, "n", modes="user"), TypeError, "give a list of names"),
    "no file": (lambda s, f: blco.open("none.blco"), FileNotFoundError, "make one from a table or text with blco-pack"),
    "no model there": (lambda s, f: blco.load("none.npz"), FileNotFoundError, "check the path"),
    "no CUDA": (lambda s, f: blco.Engine(device="gpu"), ValueError, 'give "auto" or "cpu" or "cuda"'),
    "threads": (lambda s, f: blco.Engine(threads=-1), ValueError, "give 0 or more"),
}


@pytest.mark.parametrize("mistake", OF_A_STORE)
def test_a_mistake_is_told_with_its_remedy(mistake, store, tensor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = sorted(os.listdir())
    work, kind, said = OF_A_STORE[mistake]
    with pytest.raises(kind) as raised:
        work(store, tensor.factors(4))
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert sorted(os.listdir()) == there


@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz", "t.parquet"])
def test_a_table_takes_modes(name, tmp_path):
    (tmp_path / name).write_text("a,b,c\n")
    with pytest.raises(ValueError, match="a table; name its columns with `modes`"):
        blco.pack(tmp_path / name, tmp_path / "n")


@pytest.mark.parametrize("read", [blco.open, blco.load])
def test_a_file_of_text_is_neither_store_nor_model(read, tmp_path):
    (tmp_path / "t.tns").write_text("1 1 1 2\n")
    with pytest.raises(ValueError, match="a file, not a store|holds no model; give what"):
        read(tmp_path / "t.tns")


def test_mixed_precisions_and_lists_are_taken(store, tensor):
    factors = tensor.factors(4)
    mixed = [factors[0].astype(np.float32), factors[1].tolist(), factors[2].astype(int)]
    assert np.array_equal(store.mttkrp(mixed, 0), tensor.mttkrp(factors, 0))
