# SPDX-License-Identifier: Apache-2.0
"""torch.compile without graph breaks, and exports with dynamic shapes, by this package and by transformers."""

import itertools
import subprocess
import sys

import pytest
import torch
import transformers
from every_head import CLASSES, KINDS, labels_of
from transformers import AutoModel

from hf_deberta_ext.export import export_program

try:
    from transformers import exporters
except ImportError:
    exporters = None

HEADS = [head for head in CLASSES if head not in ("pretraining", "entity-scoring")]
FORMATS = {"program": (), "dynamo": ("DynamoExporter", "DynamoConfig"), "onnx": ("OnnxExporter", "OnnxConfig")}
# Each compilation or export takes seconds, so the other heads are marked slow.
QUICK = ("masked-lm", "multiple-choice")
LENGTHS = (5, 9, 17, 40, 33, 60)
# Longer than the relative table and max_position_embeddings, which are 64 here.
FAR = 150
QUICK_EXPORTS = [("program", head, "v2") for head in QUICK]
QUICK_EXPORTS += [("dynamo", "masked-lm", "v2"), ("onnx", "sequence-classification", "v3")]
SLOW_EXPORTS = [
    case
    for case in itertools.product(FORMATS, CLASSES, KINDS)
    if case not in QUICK_EXPORTS
    and (case[1] in HEADS or case[0] != "program")
    and (case[2] == "v3" or case[1] != "pretraining")
]
# Relative to the largest output. Worst measured: 2e-6; other processors sum in a different order.
FLOAT32 = 2e-5


@pytest.fixture
def build(tiny_config, shake):
    def model(head, kind, **fields):
        return shake(CLASSES[head](tiny_config(kind, num_hidden_layers=2, num_labels=3, **fields)))

    return model


@pytest.fixture
def inputs(batch):
    """Return inputs(head, B, N, C=2): ids and mask, with padding in the last row; [B, C, N] for multiple choice."""

    def make(head, B, N, C=2, side="right"):
        rows = B * C if head == "multiple-choice" else B
        ids, mask = batch(rows, N, [N] * (rows - 1) + [max(1, N // 2)], side=side)
        shape = (B, C, N) if head == "multiple-choice" else (B, N)
        batch_inputs = {"input_ids": ids.view(shape), "attention_mask": mask.view(shape)}
        if head == "entity-scoring":
            # Entities of two tokens, one token, and none. 0 is not a valid token, so N = 1 has no entity.
            places = torch.tensor([[1, 2], [2, 0], [0, 0]]).clamp(max=N - 1)
            batch_inputs["entity_indices"] = places.expand(B, 3, 2).contiguous()
        return batch_inputs

    return make


def export(format, model, batch_inputs):
    """Export by `export_program` or by an exporter of transformers."""
    if format == "program":
        return export_program(model).module()
    if exporters is None:
        pytest.skip(f"transformers {transformers.__version__} has no exporters")
    exporter, config = (getattr(exporters, name) for name in FORMATS[format])
    return exporter().export(model, batch_inputs, config=config(dynamic=True))


def largest_difference(head, got, expected, mask):
    """Return the largest difference over real tokens, relative to the largest output."""
    differences = [0.0]
    for name, values in expected.items():
        exported = got[name]
        assert exported.shape == values.shape
        if head != "multiple-choice" and values.shape[: mask.dim()] == mask.shape:
            values, exported = values[mask], exported[mask]
        # Positions without an entity are below this.
        counted = values > -1e4
        assert torch.equal(counted, exported > -1e4)
        if counted.any():
            differences.append(((values - exported)[counted].abs().max() / values[counted].abs().max()).item())
    return max(differences)


QUICK_CASES = [(head, "v2", "mask") for head in QUICK]
SLOW_CASES = [(head, "v2", given) for head in HEADS for given in ("no mask", "labels") if head != "base"]
SLOW_CASES += [("masked-lm", "v1", "mask"), ("masked-lm", "v3", "mask"), ("base", "v2", "mask")]


@pytest.mark.parametrize(
    ("head", "kind", "given"), [*QUICK_CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)]
)
def test_compile_has_no_graph_break_and_two_compilations_for_six_lengths(head, kind, given, build, inputs):
    # Padding is computed, as in a compiled graph.
    model = build(head, kind, masked_only=False)
    model.set_unpadding(False)
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=count)
    for N in LENGTHS:
        batch = inputs(head, 2, N)
        if given == "no mask":
            del batch["attention_mask"]
        elif given == "labels":
            batch |= labels_of(head, batch["input_ids"])
        with torch.no_grad():
            got, expected = compiled(**batch), model(**batch)
        assert got.keys() == expected.keys() and ("loss" in got) == (given == "labels")
        for name in expected:
            assert torch.allclose(got[name], expected[name], atol=1e-5), name
    assert 1 <= len(graphs) <= 2
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("format", "head", "kind"), [*QUICK_EXPORTS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_EXPORTS)]
)
def test_an_export_equals_its_model_at_shapes_that_were_not_traced(format, head, kind, build, inputs):
    """Shapes: one row and one token, padding on both sides, and lengths beyond the traced length and the relative table."""
    fields = dict(generator={}, special_token_ids=[0]) if head == "pretraining" else {}
    model = build(head, kind, **fields)
    exported = export(format, model, inputs(head, 3, 20, 4))
    # EMD reads absolute positions; there are 64.
    far = 64 if head in ("masked-lm", "pretraining") else FAR
    for B, N, C in ((1, 1, 1), (1, 2, 2), (3, 1, 4), (2, 37, 3), (3, 63, 2), (4, far, 1)):
        batch = inputs(head, B, N, C, side="left" if N == 63 else "right")
        # The default settings: the best backend, and unpadding where it pays off.
        with torch.no_grad():
            got, expected = exported(**batch), model(**batch)
        assert {*got} == {*expected}
        assert largest_difference(head, got, expected, batch["attention_mask"].bool()) < FLOAT32, (B, N, C)


