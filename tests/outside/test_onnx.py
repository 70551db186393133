# SPDX-License-Identifier: Apache-2.0
"""ONNX files compared with their models, int8 copies, and models that cannot be exported."""

import json
import os

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from every_head import CLASSES
from tiny_models import save_tokenizer, tiny_model

from hf_deberta_ext import DebertaExtForPreTraining, DebertaExtForSequenceClassification
from hf_deberta_ext import export as export_module
from hf_deberta_ext.commands import main
from hf_deberta_ext.conversion.verification import check_onnx, onnx_differences
from hf_deberta_ext.export import export_onnx, quantise_onnx

HEADS = [head for head in CLASSES if head not in ("pretraining", "entity-scoring")]
TYPES = dict(type_vocab_size=2, position_biased_input=True)
# A head of each family, with a convolution, one table row for each distance, types and positions as inputs, and choices.
# Each export takes seconds; the other combinations are slow.
CASES = [("masked-lm", "v2", {}), ("sequence-classification", "v3", {})]
NAMED = [("token-classification", "v1", TYPES), ("multiple-choice", "v3", {})]
SLOW = [*NAMED, *(case for kind in ("v1", "v2", "v3") for head in HEADS if (case := (head, kind, {})) not in CASES + NAMED)]
# Worst measured for these models: 7e-7 (float32) and 0.057 (int8), relative to the largest output. The limits are ten times
# as large for float32, because other processors sum in a different order, and three times for int8.
FLOAT32, INT8 = 7e-6, 0.17


def case_id(case):
    head, kind, fields = case
    return f"{head}-{kind}{'-types' * bool(fields)}"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return exported(model, name), which returns the model's file, written once in this module."""
    folder, files = tmp_path_factory.mktemp("onnx"), {}

    def export(model, name):
        if name not in files:
            files[name] = export_onnx(model, folder / f"{name}.onnx")
        return files[name]

    return export


@pytest.fixture
def build(tiny_config, shake):
    def model(case):
        head, kind, fields = case
        return shake(CLASSES[head](tiny_config(kind, **dict(num_hidden_layers=2, num_labels=3) | fields)))

    return model


@pytest.fixture
def classifier(build, exported):
    """Return a model and its file."""
    case = ("sequence-classification", "v3", {})
    model = build(case)
    return model, exported(model, case_id(case))


def dimensions(values):
    return {value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim] for value in values}


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)], ids=lambda case: case_id(case)
)
def test_a_file_equals_its_model_at_every_shape(case, build, exported, tmp_path):
    """One row and token, padding on both sides, beyond the traced length and the tables; the int8 copy stays close."""
    model = build(case)
    file = exported(model, case_id(case))
    assert all(difference < FLOAT32 for difference in onnx_differences(model, file))
    int8 = quantise_onnx(file, tmp_path / "int8.onnx")
    assert all(0 < difference < INT8 for difference in onnx_differences(model, int8))


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in NAMED)], ids=case_id)
def test_inputs_and_outputs_have_names_and_free_sizes(case, build, exported):
    expected = {
        "masked-lm": ["batch", "sequence", 64],
        "token-classification": ["batch", "sequence", 3],
        "sequence-classification": ["batch", 3],
        "multiple-choice": ["batch", "choices"],
    }
    graph = onnx.load(exported(build(case), case_id(case))).graph
    sizes = ["batch", "choices", "sequence"] if case[0] == "multiple-choice" else ["batch", "sequence"]
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if case[2] else [])]
    assert dimensions(graph.input) == dict.fromkeys(names, sizes)
    assert dimensions(graph.output) == {"logits": expected[case[0]]}
    # The names of the model's own parameters, so that a weight can be found.
    parameters = {tensor.name.removeprefix("deberta.") for tensor in graph.initializer}
    assert {"embeddings.LayerNorm.weight", "encoder.layer.0.attention.self.query_proj.bias"} <= parameters


