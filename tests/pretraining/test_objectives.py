# SPDX-License-Identifier: Apache-2.0
"""Test several objectives in one model: losses by hand, gradients, saving, and impossible objectives."""

import pytest
import torch
from rounding import equal_outputs
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_deberta_ext import DebertaExtForMaskedLM
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM, count_targets

ALL = ("mlm", "sop", "sbo")


def spans(ids, mask=None, seed=0):
    """Return labels with one or two spans of two tokens in each row, never at an end."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.full_like(ids, -100)
    for row in range(len(ids)):
        length = ids.shape[1] if mask is None else int(mask[row].sum())
        for _ in range(row % 2 + 1):
            start = int(torch.randint(1, length - 3, (1,), generator=generator))
            labels[row, start : start + 2] = ids[row, start : start + 2]
    return labels


@pytest.mark.parametrize("emd", [dict(), dict(emd_layers=1, emd_input="hidden")], ids=["EMD", "no EMD"])
@pytest.mark.parametrize("lengths", [[20, 20, 20], [20, 12, 9]], ids=["full", "padded"])
def test_each_loss_equals_its_definition(emd, lengths, tiny_config, shake, batch, relative_error):
    model = shake(MultiObjectiveMaskedLM(tiny_config(**emd), ALL))
    ids, mask = batch(3, 20, lengths)
    labels, pairs = spans(ids, mask), torch.tensor([0, 1, 1])
    with torch.no_grad():
        got = model(ids, attention_mask=mask, labels=labels, sentence_labels=pairs).statistics
        states = model.deberta(ids, attention_mask=mask).last_hidden_state
        masked_lm = DebertaExtForMaskedLM(model.config)
        masked_lm.load_state_dict(model.state_dict(), strict=False)
        logits = masked_lm.eval()(ids, attention_mask=mask).logits
        order = model.sentence_relationship(functional.gelu(model.pooler.dense(states[:, 0])))

    for row in range(3):
        losses = {"mlm": [], "sop": [functional.cross_entropy(order[row], pairs[row])], "sbo": []}
        for i in (labels[row] != -100).nonzero().flatten().tolist():
            losses["mlm"].append(functional.cross_entropy(logits[row, i], labels[row, i]))
            s = max(j for j in range(i) if labels[row, j] == -100) + 1
            e = min(j for j in range(i, 20) if labels[row, j] == -100) - 1
            y = model.span_boundary(states[row, s - 1][None], states[row, e + 1][None], torch.tensor([i - s + 1]))
            decoded = y @ model.deberta.embeddings.word_embeddings.weight.T + model.lm_predictions.lm_head.bias
            losses["sbo"].append(functional.cross_entropy(decoded[0], labels[row, i]))
        for name in ALL:
            expected = torch.stack(losses[name]).sum().view(1, 1)
            assert relative_error(f"objective {name} by its definition", got[name][row : row + 1, :1], expected) < 1e-5
            assert got[name][row, 2] == len(losses[name])


def test_loss_is_the_sum_of_means_over_the_targets_that_count_targets_gives(tiny_config, shake, batch):
    model = shake(MultiObjectiveMaskedLM(tiny_config(), ALL))
    ids, mask = batch(4, 20, [20, 17, 12, 9])
    labels = spans(ids, mask)
    # A span at the end of a row has no right boundary.
    labels[3, 8] = 5
    inputs = dict(input_ids=ids, attention_mask=mask, labels=labels, sentence_labels=torch.tensor([0, 1, -100, 1]))
    output, counts = model(**inputs), count_targets(inputs, ALL)
    assert counts.tolist() == [output.statistics[name][:, 2].sum() for name in ALL] and counts[2] < counts[0]
    means = [rows[:, 0].sum() / rows[:, 2].sum() for rows in output.statistics.values()]
    assert torch.allclose(output.loss, sum(means))
    assert output.statistics["sop"][:, 2].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("objectives", [("mlm",), ("mlm", "nsp"), ("mlm", "sbo"), ALL], ids="+".join)
def test_every_parameter_has_a_gradient_even_without_targets(objectives, tiny_config, batch):
    """Check gradients, because distributed training waits for the gradient of each parameter."""
    model = MultiObjectiveMaskedLM(tiny_config(), objectives).train()
    ids, mask = batch(2, 12)
    for labels in (spans(ids), torch.full_like(ids, -100)):
        model.zero_grad()
        model(ids, mask, labels=labels, sentence_labels=torch.tensor([0, -100])).loss.backward()
        assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_packed_documents_give_the_losses_of_each_alone(tiny_config, shake, batch, relative_error):
    model = shake(MultiObjectiveMaskedLM(tiny_config(), ("mlm", "sbo")))
    ids, _ = batch(2, 12)
    labels = spans(ids)
    alone = [model(ids[i : i + 1], labels=labels[i : i + 1]).statistics for i in range(2)]
    documents = torch.tensor([[1] * 12 + [2] * 12])
    packed = model(ids.view(1, 24), labels=labels.view(1, 24), document_ids=documents).statistics
    for name in ("mlm", "sbo"):
        total = alone[0][name] + alone[1][name]
        assert relative_error("objectives of packed documents", packed[name], total) < 1e-5


def test_saved_model_keeps_its_heads_and_is_a_masked_lm_for_everybody_else(tiny_config, shake, tmp_path):
    model = shake(MultiObjectiveMaskedLM(tiny_config(), ALL))
    model.save_pretrained(tmp_path)
    other = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(other) is DebertaExtForMaskedLM and other.config.architectures == ["DebertaExtForMaskedLM"]
    ids = torch.arange(5, 25)[None]
    assert equal_outputs(other.eval()(ids).logits, DebertaExtForMaskedLM.forward(model, ids).logits)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(classifier.pooler.dense.weight, model.pooler.dense.weight)
    again, info = MultiObjectiveMaskedLM.from_pretrained(tmp_path, objectives=ALL, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "objectives, message",
    [
        (("mlm", "clm"), "objectives must be among mlm, nsp, sop, sbo, got clm"),
        (("sop",), "add mlm"),
        (("mlm", "nsp", "sop"), "choose one of them"),
    ],
)
def test_impossible_objectives_and_batches_without_their_labels_are_refused(objectives, message, tiny_config, batch):
    with pytest.raises(ValueError, match=message):
        MultiObjectiveMaskedLM(tiny_config(), objectives)
    with pytest.raises(ValueError, match="need labels and sentence_labels in each batch"):
        MultiObjectiveMaskedLM(tiny_config(), ALL)(batch(2, 12)[0])
    inputs = dict(input_ids=batch(2, 12)[0], labels=torch.ones(2, 12).long(), sentence_labels=torch.zeros(2).long())
    with pytest.raises(ValueError, match=r"sop needs one \[CLS\] per row"):
        MultiObjectiveMaskedLM(tiny_config(), ALL)(**inputs, document_ids=torch.ones(2, 12).long())
