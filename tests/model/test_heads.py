# SPDX-License-Identifier: Apache-2.0
"""Losses, label shapes and vocabulary changes of the heads."""

import math
from types import SimpleNamespace

import pytest
import torch
from every_head import CLASSES, KINDS, call_of, small
from rounding import equal_outputs
from torch.nn import functional

from hf_deberta_ext import ReplacedTokenDetectionHead
from hf_deberta_ext.model.modeling_deberta_ext import cross_entropy, mean_loss, sequence_loss

HEADS = [name for name in CLASSES if name != "pretraining"]


def inputs_of(name):
    """Return inputs of a head without labels."""
    labels = ("labels", "start_positions", "end_positions")
    return {key: x for key, x in call_of(name).items() if key not in labels}


def test_cross_entropy_by_hand_and_a_mean_loss_of_nothing_is_zero_with_a_gradient():
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 5.0], [1.0, 2.0]])
    labels = torch.tensor([1, 0, -100])
    expected = (-math.log(0.75) - math.log(0.5)) / 2
    assert abs(cross_entropy(logits, labels).item() - expected) < 1e-6
    assert abs(cross_entropy(logits, labels, num_items_in_batch=8).item() - expected * 2 / 8) < 1e-6
    x = torch.zeros(3, requires_grad=True)
    mean_loss(x * 0, count=0).backward()
    assert not x.grad.any()
    for items in (0, torch.tensor(0)):
        assert mean_loss(x * 0, count=0, num_items_in_batch=items).item() == 0


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_of_decoders_are_ignored_by_name_and_others_refused(name, tiny_config):
    """Test use_cache, which trl's RewardTrainer passes."""
    model, batch = small(name, "v3", tiny_config).eval(), call_of(name)
    given = dict(use_cache=False, past_key_values=None, cache_position=None, output_router_logits=False)
    torch.manual_seed(0)
    expected = model(**batch)
    torch.manual_seed(0)
    assert equal_outputs(model(**batch, **given, return_dict=False)[0], expected[0])
    with pytest.raises(TypeError, match="attention_maks"):
        model(**batch, attention_maks=batch["attention_mask"])


def test_rtd_head_by_hand_and_its_loss_counts_real_tokens_that_have_a_label(tiny_config, shake, batch):
    """Compute LayerNorm with the [CLS] state added to every token, then dense, activation, and one logit."""
    head = shake(ReplacedTokenDetectionHead(tiny_config()))
    h = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    x = functional.layer_norm(h + h[:, :1], (32,), head.LayerNorm.weight, head.LayerNorm.bias, 1e-7)
    x = functional.gelu(x @ head.dense.weight.T + head.dense.bias)
    expected = (x @ head.classifier.weight.T + head.classifier.bias)[..., 0]
    assert torch.allclose(head(h), expected, atol=1e-6)
    model = CLASSES["replaced-token-detection"](tiny_config()).eval()
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
    ("problem_type", "num_labels", "labels"),
    [
        ("regression", 1, [0.5, 2.0]),
        ("regression", 3, [[0.5, 2.0, 1.0], [0.0, 1.0, 2.0]]),
        ("single_label_classification", 3, [2, -100]),
        ("multi_label_classification", 3, [[1.0, -100, 0], [0, 1, -100]]),
        # Rerankers and reward models: one score, trained by binary cross-entropy.
        ("multi_label_classification", 1, [[1.0], [0.25]]),
    ],
)
def test_losses_of_a_text_classifier_leave_out_labels_of_minus_100(problem_type, num_labels, labels, tiny_config, batch):
    ids, mask = batch(2, 9, [9, 5])
    labels = torch.tensor(labels)
    inferred = (num_labels == 1) == (problem_type == "regression")
    config = tiny_config(num_labels=num_labels, problem_type=None if inferred else problem_type)
    model = CLASSES["sequence-classification"](config).eval()
    without = model(ids, attention_mask=mask).logits
    out = model(ids, attention_mask=mask, labels=labels)
    assert model.config.problem_type == problem_type
    assert torch.equal(out.logits, without) and out.logits.shape == (2, num_labels)
    flat, counted = labels.flatten(), labels.flatten() != -100
    if problem_type == "regression":
        expected = functional.mse_loss(out.logits.flatten(), flat.float())
    elif problem_type == "single_label_classification":
        expected = functional.cross_entropy(out.logits, flat)
    else:
        expected = functional.binary_cross_entropy_with_logits(out.logits.flatten()[counted], flat[counted].float())
    assert torch.allclose(out.loss, expected)
    out.loss.backward()