def test_metadata_say_what_it_is_and_no_file_names_a_folder_of_the_machine(classifier, tmp_path):
    """torch records the source line of each operation with its path."""
    model, file = classifier
    int8 = quantise_onnx(file, tmp_path / "int8.onnx")
    for path in (file, int8):
        onnx.checker.check_model(path, full_check=True)
        metadata = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
        assert metadata["architecture"] == "DebertaExtForSequenceClassification"
        assert json.loads(metadata["id2label"]) == {str(key): label for key, label in model.config.id2label.items()}
        assert metadata["hf_deberta_ext"] and ("quantisation" in metadata) == (path == int8)
        data = path.read_bytes()
        for folder in (os.path.dirname(export_module.__file__), os.path.dirname(torch.__file__), str(tmp_path)):
            assert folder.encode() not in data
    assert int8.stat().st_size < file.stat().st_size


def test_positions_beyond_the_absolute_table_fail_and_give_no_answer(build, exported):
    model = build(("token-classification", "v1", TYPES | dict(num_hidden_layers=1)))
    session = onnxruntime.InferenceSession(exported(model, "one layer"))
    ids = np.full((1, 65), 7, dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, inputs)


def test_a_subclass_and_a_model_in_training_are_taken_and_left_as_they_were(build, exported, tmp_path):
    model = build(("replaced-token-detection", "v3", dict(num_hidden_layers=1)))
    model.__class__ = type("Mine", (type(model),), {})
    model.train().set_unpadding(True)
    file = export_onnx(model, tmp_path / "new" / "mine.onnx", opset=20)
    quantise_onnx(file, tmp_path / "new" / "mine_int8.onnx")
    assert all(difference < FLOAT32 for difference in onnx_differences(model, file, [(2, 30, "right")]))
    assert all(module.training for module in model.modules()) and model.deberta.unpadding is True
    assert onnx.load(file).opset_import[0].version == 20
    assert os.listdir(tmp_path) == ["new"] and sorted(os.listdir(file.parent)) == ["mine.onnx", "mine_int8.onnx"]


