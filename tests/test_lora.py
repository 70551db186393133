# SPDX-License-Identifier: Apache-2.0
"""LoRA through peft on the projection modules, which keep their deberta-v2 names."""

import pytest
import torch

from hf_deberta_ext import DebertaExtForSequenceClassification

peft = pytest.importorskip("peft", reason="peft is in the extra `test`")


@pytest.mark.parametrize("kind", ["v1", "v3"])
def test_adapter_changes_the_output_and_survives_save_and_load(kind, tiny_config, batch, tmp_path):
    torch.manual_seed(0)
    base = DebertaExtForSequenceClassification(tiny_config(kind, num_labels=3)).eval()
    base.save_pretrained(tmp_path / "base")
    ids, mask = batch(2, 20, [20, 11])
    with torch.no_grad():
        before = base(ids, attention_mask=mask).logits
    config = peft.LoraConfig(
        task_type="SEQ_CLS", target_modules=["query_proj", "value_proj"], modules_to_save=["classifier", "pooler"], r=4
    )
    model = peft.get_peft_model(base, config).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=torch.tensor([2, 1])).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        trained = model(input_ids=ids, attention_mask=mask).logits
        again = DebertaExtForSequenceClassification.from_pretrained(tmp_path / "base")
        again = peft.PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
        assert (trained - before).norm() > 1e-2
        assert torch.allclose(again(input_ids=ids, attention_mask=mask).logits, trained, atol=1e-6)
        merged = again.merge_and_unload()
        assert torch.allclose(merged(ids, attention_mask=mask).logits, trained, atol=1e-5)
