"""Protects the documents: what they say to run runs."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
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


def test_examples(monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    runpy.run_path("python/examples/ratings.py")
    assert "% of the users" in capsys.readouterr().out
    if subprocess.run(["git", "cat-file", "-e", "d071e8b"], capture_output=True).returncode == 0:
        runpy.run_path("python/examples/git_log.py")
        assert "src/backend" in capsys.readouterr().out


def test_the_example_for_a_gpu(tmp_path):
    """Its cells up to PyTorch's, on the mock driver or the machine's GPU; all of them if PyTorch is there."""
    mock, real = os.environ.get("BLCO_MOCK_CUDA"), "BLCO_REAL_CUDA" in os.environ
    if not mock and not real:
        pytest.skip("no GPU: BLCO_MOCK_CUDA does not name the mock driver")
    code = (ROOT / "python" / "examples" / "gpu_streaming.py").read_text()
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    if not real:
        code = code.split("# %% With PyTorch", 1)[0]
        environment |= {"LD_LIBRARY_PATH": mock, "BLCO_NONZEROS": "2000"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert "largest difference" in done.stdout, done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "python" / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_notebooks_are_made_of_the_examples(example):
    notebook = json.loads((ROOT / "docs" / "notebooks" / f"{example.stem}.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = [cell.split("\n", 1)[1].strip() for cell in example.read_text().split("\n# %% ")[1:]]
    assert ["".join(cell["source"]) for cell in code] == sources, "run tools/make_notebooks.py"
    page = (ROOT / "docs" / "notebooks" / f"{example.stem}.md").read_text()
    assert all(source in page for source in sources)
    executed = [cell["execution_count"] is not None for cell in code]
    assert all(executed) if "not been executed" not in page else not any(executed)


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
