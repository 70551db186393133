# SPDX-License-Identifier: Apache-2.0
"""Losses, label shapes and vocabulary changes of the heads."""

import math

import pytest
import torch
from torch.nn import functional

from hf_deberta_ext import (
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForQuestionAnswering,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
    ReplacedTokenDetectionHead,
)
from hf_deberta_ext.model.losses import cross_entropy, mean_loss

HEADS = [
    DebertaExtModel,
    DebertaExtForMaskedLM,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtForQuestionAnswering,
    DebertaExtForMultipleChoice,
]


def test_cross_entropy_by_hand():
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 5.0], [1.0, 2.0]])
    labels = torch.tensor([1, 0, -100])
    expected = (-math.log(0.75) - math.log(0.5)) / 2
    assert abs(cross_entropy(logits, labels).item() - expected) < 1e-6
    assert abs(cross_entropy(logits, labels, num_items_in_batch=8).item() - expected * 2 / 8) < 1e-6


def test_mean_loss_of_nothing_is_zero_with_a_gradient():
    x = torch.zeros(3, requires_grad=True)
    mean_loss(x * 0, count=0).backward()
    assert not x.grad.any()
    for items in (0, torch.tensor(0)):
        assert mean_loss(x * 0, count=0, num_items_in_batch=items).item() == 0


def test_rtd_head_by_hand(tiny_config, shake):
    """LayerNorm first, with the [CLS] state added to every token; then dense, activation, one logit."""
    head = shake(ReplacedTokenDetectionHead(tiny_config()))
    h = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    x = functional.layer_norm(h + h[:, :1], (32,), head.LayerNorm.weight, head.LayerNorm.bias, 1e-7)
    x = functional.gelu(x @ head.dense.weight.T + head.dense.bias)
    expected = (x @ head.classifier.weight.T + head.classifier.bias)[..., 0]
    assert torch.allclose(head(h), expected, atol=1e-6)


def test_rtd_loss_counts_real_tokens_that_have_a_label(tiny_config, batch):
    model = DebertaExtForReplacedTokenDetection(tiny_config()).eval()
    ids, mask = batch(2, 9, [9, 5])
    labels = (ids % 3 == 0).long()
    labels[0, 2] = -100
    out = model(ids, attention_mask=mask, labels=labels)
    counted = mask.bool() & (labels != -100)
    expected = functional.binary_cross_entropy_with_logits(out.logits[counted], labels[counted].float())
    assert out.logits.shape == (2, 9) and torch.allclose(out.loss, expected)
    halved = model(ids, attention_mask=mask, labels=labels, num_items_in_batch=2 * counted.sum())
    assert torch.allclose(halved.loss, expected / 2)


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem_type"),
    [
        (1, torch.tensor([0.5, 2.0]), "regression"),
        (1, torch.tensor([[0.5], [2.0]]), "regression"),
        (1, torch.tensor([1, 0]), "regression"),
        (3, torch.tensor([[0.5, 2.0, 1.0], [0.0, 1.0, 2.0]]), "regression"),
        (3, torch.tensor([2, 0]), "single_label_classification"),
        (3, torch.tensor([[2], [0]]), "single_label_classification"),
        (3, torch.tensor([2, -100]), "single_label_classification"),
        (3, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), "multi_label_classification"),
        (3, torch.tensor([[1, 0, 1], [0, 0, 1]]), "multi_label_classification"),
    ],
)
def test_sequence_classification_takes_every_label_shape(num_labels, labels, problem_type, tiny_config, batch):
    ids, mask = batch(2, 9, [9, 5])
    given = problem_type if num_labels > 1 and problem_type == "regression" else None
    model = DebertaExtForSequenceClassification(tiny_config(num_labels=num_labels, problem_type=given)).eval()
    without = model(ids, attention_mask=mask).logits
    out = model(ids, attention_mask=mask, labels=labels)
    assert model.config.problem_type == problem_type
    assert torch.equal(out.logits, without) and out.logits.shape == (2, num_labels)
    expected = {
        "regression": lambda x: functional.mse_loss(x.flatten(), labels.float().flatten()),
        "single_label_classification": lambda x: functional.cross_entropy(x, labels.flatten()),
        "multi_label_classification": lambda x: functional.binary_cross_entropy_with_logits(x, labels.float()),
    }[problem_type](out.logits)
    assert torch.allclose(out.loss, expected)
    out.loss.backward()


