# SPDX-License-Identifier: Apache-2.0
"""Test `divergence`: hand-computed values, which items count, and gradients."""

import math
from types import SimpleNamespace

import pytest
import torch

from hf_deberta_ext.sift.output_distance import LOSSES, divergence, real_tokens

SINGLE = SimpleNamespace(problem_type=None, num_labels=2)
IDS = torch.ones(2, 3, dtype=torch.long)


def classifier(*logits):
    return dict(logits=torch.tensor(logits, dtype=torch.float64))


# p = (1/2, 1/2), q = (3/4, 1/4)
P, Q = (0.0, 0.0), (math.log(3), 0.0)
KL_PQ = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
KL_QP = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
CROSS = -0.5 * math.log(0.75 * 0.25) + math.log(2)
LOSSES_BY_HAND = dict(kl=KL_PQ, symmetric_kl=KL_PQ + KL_QP, symmetric_cross_entropy=CROSS, mse=math.log(3) ** 2 / 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_a_classifier_by_hand(loss):
    values, counts, change = divergence(classifier(P, P), classifier(Q, P), {"input_ids": IDS}, SINGLE, loss)
    same = 2 * math.log(2) if loss == "symmetric_cross_entropy" else 0.0
    torch.testing.assert_close(values, torch.tensor([LOSSES_BY_HAND[loss], same], dtype=torch.float64))
    assert counts.tolist() == [True, True] and change.item() == pytest.approx(math.log(3) / 4)


def test_regression_is_the_squared_error_whatever_the_loss():
    config = SimpleNamespace(problem_type=None, num_labels=1)
    for loss in LOSSES:
        for shape in ((2, 1), (2,)):
            clean = dict(logits=torch.tensor([1.0, 2.0]).view(shape))
            other = dict(logits=torch.tensor([1.5, 4.0]).view(shape))
            values, _, change = divergence(clean, other, {"input_ids": IDS}, config, loss)
            assert values.tolist() == [0.25, 4.0] and change.item() == 1.25


def test_several_labels_are_each_a_yes_or_no():
    for problem, more, expected in (
        # The first label changes from 1/2 to 3/4, the second does not.
        ("multi_label_classification", {}, KL_PQ / 2),
        (None, dict(labels=torch.zeros(1, 2)), KL_PQ / 2),
        (None, dict(labels=torch.zeros(1, dtype=torch.long)), KL_PQ),
    ):
        config = SimpleNamespace(problem_type=problem, num_labels=2)
        values, _, _ = divergence(classifier(P), classifier(Q), {"input_ids": IDS} | more, config, "kl")
        assert values.item() == pytest.approx(expected)


def test_of_tokens_those_with_a_label_count_or_those_of_the_mask():
    clean = dict(logits=torch.zeros(2, 3, 2))
    other = dict(logits=torch.tensor([0.0, 1.0, 2.0])[None, :, None].repeat(2, 1, 2) * torch.tensor([1.0, -1]))
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    labels = torch.tensor([[-100, 1, -100], [-100, 0, -100]])
    _, counts, change = divergence(clean, other, {"input_ids": IDS, "attention_mask": mask, "labels": labels}, SINGLE)
    assert counts.tolist() == [False, True, False, False, True, False] and change.item() == 1.0
    _, counts, change = divergence(clean, other, {"input_ids": IDS, "attention_mask": mask}, SINGLE)
    assert counts.tolist() == [True, True, True, True, True, False] and change.item() == pytest.approx(4 / 5)
    assert divergence(clean, other, {"input_ids": IDS}, SINGLE)[1].all()


@pytest.mark.parametrize("loss", LOSSES)
def test_answers_do_not_depend_on_the_logits_of_padding(loss):
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    generator = torch.Generator().manual_seed(0)
    start, end, other_start, other_end = torch.randn(4, 2, 3, generator=generator)

    def compared(padding):
        def logits(values):
            return values.masked_fill(mask == 0, padding).requires_grad_()

        clean = dict(start_logits=logits(start), end_logits=logits(end))
        other = dict(start_logits=logits(other_start), end_logits=logits(other_end))
        values, counts, change = divergence(clean, other, {"input_ids": IDS, "attention_mask": mask}, SINGLE, loss)
        (gradient,) = torch.autograd.grad(values.sum(), other["end_logits"])
        assert counts.all() and torch.isfinite(gradient).all() and gradient[1, 2] == 0
        return values, change

    first, last = compared(5.0), compared(torch.finfo(torch.float32).min)
    torch.testing.assert_close(first, last)
    # The second row has two positions, computed by hand.
    short = [classifier(logits[1, :2].tolist()) for logits in (start, other_start, end, other_end)]
    parts = [divergence(*short[i : i + 2], {"input_ids": IDS}, SINGLE, loss)[0].item() for i in (0, 2)]
    assert first[0][1].item() == pytest.approx(sum(parts) / 2, rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_choices_that_are_not_there_do_not_count(loss):
    config = SimpleNamespace(problem_type=None, num_labels=1)
    inputs = {"input_ids": torch.ones(1, 3, 3, dtype=torch.long), "labels": torch.tensor([[0, 1, -100]])}

    def compared(absent):
        pair = [dict(logits=torch.tensor([[*logits, extra]])) for logits, extra in ((P, absent), (Q, 0.0))]
        values, _, change = divergence(*pair, inputs, config, loss)
        return values.item(), change.item()

    expected, _, _ = divergence(classifier(P), classifier(Q), {"input_ids": IDS}, SINGLE, loss)
    assert compared(5.0) == compared(-5.0) == pytest.approx((expected.item(), math.log(3) / 2))


def test_symmetric_cross_entropy_has_the_gradients_of_two_kl_divergences_with_constant_targets():
    generator = torch.Generator().manual_seed(1)
    p, q = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    gradients = []
    for kind in ("symmetric_cross_entropy", "by hand"):
        a, b = p.clone().requires_grad_(), q.clone().requires_grad_()
        if kind == "by hand":
            P, Q = a.softmax(-1), b.softmax(-1)
            total = (P.detach() * (P.detach().log() - Q.log())).sum() + (Q.detach() * (Q.detach().log() - P.log())).sum()
        else:
            outputs = dict(logits=a), dict(logits=b)
            total = divergence(*outputs, {"input_ids": IDS}, SimpleNamespace(problem_type=None, num_labels=3), kind)[0].sum()
        gradients.append(torch.autograd.grad(total, (a, b)))
    torch.testing.assert_close(gradients[0], gradients[1])
    assert all(gradient.abs().min() > 0 for gradient in gradients[0])


def test_real_tokens_of_every_kind_of_mask():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    pairs = mask[:, :, None] * mask[:, None, :]
    assert real_tokens({"input_ids": IDS}) is None
    for inputs in (
        dict(attention_mask=mask),
        dict(attention_mask=pairs),
        dict(attention_mask=pairs[:, None].bool()),
        dict(input_ids=IDS[None], attention_mask=mask[None]),
        dict(document_ids=torch.tensor([[1, 2, 0], [3, 0, 0]])),
    ):
        assert real_tokens({"input_ids": IDS} | inputs).tolist() == mask.bool().tolist()
