# SPDX-License-Identifier: Apache-2.0
"""Execute the notebooks in examples/notebooks (all, or the given files) and store their outputs.

python tests/support/notebooks.py [FILE ...]
"""

import base64
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from scripts import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def execute(file: Path, scratch: Path):
    """Return the notebook with the outputs of a run in a copy of examples/.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises an error.
    """
    import nbformat
    from nbclient import NotebookClient

    leave_out = shutil.ignore_patterns("__pycache__", "notebook_output")
    folder = shutil.copytree(ROOT / "examples", scratch / "examples", ignore=leave_out) / "notebooks"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    notebook = nbformat.read(file, as_version=4)
    options = dict(resources={"metadata": {"path": str(folder)}}, coalesce_streams=True, record_timing=False)
    client = NotebookClient(notebook, timeout=1200, kernel_name="python3", **options)
    client.execute(env=environment)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # Progress bars and warnings differ between machines.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def smaller(png: str) -> str:
    """Return the picture with 64 colours."""
    from PIL import Image

    file = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(64).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main():
    import nbformat

    for file in map(Path, sys.argv[1:]) if sys.argv[1:] else NOTEBOOKS:
        with tempfile.TemporaryDirectory() as scratch:
            notebook = execute(file, Path(scratch))
        for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
            if "image/png" in output.get("data", ()):
                output["data"]["image/png"] = smaller(output["data"]["image/png"])
        nbformat.write(notebook, file)
        print(file.name, f"{file.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