def test_multi_label_ignores_minus_100(tiny_config, batch):
    ids, _ = batch(2, 9)
    model = DebertaExtForSequenceClassification(tiny_config(num_labels=3)).eval()
    labels = torch.tensor([[1.0, -100, 0], [0, 1, -100]])
    out = model(ids, labels=labels)
    counted = labels != -100
    expected = functional.binary_cross_entropy_with_logits(out.logits[counted], labels[counted])
    assert torch.allclose(out.loss, expected)


def test_labels_that_do_not_fit_are_refused(tiny_config, batch):
    ids, _ = batch(2, 9)
    model = DebertaExtForSequenceClassification(tiny_config(num_labels=3))
    with pytest.raises(ValueError, match=r"integer labels, got torch.float32; for regression set num_labels = 1"):
        DebertaExtForSequenceClassification(tiny_config(num_labels=3))(ids, labels=torch.tensor([0.9, 0.2]))
    with pytest.raises(ValueError, match=r"labels of shape \[2, 2\] do not fit logits of shape \[2, 3\]"):
        model(ids, labels=torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"multiple choice takes input_ids \[batch, choices, length\], got \[2, 9\]"):
        DebertaExtForMultipleChoice(tiny_config())(ids)


def test_question_answering_ignores_positions_outside_and_any_num_labels(tiny_config, batch):
    model = DebertaExtForQuestionAnswering(tiny_config(num_labels=7)).eval()
    ids, _ = batch(3, 9)
    start, end = torch.tensor([1, 9, 3]), torch.tensor([[4], [12], [-1]])
    out = model(ids, start_positions=start, end_positions=end)
    expected = functional.cross_entropy(out.start_logits[[0, 2]], torch.tensor([1, 3]))
    expected = (expected + functional.cross_entropy(out.end_logits[[0]], torch.tensor([4]))) / 2
    assert torch.allclose(out.loss, expected)


def test_multiple_choice_scores_each_choice_by_itself(tiny_config, batch):
    model = DebertaExtForMultipleChoice(tiny_config()).eval()
    ids, mask = batch(6, 9, [9, 5, 3, 9, 8, 2])
    out = model(ids.view(2, 3, 9), attention_mask=mask.view(2, 3, 9), labels=torch.tensor([2, 0]))
    single = model(ids.view(6, 1, 9), attention_mask=mask.view(6, 1, 9)).logits
    assert torch.allclose(out.logits.view(6, 1), single, atol=1e-6)
    assert torch.allclose(out.loss, functional.cross_entropy(out.logits, torch.tensor([2, 0])))


@pytest.mark.parametrize("head", HEADS)
def test_resize_keeps_old_rows_and_trains(head, tiny_config, batch, tmp_path):
    model = head(tiny_config()).eval()
    ids, mask = batch(2, 9, [9, 5])
    if head is DebertaExtForMultipleChoice:
        ids, mask = ids.view(1, 2, 9), mask.view(1, 2, 9)
    with torch.no_grad():
        before = model(ids, attention_mask=mask)[0]
        model.resize_token_embeddings(70)
        after = model(ids, attention_mask=mask)[0]
    assert torch.allclose(after[..., : before.shape[-1]], before, atol=1e-6)
    out = model.train()(ids.clamp(min=66), attention_mask=mask)[0]
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert model.get_input_embeddings().weight.grad[66].any()
    model.eval().save_pretrained(tmp_path)
    assert torch.equal(head.from_pretrained(tmp_path)(ids, attention_mask=mask)[0], after)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_every_trainable_parameter_of_a_head_gets_a_gradient(head, loaded, tiny_config, batch, tmp_path):
    """No find_unused_parameters: what forward does not read is kept without a gradient, after loading as well."""
    model = head(tiny_config("v2", type_vocab_size=2))
    if loaded:
        model.save_pretrained(tmp_path)
        model = head.from_pretrained(tmp_path)
    ids, mask = batch(2, 9, [9, 5])
    if head is DebertaExtForMultipleChoice:
        ids, mask = ids.view(1, 2, 9), mask.view(1, 2, 9)
    out = model(ids, attention_mask=mask)
    sum(value.square().sum() for value in out.values()).backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen == (
        [] if head is DebertaExtForMaskedLM else [n for n in frozen if n.endswith("position_embeddings.weight")]
    )