def test_a_program_takes_token_types_and_absolute_positions(build, inputs):
    model = build("base", "v1", type_vocab_size=2, position_biased_input=True)
    program = export_program(model).module()
    for B, N, side in ((1, 7, "right"), (3, 64, "left")):
        batch = inputs("base", B, N, side=side)
        batch["token_type_ids"] = (torch.arange(N) >= N // 4).long().expand(B, N)
        with torch.no_grad():
            got, expected = program(**batch)["last_hidden_state"], model(**batch)[0]
            other = program(**(batch | {"token_type_ids": torch.zeros(B, N, dtype=torch.long)}))["last_hidden_state"]
        mask = batch["attention_mask"].bool()
        assert torch.allclose(got[mask], expected[mask], atol=1e-5)
        assert not torch.allclose(got[mask], other[mask], atol=1e-2)
    too_long = inputs("base", 1, 65) | {"token_type_ids": torch.zeros(1, 65, dtype=torch.long)}
    with pytest.raises((AssertionError, RuntimeError), match="64"):
        program(**too_long)


def test_choices_can_be_fixed(build, inputs):
    model = build("multiple-choice", "v3")
    program = export_program(model, choices=4).module()
    batch = inputs("multiple-choice", 5, 11, 4)
    with torch.no_grad():
        assert torch.allclose(program(**batch)["logits"], model(**batch).logits, atol=1e-5)
    with pytest.raises((AssertionError, RuntimeError)):
        program(**inputs("multiple-choice", 5, 11, 3))


def test_a_model_is_after_an_export_as_it_was(build, inputs, monkeypatch):
    """Also after a failed export."""
    model = build("masked-lm", "v3").train()
    model.deberta.encoder.layer[0].eval()
    model.set_unpadding(True)
    model.set_attn_implementation("blocked")
    model.config.output_hidden_states = True
    modes = [module.training for module in model.modules()]

    def fail(*args, **kwargs):
        assert not any(module.training for module in model.modules()) and model.deberta.unpadding is False
        raise RuntimeError("no graph")

    for failing in (False, True):
        if failing:
            monkeypatch.setattr(torch.export, "export", fail)
            with pytest.raises(RuntimeError, match="no graph"):
                export_program(model)
        else:
            program = export_program(model)
        assert [module.training for module in model.modules()] == modes
        assert model.deberta.unpadding is True and model.config._attn_implementation == "blocked"
    assert {*program.module()(**inputs("masked-lm", 1, 8))} == {"logits"}


@pytest.mark.parametrize("name", [None, "eager", "sdpa"])
def test_torch_export_takes_a_model_as_it_is(name, build, inputs):
    """Previously, torch.export failed at heads that read the [CLS] state, and chose an operator that ONNX lacks."""
    model = build("sequence-classification", "v3")
    # torch 2.6 does not distinguish an export from a compilation.
    old = name is None and not hasattr(torch.compiler, "is_exporting")
    if name is not None:
        model.set_attn_implementation(name)
    batch = inputs("sequence-classification", 2, 20)
    dims = {0: torch.export.Dim("B", min=1, max=64), 1: torch.export.Dim("N", min=2, max=512)}
    dynamic = {key: dims for key in batch}
    exported = torch.export.export(model, (), batch, dynamic_shapes=dynamic, strict=False)
    graphs = [module.graph for module in exported.graph_module.modules() if hasattr(module, "graph")]
    operations = {str(node.target) for graph in graphs for node in graph.nodes}
    assert any("scaled_dot_product_attention" in operation for operation in operations) == (name == "sdpa" or old)
    for B, N in ((1, 3), (3, 63), (4, FAR)):
        batch = inputs("sequence-classification", B, N)
        with torch.no_grad():
            assert torch.allclose(exported.module()(**batch)["logits"], model(**batch).logits, atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 cannot save what autocast does not reach")
def test_a_saved_program_runs_where_neither_the_package_nor_transformers_is_imported(build, inputs, tmp_path):
    model = build("question-answering", "v2")
    torch.export.save(export_program(model), tmp_path / "program.pt2")
    batch = inputs("question-answering", 3, 31)
    torch.save(batch, tmp_path / "batch.pt")
    code = """
import sys, torch
sys.modules.update(dict.fromkeys(("hf_deberta_ext", "transformers")))
outputs = torch.export.load("program.pt2").module()(**torch.load("batch.pt"))
torch.save(dict(outputs), "outputs.pt")
"""
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    got, mask = torch.load(tmp_path / "outputs.pt"), batch["attention_mask"].bool()
    with torch.no_grad():
        expected = model(**batch)
    for name in ("start_logits", "end_logits"):
        assert torch.allclose(got[name][mask], expected[name][mask], atol=1e-5)


def test_what_has_no_program_is_refused(build, tiny_config, stock_config):
    for model, options, message in (
        (CLASSES["pretraining"](tiny_config("v3")), {}, r"one graph; export model.export_discriminator\(\)"),
        (AutoModel.from_config(stock_config("v3")), {}, "expected a model of hf_deberta_ext, got DebertaV2Model"),
        (build("base", "v3"), dict(choices=2), "choices is only valid for DebertaExtForMultipleChoice"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            export_program(model, **options)