def test_question_answering_ignores_positions_outside_and_any_num_labels(tiny_config, batch):
    model = CLASSES["question-answering"](tiny_config(num_labels=7)).eval()
    ids, _ = batch(3, 9)
    start, end = torch.tensor([1, 9, 3]), torch.tensor([[4], [12], [-1]])
    out = model(ids, start_positions=start, end_positions=end)
    expected = functional.cross_entropy(out.start_logits[[0, 2]], torch.tensor([1, 3]))
    expected = (expected + functional.cross_entropy(out.end_logits[[0]], torch.tensor([4]))) / 2
    assert torch.allclose(out.loss, expected)
    # Regression test: with only one end of an answer, there was no loss and no error.
    for positions, message in (
        (dict(start_positions=start), "expected both start_positions and end_positions, or neither"),
        (dict(start_positions=start.float(), end_positions=end), "end_positions must be integers, got torch.float32"),
        (dict(start_positions=start, end_positions=end[:2]), r"end_positions must have shape \[3\] or .*, got \[2, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model(ids, **positions)


def test_multiple_choice_scores_each_choice_by_itself(tiny_config, batch):
    model = CLASSES["multiple-choice"](tiny_config()).eval()
    ids, mask = batch(6, 9, [9, 5, 3, 9, 8, 2])
    out = model(ids.view(2, 3, 9), attention_mask=mask.view(2, 3, 9), labels=torch.tensor([2, 0]))
    single = model(ids.view(6, 1, 9), attention_mask=mask.view(6, 1, 9)).logits
    assert torch.allclose(out.logits.view(6, 1), single, atol=1e-6)
    assert torch.allclose(out.loss, functional.cross_entropy(out.logits, torch.tensor([2, 0])))


@pytest.mark.parametrize("head", HEADS)
def test_resize_keeps_old_rows_and_trains(head, tiny_config, tmp_path):
    model, inputs = small(head, "v3", tiny_config).eval(), inputs_of(head)
    with torch.no_grad():
        before = model(**inputs)[0]
        model.resize_token_embeddings(46)
        after = model(**inputs)[0]
    assert torch.allclose(after[..., : before.shape[-1]], before, atol=1e-6)
    new = inputs["input_ids"].clamp(min=42)
    out = model.train()(**inputs | dict(input_ids=new))[0]
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert model.get_input_embeddings().weight.grad[42].any()
    model.eval().save_pretrained(tmp_path)
    assert equal_outputs(CLASSES[head].from_pretrained(tmp_path)(**inputs)[0], after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_every_trainable_parameter_of_a_head_gets_a_gradient(head, loaded, kind, tiny_config, tmp_path):
    """Check that find_unused_parameters is not needed: unused parameters are frozen, also after loading."""
    model = small(head, kind, tiny_config, type_vocab_size=2)
    if loaded:
        model.save_pretrained(tmp_path)
        model = CLASSES[head].from_pretrained(tmp_path)
    out = model(**inputs_of(head))
    sum(value.square().sum() for value in out.values()).backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert head != "masked-lm" and name.endswith("position_embeddings.weight")


IDS = torch.ones(2, 4).long()


@pytest.mark.parametrize("head", ["masked-lm", "token-classification"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (IDS * 0.7, "labels must be integers, got torch.float32"),
        (IDS.T, r"labels must have shape \[2, 4\] or \[8\], got \[4, 2\]"),
        (IDS[:1], r"labels must have shape \[2, 4\] or \[8\], got \[1, 4\]"),
    ],
)
def test_labels_of_tokens_are_refused_by_shape_and_dtype(head, labels, message, tiny_config):
    """Regression test: 0.7 was read as 0, and labels [N, B] as [B, N]."""
    with pytest.raises(ValueError, match=message):
        CLASSES[head](tiny_config())(IDS, labels=labels)


@pytest.mark.parametrize("masked_only", [True, False])
def test_flat_labels_are_taken_at_masked_positions_and_beside_document_ids(masked_only, tiny_config):
    """Regression test: masked_only expected two dimensions, and flat labels were compared with document ids [B, N]."""
    model = CLASSES["masked-lm"](tiny_config()).eval()
    labels = torch.tensor([[5, -100, 7, -100], [-100, -100, -100, 3]])
    for more in ({}, dict(document_ids=torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]]))):
        flat = model(IDS, labels=labels.flatten(), masked_only=masked_only, **more)
        assert torch.equal(flat.loss, model(IDS, labels=labels, masked_only=masked_only, **more).loss)


