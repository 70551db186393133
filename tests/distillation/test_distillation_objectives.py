# SPDX-License-Identifier: Apache-2.0
"""Losses of distillation equal their formulas in float64, and a student that is the teacher has none."""

import math
from functools import partial

import pytest
import torch
import transformers

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.distillation.objectives import attention_recorded, cosine_loss, relation_loss, signals, soft_label_loss

NAN = math.nan


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gaps(x):
    """Return a teacher's signal whose row 0 has one token fewer and whose row 1 has a token that is not aligned."""
    x = x.clone()
    x[0, -1] = x[1, 1] = NAN
    return x


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a > 0)


def by_hand(name, student, teacher, T=2.0, heads=2):
    """Compute a loss token by token."""
    B = len(teacher)
    places = [(b, i) for b in range(B) for i in range(teacher.shape[1]) if not teacher[b, i].isnan().any()]
    if name == "classes":
        terms = [kl((teacher[p] / T).softmax(-1), (student[p] / T).softmax(-1)) for p in places]
        return T**2 * sum(terms) / len(terms)
    if name == "labels":
        terms = []
        for place in places:
            for t, s in zip(*((x[place] / T).sigmoid() for x in (teacher, student)), strict=True):
                terms.append(kl(torch.stack([t, 1 - t]), torch.stack([s, 1 - s])))
        return T**2 * sum(terms) / len(terms)
    if name == "positions":
        terms = []
        for b in range(B):
            kept = [i for row, i in places if row == b]
            for column in range(teacher.shape[2]):
                terms.append(kl(*((x[b, kept, column] / T).softmax(-1) for x in (teacher, student))))
        return T**2 * sum(terms) / len(terms)
    if name == "scores":
        return sum((student[p] - teacher[p]).square().mean() for p in places) / len(places)
    if name == "cosine":
        return sum(1 - student[p] @ teacher[p] / student[p].norm() / teacher[p].norm() for p in places) / len(places)
    terms = []
    for b in range(B):
        kept = [i for row, i in places if row == b]
        for head in range(3 * heads):
            relations = []
            for x in (teacher, student):
                size = x.shape[-1] // (3 * heads)
                A = x[b, kept, head * size : (head + 1) * size]
                relations.append((A @ A.T / math.sqrt(size)).softmax(-1))
            terms += [(kl(t, s), len(kept)) for t, s in zip(*relations, strict=True)]
    return sum(term for term, _ in terms) / (3 * heads * len(places))


LOSSES = {
    **{kind: partial(soft_label_loss, kind=kind, T=2.0) for kind in ("classes", "labels", "positions", "scores")},
    "cosine": cosine_loss,
    "relations": partial(relation_loss, heads=2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_equals_its_formula_and_has_gradients_where_the_teacher_is_aligned_alone(name):
    student, teacher = drawn(2, 5, 12).requires_grad_(), with_gaps(drawn(2, 5, 12, seed=1))
    loss = LOSSES[name](student, teacher)
    assert loss.item() == pytest.approx(float(by_hand(name, student.detach(), teacher)), rel=1e-12)
    loss.backward()
    has_gradient = student.grad.abs().sum(-1) > 0
    assert student.grad.isfinite().all() and (has_gradient == ~teacher.isnan().any(-1)).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_equal_signals_is_zero_and_its_gradient_too(name):
    teacher = with_gaps(drawn(2, 5, 12))
    student = torch.nan_to_num(teacher, 7.0).requires_grad_()
    loss = LOSSES[name](student, teacher)
    loss.backward()
    assert abs(loss.item()) < 1e-12 and student.grad.abs().max() < 1e-9


def test_starts_that_are_no_first_token_have_no_probability():
    student, teacher = drawn(1, 4, 2), drawn(1, 4, 2, seed=1)
    teacher[0, 2, 0] = -math.inf
    kept = [0, 1, 3]
    expected = kl(teacher[0, kept, 0].softmax(-1), student[0, kept, 0].softmax(-1))
    expected += kl(teacher[0, :, 1].softmax(-1), student[0, :, 1].softmax(-1))
    assert soft_label_loss(student, teacher, "positions").item() == pytest.approx(expected / 2, rel=1e-12)


def test_relations_of_models_of_different_widths_have_heads_that_divide_both():
    student, teacher = drawn(2, 4, 3 * 24), drawn(2, 4, 3 * 36, seed=1)
    assert relation_loss(student, teacher) == relation_loss(student, teacher, heads=12)
    assert relation_loss(student, teacher) != relation_loss(student, teacher, heads=6)


SIZES = dict(vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48)
CONFIGS = {
    "ours": DebertaExtConfig(**SIZES, position_buckets=16, max_position_embeddings=64),
    "bert": transformers.BertConfig(**SIZES, max_position_embeddings=64),
    "distilbert": transformers.DistilBertConfig(vocab_size=60, dim=32, n_layers=3, n_heads=4, hidden_dim=48),
    "llama": transformers.LlamaConfig(**SIZES, pad_token_id=0),
}


def inputs_and_mask():
    ids = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return ids * mask, mask


def read(model, names, layer=-1):
    ids, mask = inputs_and_mask()
    if hasattr(model, "set_unpadding"):
        model.set_unpadding(False)
    with attention_recorded(model, layer, names) as attention:
        outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    return signals(names, outputs, mask, attention, layer), mask


def test_relations_are_queries_keys_and_values_of_the_layer_and_need_separate_projections():
    torch.manual_seed(0)
    for family, paths in (
        ("ours", ["attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"]),
        ("bert", ["attention.self.query", "attention.self.key", "attention.self.value"]),
    ):
        model = transformers.AutoModel.from_config(CONFIGS[family]).eval()
        found, _ = read(model, ["hidden", "relations"], layer=-2)
        states = model(*inputs_and_mask(), output_hidden_states=True).hidden_states[1]
        layer = model.encoder.layer[1]
        expected = torch.cat([layer.get_submodule(path)(states) for path in paths], -1)
        real = inputs_and_mask()[1].bool()
        torch.testing.assert_close(found["relations"][real], expected[real])
    model = transformers.AutoModel.from_config(
        transformers.XLNetConfig(vocab_size=60, d_model=32, n_layer=1, n_head=2, d_inner=32)
    )
    with pytest.raises(ValueError, match="XLNetModel has no separate projections of queries, keys and values"):
        with attention_recorded(model, -1, ["relations"]):
            pass


def test_embeddings_are_the_mean_of_real_tokens_and_heads_have_their_logits():
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(CONFIGS["bert"]).eval()
    found, mask = read(model, ["embeddings", "hidden"])
    for row, count in enumerate(mask.sum(1).tolist()):
        torch.testing.assert_close(found["embeddings"][row, 0], found["hidden"][row, :count].mean(0))
    for auto, shape in (
        (transformers.AutoModelForSequenceClassification, (2, 1, 2)),
        (transformers.AutoModelForQuestionAnswering, (2, 7, 2)),
    ):
        model = auto.from_config(CONFIGS["ours"]).eval()
        assert read(model, ["soft_labels"])[0]["soft_labels"].shape == shape
