# SPDX-License-Identifier: Apache-2.0
"""LoRA through peft on the projection modules, which keep their deberta-v2 names."""

import re
from pathlib import Path

import pytest
import torch
from backends import NAMES as BACKENDS

from hf_deberta_ext import DebertaExtForSequenceClassification

peft = pytest.importorskip("peft", reason="peft is in the extra `test`")
GUIDE = Path(__file__).resolve().parents[2] / "examples" / "guides" / "supported.md"


def with_adapters(base):
    config = peft.LoraConfig(
        task_type="SEQ_CLS", target_modules=["query_proj", "value_proj"], modules_to_save=["classifier", "pooler"], r=4,
        lora_dropout=0.0,
    )  # fmt: skip
    return peft.get_peft_model(base, config)


@pytest.fixture
def adapted(tiny_config, shake):
    """adapted(kind, **fields): a classifier with adapters that change it, frozen but for them and the head."""

    def build(kind="v3", **fields):
        model = with_adapters(shake(DebertaExtForSequenceClassification(tiny_config(kind, num_labels=3, **fields)))).eval()
        # Their second factor begins at zero, the first at random.
        generator = torch.Generator().manual_seed(0)
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.data.normal_(0, 0.3, generator=generator)
        return model

    return build


def test_adapters_change_the_output_of_every_backend_alike(adapted, batch, relative_error):
    """A backend that reads weights instead of calling modules would pass the adapters by."""
    model = adapted()
    ids, mask = batch(2, 40, [40, 23])
    states = {}
    for name in BACKENDS:
        model.base_model.model.set_attn_implementation(name)
        with torch.no_grad():
            states[name] = model.base_model.model.deberta(ids, attention_mask=mask).last_hidden_state
            with model.disable_adapter():
                plain = model.base_model.model.deberta(ids, attention_mask=mask).last_hidden_state
        assert {served for served, _ in model.base_model.model.attention_backends().values()} == {name}
        assert (states[name] - plain).norm() > 0.05 * plain.norm()
        assert relative_error("adapters, backends", states[name], states["eager"], mask.bool()) < 1e-5


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["v1", "v3"])
def test_gradient_checkpointing_gives_adapters_the_same_gradients_on_every_backend(kind, name, adapted, batch):
    """transformers' DeBERTa failed here with in-place changes of a leaf; the embeddings must ask for gradients."""
    ids, mask = batch(2, 20, [20, 11])
    grads = []
    for checkpointing in (False, True):
        model = adapted(kind, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train()
        model.base_model.model.set_attn_implementation(name)
        if checkpointing:
            checkpoint = getattr(model.base_model.model, "activation_checkpointing_enable", None)
            (checkpoint or model.gradient_checkpointing_enable)()
            model.enable_input_require_grads()
        torch.manual_seed(0)
        model(input_ids=ids, attention_mask=mask, labels=torch.tensor([2, 1])).loss.backward()
        grads.append({key: p.grad for key, p in model.named_parameters() if p.requires_grad})
    assert len(grads[0]) == 2 * 2 * 3 + 4 and grads[0].keys() == grads[1].keys()
    for key, grad in grads[0].items():
        assert grad.any(), key
        assert torch.allclose(grad, grads[1][key], rtol=1e-4, atol=1e-7), key


def test_the_modules_of_the_head_are_named_in_the_documentation(adapted):
    """Without them a saved adapter is loaded beside a head of random weights."""
    (named,) = re.findall(r"`modules_to_save=(\[.*?\])`", GUIDE.read_text(encoding="utf-8"))
    named = set(re.findall(r'"(\w+)"', named))
    model = adapted().base_model.model
    body = {name for name, _ in model.named_children()} - {"deberta"}
    assert named == {name for name in body if list(getattr(model, name).parameters())}
