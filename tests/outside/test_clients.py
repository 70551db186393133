# SPDX-License-Identifier: Apache-2.0
"""Clients: GLiNER if it is installed, and one client from end to end."""

import json
import subprocess
import sys
from pathlib import Path

import client_journeys
import pytest
from outside import run_clients


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    client_journeys.make_models(folder, names=("encoder",))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "packed"), [("replaced", False), ("replaced", True), ("ours", False)], ids=["padded", "packed", "ours"]
)
def test_gliner_finds_the_same_entities_after_replace_attention_and_with_our_encoder(encoder, packed, models):
    pytest.importorskip("gliner")
    stock = client_journeys.gliner(models / "stock", packed=packed)
    folder = models / ("ours" if encoder == "ours" else "stock")
    found = client_journeys.gliner(folder, replace=encoder == "replaced", packed=packed)
    assert run_clients.difference(found, stock) < 1e-3


@pytest.mark.slow
def test_one_client_from_end_to_end(tmp_path):
    command = [sys.executable, Path(run_clients.__file__), "--clients", "peft", "--environment", sys.prefix]
    done = subprocess.run([*command, "--output", tmp_path / "rows.json"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["works"] for row in rows] == ["yes"] * 4 and len({row["what was done"] for row in rows}) == 4
