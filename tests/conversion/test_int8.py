# SPDX-License-Identifier: Apache-2.0
"""int8 models: their arithmetic, saving and loading, and `deberta-ext convert --to int8`."""

import copy
import json
import pickle

import pytest
import torch
from every_head import CLASSES
from tiny_models import tiny_tokenizer
from transformers import AutoModelForSequenceClassification, pipeline

from hf_deberta_ext import DebertaExtForSequenceClassification
from hf_deberta_ext.commands import main
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2
from hf_deberta_ext.export import export_onnx, export_program
from hf_deberta_ext.int8 import Int8Config, Int8Embedding, Int8Linear, quantise

IDS = torch.randint(5, 63, (3, 20), generator=torch.Generator().manual_seed(0))


def test_a_linear_layer_rounds_weights_and_activations_and_does_not_saturate():
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(64, 48), torch.randn(5, 64)
    int8 = Int8Linear(64, 48)
    int8.fill(linear)
    # A row 1,000 times as large as the others does not change their scales.
    x[0] *= 1000
    # Half a step of each weight and of each activation, at most; an activation's step is 2/255 of the row's largest value.
    row_steps = x.abs().amax(1, keepdim=True) * 2 / 255
    steps = int8.scale * x.abs().sum(1, keepdim=True) + row_steps * linear.weight.abs().sum(1)
    assert ((int8(x) - linear(x)).abs() <= 0.51 * steps).all()
    # The largest products: they overflow 16 bits without the limit of 64.
    linear.weight.data.fill_(1.0)
    int8 = Int8Linear(64, 48)
    int8.fill(linear)
    ones = torch.ones(2, 64)
    assert torch.allclose(int8(ones), linear(ones), rtol=1e-5)


@pytest.mark.parametrize(
    "head, fields",
    [
        ("sequence-classification", dict(num_labels=3)),
        ("token-classification", dict(num_labels=5)),
        ("base", dict(type_vocab_size=2, conv_kernel_size=3)),
        ("masked-lm", {}),
    ],
)
def test_a_model_keeps_its_outputs_roughly_and_its_copies_exactly(head, fields, tiny_config, shake, tmp_path):
    model = shake(CLASSES[head](tiny_config(**fields)))
    int8 = quantise(copy.deepcopy(model))
    with torch.no_grad():
        exact, rounded = model(IDS)[0], int8(IDS)[0]
        assert torch.cosine_similarity(exact.flatten(), rounded.float().flatten(), dim=0) > 0.99
        int8.save_pretrained(tmp_path)
        others = [CLASSES[head].from_pretrained(tmp_path), copy.deepcopy(int8), pickle.loads(pickle.dumps(int8))]
        for other in others:
            assert torch.allclose(other.eval()(IDS)[0].float(), rounded.float(), atol=1e-5)
    kinds = {type(module) for module in int8.modules()}
    # A table that the output layer shares stays in float32.
    assert Int8Linear in kinds and (Int8Embedding in kinds) == (head != "masked-lm")


def test_padding_does_not_change_an_int8_model_more_than_rounding(tiny_config, shake):
    int8 = quantise(shake(DebertaExtForSequenceClassification(tiny_config())))
    padded = torch.nn.functional.pad(IDS, (0, 12))
    mask = (torch.arange(32) < 20).long().expand(3, -1)
    with torch.no_grad():
        assert torch.allclose(int8(padded, attention_mask=mask).logits, int8(IDS).logits, atol=1e-4)


def test_weights_that_are_loaded_after_a_call_are_used(tiny_config, shake):
    """Packed weights, and projections of the relative table, are made by the first call."""
    first, second = (quantise(shake(DebertaExtForSequenceClassification(tiny_config()), seed)) for seed in (0, 1))
    with torch.no_grad():
        before, expected = first(IDS).logits, second(IDS).logits
        first(IDS)
        first.load_state_dict(second.state_dict())
        assert torch.allclose(first(IDS).logits, expected, atol=1e-5) and not torch.allclose(before, expected, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_does_not_change_a_loaded_model(dtype, tiny_config, shake, tmp_path):
    int8 = quantise(shake(DebertaExtForSequenceClassification(tiny_config())))
    int8.save_pretrained(tmp_path)
    other = DebertaExtForSequenceClassification.from_pretrained(tmp_path, dtype=dtype).eval()
    with torch.no_grad():
        assert torch.allclose(other(IDS).logits, int8(IDS).logits, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_an_int8_model_cannot_be_converted_to_another_dtype(dtype, tiny_config):
    """Scales in another dtype failed in the next call with a message of torch's operator."""
    int8 = quantise(DebertaExtForSequenceClassification(tiny_config()))
    methods = {torch.bfloat16: "bfloat16", torch.float64: "double"}
    message = f"an int8 model cannot be converted to {dtype}".replace("torch.", "")
    calls = [lambda: int8.to(dtype), lambda: int8.to("cpu", dtype), lambda: torch.nn.Sequential(int8).to(dtype=dtype)]
    if dtype in methods:
        calls.append(getattr(int8, methods[dtype]))
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert int8.to("cpu", torch.float32)(IDS).logits.dtype == torch.float32


def test_an_int8_model_is_not_exported_resized_or_saved_as_deberta_v2(tiny_config, tmp_path):
    """transformers would load the int8 weights without their scales."""
    int8 = quantise(DebertaExtForSequenceClassification(tiny_config()))
    for export in (export_program, lambda model: export_onnx(model, tmp_path / "model.onnx")):
        with pytest.raises(ValueError, match="an int8 model cannot be exported: export the float32 model"):
            export(int8)
    with pytest.raises(ValueError, match="the vocabulary of an int8 model cannot be resized: resize the float32 model"):
        int8.resize_token_embeddings(70)
    with pytest.raises(ValueError, match="deberta-v2 has no int8 form"):
        save_as_deberta_v2(int8, tmp_path / "stock")
    assert not (tmp_path / "stock").exists()


def test_models_that_cannot_be_converted_are_refused(tiny_config, tmp_path):
    model = DebertaExtForSequenceClassification(tiny_config())
    with pytest.raises(ValueError, match=r"expected a float32 model on the CPU, got .*bfloat16"):
        quantise(copy.deepcopy(model).bfloat16())
    with pytest.raises(ValueError, match="the model is already quantised"):
        quantise(quantise(copy.deepcopy(model)))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected an int8 checkpoint"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, quantization_config=Int8Config())


def test_the_command_converts_and_reports_decisions(tiny_config, shake, tmp_path, capsys):
    tokenizer = tiny_tokenizer()
    config = tiny_config(vocab_size=len(tokenizer), id2label={0: "no", 1: "yes"})
    shake(DebertaExtForSequenceClassification(config)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("one text\nanother text, which is longer\n")
    source, output, texts = (str(tmp_path / name) for name in ("model", "int8", "texts.txt"))
    assert main(["convert", source, output, "--to", "int8", "--texts", texts]) == 0
    printed = capsys.readouterr().out
    assert "compared: 2 texts, one at a time: " in printed and " of 2 decisions are equal" in printed
    assert "cosine of the logits: " in printed
    config = json.loads((tmp_path / "int8/config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "deberta_ext_int8"}
    (answer,) = pipeline("text-classification", output)(["one text"])
    assert answer["label"] in ("no", "yes")
