# SPDX-License-Identifier: Apache-2.0
"""transformers' own exporters (`transformers.exporters`): programs of `torch.export` and ONNX files beside their models."""

import pytest
import torch
import transformers
from every_head import CLASSES, KINDS

from hf_deberta_ext import DebertaExtForSequenceClassification

try:
    from transformers import exporters
    from transformers.exporters import ExportedModel
except ImportError:
    pytest.skip(f"transformers {transformers.__version__} has no exporters", allow_module_level=True)

EXPORTERS = {"dynamo": ("DynamoExporter", "DynamoConfig"), "onnx": ("OnnxExporter", "OnnxConfig")}
PACKAGES = {"dynamo": [], "onnx": ["onnx", "onnxscript", "onnxruntime"]}
# An export takes seconds: the rest of the product is slow.
QUICK = [("dynamo", "masked-lm", "v2"), ("onnx", "sequence-classification", "v3")]
SLOW = [
    case
    for format in EXPORTERS
    for head in CLASSES
    for kind in KINDS
    if (case := (format, head, kind)) not in QUICK and (kind == "v3" or head != "pretraining")
]
# Worst measured: 2e-6 of the largest output. Other processors sum in other orders.
FLOAT32 = 2e-5


def export(format, model, inputs):
    for package in PACKAGES[format]:
        pytest.importorskip(package, reason="the extra `onnx` is not installed")
    exporter, config = (getattr(exporters, name) for name in EXPORTERS[format])
    return exporter().export(model, inputs, config=config(dynamic=True))


def inputs_of(head, B, N, C, side, batch):
    """Ids and mask, the last row padded; [B, C, N] for multiple choice."""
    rows = B * C if head == "multiple-choice" else B
    ids, mask = batch(rows, N, [N] * (rows - 1) + [max(1, N // 2)], side=side)
    shape = (B, C, N) if head == "multiple-choice" else (B, N)
    inputs = {"input_ids": ids.view(shape), "attention_mask": mask.view(shape)}
    if head == "entity-scoring":
        # Entities of two tokens, then of one, then none. 0 is no token: N = 1 has no entity.
        inputs["entity_indices"] = torch.tensor([[1, 2], [2, 0], [0, 0]]).clamp(max=N - 1).expand(B, 3, 2).contiguous()
    return inputs


def largest_difference(head, got, expected, mask):
    """Relative to the largest output, over real tokens."""
    differences = []
    for name, values in expected.items():
        assert got[name].shape == values.shape
        per_token = head != "multiple-choice" and values.shape[: mask.dim()] == mask.shape
        ours, exported = (values[mask], got[name][mask]) if per_token else (values, got[name])
        # Below it: what is no entity.
        counted = ours > -1e4
        assert torch.equal(counted, exported > -1e4)
        if counted.any():
            differences.append(((ours - exported)[counted].abs().max() / ours[counted].abs().max()).item())
    return max(differences, default=0.0)


@pytest.mark.parametrize(
    ("format", "head", "kind"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_an_export_equals_its_model_at_shapes_that_were_not_traced(format, head, kind, tiny_config, shake, batch):
    """One row and one token, padding on both sides, and beyond the traced length and the relative table."""
    fields = dict(generator={}, special_token_ids=[0]) if head == "pretraining" else {}
    model = shake(CLASSES[head](tiny_config(kind, num_hidden_layers=2, num_labels=3, **fields)))
    exported = export(format, model, inputs_of(head, 3, 20, 4, "right", batch))
    # EMD reads absolute positions, which end at 64.
    far = 64 if head in ("masked-lm", "pretraining") else 150
    for B, N, C in ((1, 1, 1), (1, 2, 2), (3, 1, 4), (2, 37, 3), (3, 63, 2), (4, far, 1)):
        inputs = inputs_of(head, B, N, C, "left" if N == 63 else "right", batch)
        # The model as it is used: with its best backend, and without padding where that pays.
        with torch.no_grad():
            got, expected = exported(**inputs), model(**inputs)
        assert type(got) is type(expected) and got.keys() == expected.keys()
        assert largest_difference(head, got, expected, inputs["attention_mask"].bool()) < FLOAT32, (B, N, C)


@pytest.mark.slow
@pytest.mark.parametrize("format", EXPORTERS)
def test_an_export_that_was_saved_gives_the_same_outputs(format, tiny_config, shake, batch, tmp_path):
    model = shake(DebertaExtForSequenceClassification(tiny_config("v3", num_labels=3)))
    export(format, model, inputs_of("sequence-classification", 3, 20, 1, "right", batch)).save_pretrained(tmp_path)
    # Programs of torch.export are pickled, hence the consent.
    loaded = ExportedModel.from_pretrained(tmp_path, trust_remote_code=format == "dynamo")
    assert loaded.config.id2label == model.config.id2label
    inputs = inputs_of("sequence-classification", 2, 33, 1, "right", batch)
    with torch.no_grad():
        assert torch.allclose(loaded(**inputs).logits, model(**inputs).logits, atol=1e-5)
