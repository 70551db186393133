# SPDX-License-Identifier: Apache-2.0
"""The model in the repository: its code equals the package's, its card is complete, and it fills masks."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import pipeline

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.publishing import push

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "models" / "deberta-ext-small-en"


def test_its_code_is_that_of_the_package(tmp_path):
    DebertaExtConfig.from_pretrained(FOLDER).save_pretrained(tmp_path)
    shipped, current = ({file.name: file.read_bytes() for file in folder.glob("*.py")} for folder in (FOLDER, tmp_path))
    assert shipped == current, "python examples/models/small_english.py code examples/models/deberta-ext-small-en"


def test_its_card_names_sources_and_licences_its_weights_are_small_and_it_passes_the_checks():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(source in text for source in ("wikipedia_en", "squad_v1", "manuals_en", "CC BY-SA", "GPL"))
    weights = FOLDER / "model.safetensors"
    assert {str(tensor.dtype) for tensor in load_file(weights).values()} == {"torch.float16"}
    assert weights.stat().st_size <= 25e6
    assert push(FOLDER, "user/name", dry_run=True).problems == []


@pytest.mark.parametrize(
    ("text", "answer"), [("The president of the United [MASK].", "states"), ("He lived in New [MASK] City.", "york")]
)
def test_it_fills_masks(text, answer):
    fill_mask = pipeline("fill-mask", str(FOLDER))
    # The file is in float16, but a CPU takes 4 times as long for a float16 forward pass, and 16 times for a training step.
    assert fill_mask.model.dtype == torch.float32
    assert fill_mask(text)[0]["token_str"].strip() == answer
