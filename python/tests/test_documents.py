"""Protects the documents: what they say to run runs."""

import ast
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import blco

ROOT = Path(__file__).parents[2]


def run(code, directory, monkeypatch):
    monkeypatch.chdir(directory)
    names = {"__name__": "document"}
    exec(compile(code, "a document", "exec"), names)
    return names


def test_the_readme_of_the_package(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "python" / "README.md").read_text(), re.DOTALL)
    run(code, tmp_path, monkeypatch)
    assert sorted(os.listdir(tmp_path)) == ["log.blco", "ratings.blco"]
    assert blco.open(tmp_path / "log.blco").stats["digest"] == blco.open(tmp_path / "ratings.blco").stats["digest"]


def test_the_readme_of_the_project(tmp_path, monkeypatch):
    code = (ROOT / "README.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "movies.tns").write_text("".join(f"{i % 7 + 1} {i % 5 + 1} {i % 3 + 1} {i % 4 + 1}\n" for i in range(105)))
    run(code, tmp_path, monkeypatch)
    assert "movies.blco" in os.listdir(tmp_path)


def test_the_guide(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "mttkrp.md").read_text(), re.DOTALL)
    rng = np.random.default_rng(7)
    coords = np.stack([rng.integers(0, dim, 2000) for dim in (60, 50, 40)], axis=1)
    store = blco.pack((coords, rng.integers(1, 6, 2000).astype(float)), tmp_path / "ratings.blco", shape=(60, 50, 40))

    def loss(factors):
        gram = np.prod([factor.T @ factor for factor in factors], axis=0)
        return gram.sum() - 2 * (store.mttkrp(factors)[0] * factors[0]).sum()

    first = np.random.default_rng(0)
    before = loss([first.random((dim, 8)) for dim in store.shape])
    after = loss(run(code, tmp_path, monkeypatch)["factors"])
    assert after < before


@pytest.mark.parametrize("example", sorted((ROOT / "python" / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples(example, capsys):
    runpy.run_path(str(example))
    assert "% of the users" in capsys.readouterr().out


def test_everything_public_is_documented():
    for name in blco.__all__:
        thing = getattr(blco, name)
        if not callable(thing):
            continue
        assert thing.__doc__, name
        for member, what in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and (callable(what) or isinstance(what, property)):
                assert what.__doc__, f"{name}.{member}"


def imports(path, names):
    """The modules of the package that a file imports anywhere: within functions, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.level == 1 or (node.module or "").startswith("blco")):
            module = (node.module or "").removeprefix("blco").removeprefix(".")
            yield from [module.split(".")[0]] if module else [alias.name for alias in node.names if alias.name in names]


def test_no_files_import_each_other_in_circles():
    package = ROOT / "python" / "blco"
    names = {path.stem for path in package.glob("*.py")}
    left = {path.stem: set(imports(path, names)) & names for path in package.glob("*.py")}
    assert sum(map(len, left.values())) > 20, "the imports are not seen"
    assert {"_native", "_store"} <= left["_pack"], "the imports are not seen"
    while done := [name for name, uses in left.items() if not uses & left.keys()]:
        for name in done:
            del left[name]
    assert not left, f"in circles, or importing them: {left}"
