#!/usr/bin/env python3
"""Executes python/examples/*.py as notebooks, and renders them into docs/notebooks: .ipynb, Markdown, pictures.

    tools/make_notebooks.py [NAME ...] [--out DIR] [--without-running]

Needs blco, matplotlib, nbclient, nbconvert and ipykernel; runs in the repository's root. --without-running renders code alone, and says so.
"""

import argparse
import ast
import os
import re
from pathlib import Path

import nbclient
import nbconvert
import nbformat

ROOT = Path(__file__).resolve().parents[1]
NOT_RUN = "*This notebook has not been executed: what is below is its code alone.*"


def cells(source: str) -> list[tuple[str, str]]:
    """The text and the code of each cell: what follows ``# %%`` on its line is text."""
    text, *rest = re.split(r"^# %% ", source, flags=re.MULTILINE)
    title, *about = ast.literal_eval(text).strip().split("\n", 1)
    found = [(f"# {title.rstrip('.')}\n\n{''.join(about).strip()}", "")]
    for cell in rest:
        head, code = cell.split("\n", 1)
        found.append((f"## {head.rstrip('.')}", code.strip()))
    return found


def notebook(source: str) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    for number, (text, code) in enumerate(cells(source)):
        made.cells.append(nbformat.v4.new_markdown_cell(text, id=f"text-{number}"))
        if code:
            made.cells.append(nbformat.v4.new_code_cell(code, id=f"code-{number}"))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "notebooks")
    parser.add_argument("--without-running", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for path in sorted((ROOT / "python" / "examples").glob("*.py")):
        if asked.names and path.stem not in asked.names:
            continue
        made = notebook(path.read_text())
        if asked.without_running:
            made.cells[0].source += f"\n\n{NOT_RUN}"
        else:
            nbclient.NotebookClient(made, timeout=600, extra_arguments=["--matplotlib=inline"], resources={"metadata": {"path": ROOT}}).execute()
        for cell in made.cells:
            # Not when it ran, and not where objects lay in memory.
            cell.metadata.pop("execution", None)
        nbformat.write(made, asked.out / f"{path.stem}.ipynb")
        page, resources = nbconvert.MarkdownExporter().from_notebook_node(made, {"output_files_dir": ".", "unique_key": path.stem})
        for name, picture in resources["outputs"].items():
            (asked.out / name).write_bytes(picture)
        page = re.sub(r"!\[png\]\((?:\./)?([^)]*)\)", r"![What the cell draws](\1)", page)
        (asked.out / f"{path.stem}.md").write_text(page.strip() + "\n")
        print(asked.out / f"{path.stem}.md")


if __name__ == "__main__":
    main()