def test_differences_by_hand(classifier, tmp_path):
    """A file with another bias differs by exactly this bias; `convert` refuses such a file."""
    model, file = classifier
    proto = onnx.load(file)
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "classifier.bias")
    shifted = onnx.numpy_helper.to_array(bias) + np.float32([0, 0, 100])
    bias.CopyFrom(onnx.numpy_helper.from_array(shifted, bias.name))
    onnx.save(proto, tmp_path / "shifted.onnx")
    ids = torch.randint(model.config.vocab_size, [2, 9], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        largest = model(ids).logits.abs().max().item()
    (difference,) = onnx_differences(model, tmp_path / "shifted.onnx", [(2, 9, "none")])
    assert difference == pytest.approx(100 / largest, rel=1e-4)
    with pytest.raises(ValueError, match="the outputs of the file differ from the model's outputs by "):
        check_onnx(model, tmp_path / "shifted.onnx")


def test_embeddings_are_quantised_when_asked_for_and_sums_of_int8_products_fit_16_bits(classifier, tmp_path):
    """A CPU without VNNI adds two products of an unsigned and a signed byte in 16 bits, which saturate."""
    model, file = classifier
    plain = quantise_onnx(file, tmp_path / "int8.onnx")
    smaller = quantise_onnx(file, tmp_path / "embeddings.onnx", embeddings=True)
    assert smaller.stat().st_size < plain.stat().st_size
    for path in (plain, smaller):
        proto = onnx.load(path)
        tensors, operations = proto.graph.initializer, {node.op_type for node in proto.graph.node}
        table = "deberta.embeddings.word_embeddings.weight"
        assert (table in {tensor.name for tensor in tensors}) == (path == plain)
        assert {"MatMulInteger", "Softmax"} <= operations
        weights = [tensor for tensor in tensors if tensor.data_type == onnx.TensorProto.INT8]
        largest = [int(np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max()) for tensor in weights]
        # Zero points are int8 too. All seven bits are used.
        assert len(weights) > 10 and 2 * 255 * max(largest) <= 2**15 - 1 and max(largest) >= 63
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        assert metadata["quantisation"] == "int8 weights, dynamic" and metadata["reduce_range"] == "true"
    assert all(difference < INT8 for difference in onnx_differences(model, smaller))


def test_weights_in_a_second_file_are_quantised_into_two_files(classifier, tmp_path):
    model, file = classifier
    big = tmp_path / "big.onnx"
    onnx.save(onnx.load(file), big, save_as_external_data=True, location="big.onnx.data", size_threshold=0)
    quantise_onnx(big, tmp_path / "int8" / "small.onnx")
    assert sorted(os.listdir(tmp_path / "int8")) == ["small.onnx", "small.onnx.data"]
    (difference,) = onnx_differences(model, tmp_path / "int8" / "small.onnx", [(4, 40, "right")])
    assert 0 < difference < INT8
    # The old second file is removed if the new model has none.
    quantise_onnx(file, tmp_path / "int8" / "small.onnx", overwrite=True)
    assert os.listdir(tmp_path / "int8") == ["small.onnx"]


def test_no_file_is_replaced_unasked_and_a_failure_leaves_it_as_it_was(classifier, build, tmp_path, monkeypatch):
    model, source = build(("base", "v3", dict(num_hidden_layers=1))), classifier[1]
    file = tmp_path / "model.onnx"
    file.write_bytes(b"mine")
    for call in (lambda: export_onnx(model, file), lambda: quantise_onnx(source, file)):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            call()
    monkeypatch.setattr(onnx, "save", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("disk full")))
    for call in (lambda: export_onnx(model, file, overwrite=True), lambda: quantise_onnx(source, file, overwrite=True)):
        with pytest.raises(OSError, match="disk full"):
            call()
    assert file.read_bytes() == b"mine" and os.listdir(tmp_path) == ["model.onnx"]


def test_what_cannot_be_exported_is_refused(classifier, build, tiny_config, tmp_path):
    model, file = classifier
    joint, half = DebertaExtForPreTraining(tiny_config("v3")), build(("base", "v3", {})).bfloat16()
    new = tmp_path / "new.onnx"
    for call, message in (
        (lambda: export_onnx(joint, new), r"cannot be exported as one graph; export model.export_discriminator\(\)"),
        (lambda: export_onnx(half, new), r"torch.bfloat16; call model.float\(\)"),
        (lambda: export_onnx(model, new, opset=17), "opset must be 18 or newer, got 17"),
        (lambda: export_onnx(model, tmp_path / "model.pt"), r"must end in .onnx, got .*model.pt"),
        (lambda: quantise_onnx(file, file, overwrite=True), "out must have another name than the input file"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("to", ["onnx", "onnx-int8"])
def test_the_command_writes_a_file_and_compares_its_decisions(to, tmp_path, capsys):
    tiny_model(DebertaExtForSequenceClassification, num_hidden_layers=1, pad_token_id=0).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("w5 w6\nw7 w8 w9\n")
    flags = ["--to", to, "--texts", str(tmp_path / "texts.txt")]
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "onnx"), *flags]) == 0
    printed = capsys.readouterr().out
    assert ("checked: the outputs of the file differ by at most" in printed) == (to == "onnx")
    assert f"ms in {to} (medians)" in printed and "2 of 2 decisions are equal" in printed
    assert {"model.onnx", "config.json", "tokenizer.json"} <= {*os.listdir(tmp_path / "onnx")}
    kinds = {node.op_type for node in onnx.load(tmp_path / "onnx" / "model.onnx").graph.node}
    assert ("MatMulInteger" in kinds) == (to == "onnx-int8")
