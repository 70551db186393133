# SPDX-License-Identifier: Apache-2.0
"""The notebooks: they run, and their stored outputs come from one run from the top, without a path of the machine."""

import json
import re

import pytest
from notebooks import NOTEBOOKS, execute
from scripts import ROOT

MACHINE = re.compile(r"/(home|root|tmp|work|usr|opt|var|private|Users)/|[A-Z]:\\\\|site-packages")


@pytest.fixture(params=NOTEBOOKS, ids=lambda file: file.stem)
def cells(request):
    return json.loads(request.param.read_text(encoding="utf-8"))["cells"]


def test_stored_outputs_are_those_of_one_run_without_errors(cells):
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for cell in code:
        assert bool(cell["outputs"]) or not re.search(r"^(\s*print|Image|_ = )\b", "".join(cell["source"]), re.MULTILINE)


def test_no_output_names_a_machine_and_they_are_small_and_link_to_what_there_is(cells):
    found = [MACHINE.search(line) for cell in cells for line in json.dumps(cell).split(r"\n") if "image/png" not in line]
    assert not any(found), found
    assert all(file.stat().st_size <= 300_000 for file in NOTEBOOKS) and len(NOTEBOOKS) == 2
    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links and all((ROOT / "examples" / "notebooks" / link).exists() for link in links), links


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path):
    stored = json.loads(file.read_text(encoding="utf-8"))["cells"]
    # An error in a cell is an error of the test.
    cells = execute(file, tmp_path).cells
    kinds = [[{output["output_type"] for output in cell.get("outputs", ())} for cell in run] for run in (cells, stored)]
    assert kinds[0] == kinds[1], "run python tests/support/notebooks.py to store the outputs again"