@pytest.mark.parametrize(("value", "shown"), [(5.0, "5.0"), (-0.25, "-0.25"), (float("nan"), "nan")])
def test_rtd_labels_are_fractions(value, shown, tiny_config):
    """Regression test: labels of 5 gave an unbounded loss."""
    model = CLASSES["replaced-token-detection"](tiny_config())
    with pytest.raises(ValueError, match=rf"labels must be in \[0, 1\], or -100 \(ignored\), got {shown}"):
        model(IDS, labels=torch.full((2, 4), value))
    with pytest.raises(ValueError, match=r"labels must have shape \[2, 4\] or \[8\], got \[4, 2\]"):
        model(IDS, labels=IDS.T)
    assert model(IDS, labels=IDS * -100).loss == 0


PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


def torch_loss(logits, labels, problem):
    """Compute transformers' ForSequenceClassificationLoss."""
    B, C = logits.shape
    if problem == "regression":
        return functional.mse_loss(logits, labels.view(B, C).float())
    if problem == "single_label_classification":
        return functional.cross_entropy(logits, labels.view(B).long())
    return functional.binary_cross_entropy_with_logits(logits, labels.view(B, C).float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool], ids=str)
@pytest.mark.parametrize("num_labels", [1, 2, 4])
@pytest.mark.parametrize("problem", PROBLEM_TYPES)
def test_labels_of_texts_have_their_loss_or_are_refused(problem, num_labels, dtype):
    """Refused labels do not set problem_type. Regression test: labels [C, B] were reshaped to [B, C]."""
    B, C = 3, num_labels
    generator = torch.Generator().manual_seed(0)
    for shape in ([B], [B, 1], [B, C], [B, C + 1], [B + 1], [B + 1, C], [C, B], [B, C, 1], [B, 0], []):
        labels = torch.randint(0, min(C, 2), shape, generator=generator).to(dtype)
        logits = torch.randn(B, C, generator=generator)
        config = SimpleNamespace(problem_type=problem)
        is_one, is_row = shape in ([B], [B, 1]), shape == [B, C]
        chosen = problem or ("regression" if C == 1 else PROBLEM_TYPES[2] if is_one else PROBLEM_TYPES[3])
        if chosen == PROBLEM_TYPES[2]:
            fits = is_one and dtype != torch.float32
        else:
            fits = is_row or (is_one and C == 1)
        if fits:
            assert torch.allclose(sequence_loss(logits, labels, config), torch_loss(logits, labels, chosen), atol=1e-6)
            assert config.problem_type == chosen
        else:
            with pytest.raises(ValueError, match=f"num_labels = {C}|must be integers"):
                sequence_loss(logits, labels, config)
            assert config.problem_type == problem
    if problem == PROBLEM_TYPES[3]:
        with pytest.raises(ValueError, match=r"labels must be in \[0, 1\], .* got 5.0"):
            sequence_loss(logits, torch.full([B, C], 5.0), SimpleNamespace(problem_type=problem))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(labels=torch.zeros(3).long()), r"labels must have shape \[2\] or \[2, 1\], got \[3\]"),
        (dict(input_ids=IDS), r"input_ids must have shape \[batch, choices, length\] for multiple choice, got \[2, 4\]"),
    ],
)
def test_wrong_inputs_of_multiple_choice_are_named_as_they_were_given(arguments, message, tiny_config):
    model = CLASSES["multiple-choice"](tiny_config("v3", type_vocab_size=2))
    with pytest.raises(ValueError, match=message):
        model(**(dict(input_ids=torch.ones(2, 3, 4).long()) | arguments))


@pytest.mark.parametrize("name", ["question-answering", "entity-scoring", "multiple-choice", "sequence-classification"])
def test_heads_of_whole_rows_refuse_documents(name, tiny_config):
    """Check the error, because documents would attend to each other, or would have to be separate rows."""
    model, batch = small(name, "v3", tiny_config).eval(), call_of(name)
    with pytest.raises(TypeError, match="unexpected arguments: document_ids"):
        model(**batch, document_ids=torch.ones_like(batch["input_ids"]))


def test_entities_of_a_left_padded_row_have_the_scores_of_the_row(tiny_config, shake):
    model = shake(small("entity-scoring", "v3", tiny_config)).eval()
    ids, entities = torch.arange(1, 10)[None], torch.tensor([[[2, 3], [5, 0]]])
    padded = functional.pad(ids, (3, 0))
    expected = model(ids, attention_mask=torch.ones_like(ids), entity_indices=entities).logits
    moved = torch.where(entities > 0, entities + 3, 0)
    scores = model(padded, attention_mask=(padded != 0).long(), entity_indices=moved).logits
    assert torch.allclose(scores, expected, atol=1e-5)
