# SPDX-License-Identifier: Apache-2.0
"""Test `SiftTrainer`: equality with Trainer at weight 0, accumulation, precision, checkpointing."""

import pytest
import torch
from accumulation import exact_accumulation
from every_head import CLASSES
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, set_seed

from hf_deberta_ext.sift import PRESETS, SiftArguments, SiftTrainer


def row(ids, index, kind):
    """Return a row for a kind of head, with labels that follow from its tokens."""
    mask = torch.ones_like(ids)
    mask[len(ids) - index % 3 :] = 0
    inputs = dict(input_ids=ids * mask, attention_mask=mask)
    if kind == "tokens":
        # Rows have different numbers of labelled tokens.
        counted = (torch.arange(len(ids)) <= index % 5) & (mask == 1)
        return inputs | dict(labels=torch.where(counted, ids % 3, -100))
    if kind in ("multi-label", "partly labelled"):
        absent = torch.arange(3) > index % 2 + 2 * (kind == "multi-label")
        return inputs | dict(labels=(ids[:3] % 2).float().masked_fill(absent, -100))
    if kind == "answers":
        return inputs | dict(start_positions=ids[0] % 3, end_positions=3 + ids[1] % 2)
    if kind == "choices":
        return {name: torch.stack([values, values.flip(0)]) for name, values in inputs.items()} | dict(labels=ids[0] % 2)
    return inputs | dict(labels=ids[0] % 3)


def rows(count=24, kind="sequence"):
    every_id = torch.randint(5, 64, (count, 8), generator=torch.Generator().manual_seed(0))
    return [row(ids, index, kind) for index, ids in enumerate(every_id)]


# All other kinds of labels have a text classifier.
HEADS = {"tokens": "token-classification", "answers": "question-answering", "choices": "multiple-choice"}


def model_of(tiny_config, kind="sequence", dropout=0.1):
    set_seed(0)
    labels = 2 if kind == "answers" else 3
    problem = dict(problem_type="multi_label_classification") if kind in ("multi-label", "partly labelled") else {}
    dropouts = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model_class = CLASSES[HEADS.get(kind, "sequence-classification")]
    return model_class(tiny_config("v3", num_labels=labels, **dropouts, **problem))


def arguments(folder, kind=SiftArguments, **more):
    common = dict(
        max_steps=4, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1, report_to="none", disable_tqdm=True,
        use_cpu=True, save_strategy="no", seed=3,
    )  # fmt: skip
    return kind(str(folder), **(common | more))


def train(trainer, **more):
    trainer.train(**more)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return logs, {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_weight_0_and_steps_before_the_start_are_trainer_to_the_last_bit(tiny_config, tmp_path):
    plain = train(Trainer(model_of(tiny_config), arguments(tmp_path, TrainingArguments), train_dataset=rows()))
    other = train(SiftTrainer(model_of(tiny_config), arguments(tmp_path), train_dataset=rows()))
    assert [entry["loss"] for entry in plain[0]] == [entry["loss"] for entry in other[0]]
    assert all(torch.equal(plain[1][name], other[1][name]) for name in plain[1])
    assert not any(name.startswith("sift") for entry in other[0] for name in entry)
    plain, _ = other
    args = arguments(tmp_path, sift_weight=1.0, sift_start_step=2)
    logs, _ = train(SiftTrainer(model_of(tiny_config), args, train_dataset=rows()))
    assert [entry["loss"] for entry in logs[:2]] == [entry["loss"] for entry in plain[:2]]
    assert [("sift_loss" in entry) for entry in logs] == [False, False, True, True]
    # The third step has the same weights and clean loss, plus the adversarial loss.
    assert logs[2]["loss"] == pytest.approx(plain[2]["loss"] + logs[2]["sift_loss"], rel=1e-4)
    assert logs[3]["loss"] != plain[3]["loss"]


def test_what_is_logged_and_that_evaluation_runs_one_pass(tiny_config, tmp_path):
    model = model_of(tiny_config)
    args = arguments(tmp_path, sift_weight=2.0, logging_steps=2)
    trainer = SiftTrainer(model, args, train_dataset=rows(), eval_dataset=rows(8))
    passes = []
    model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    logs, _ = train(trainer)
    # Clean pass, ascent step and perturbed pass.
    assert passes == [True] * 3 * 4
    for entry in logs:
        assert 0 < entry["sift_size"] <= 0.02 + 1e-6 and entry["sift_loss"] > 0 and entry["sift_change"] > 0
    assert not model.deberta.embeddings.LayerNorm._forward_pre_hooks
    passes.clear()
    trainer.evaluate()
    assert passes == [False]


@pytest.mark.parametrize("kind", ["sequence", "multi-label", *HEADS])
@exact_accumulation
def test_gradient_accumulation_changes_neither_losses_nor_weights(tiny_config, tmp_path, kind):
    """Check also micro-batches with different numbers of labelled tokens: each item counts once in a step."""
    results = []
    for accumulation in (1, 4):
        # Noise is drawn for each micro-batch, so δ is computed here only from the gradient.
        args = arguments(
            tmp_path, sift_weight=1.0, sift_form="virtual", sift_init_size=1e-3, sift_learning_rate=0.1, learning_rate=1e-3,
            per_device_train_batch_size=8 // accumulation, gradient_accumulation_steps=accumulation, max_steps=2,
            sift_steps=0, max_grad_norm=0,
        )  # fmt: skip
        trainer = SiftTrainer(model_of(tiny_config, kind, dropout=0.0), args, train_dataset=rows(kind=kind))
        fixed_noise(trainer)
        logs, weights = train(trainer)
        losses = [entry[name] for entry in logs for name in ("loss", "sift_loss")]
        results.append((losses, [entry["grad_norm"] for entry in logs], weights))
    (losses, norms, weights), (expected, expected_norms, expected_weights) = results
    assert losses == pytest.approx(expected, rel=1e-4)
    assert norms == pytest.approx(expected_norms, rel=1e-3)
    # AdamW's first steps are approximately the sign of the gradient.
    head = "qa_outputs.weight" if kind == "answers" else "classifier.weight"
    torch.testing.assert_close(weights[head], expected_weights[head], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["multi-label", "partly labelled"])
def test_labels_of_several_classes_are_one_item_each(kind, tiny_config, tmp_path):
    """Divide by examples. Bug: Trainer counts elements of labels [B, C] that are not -100."""
    losses = []
    for counts in (True, False):
        args = arguments(tmp_path, sift_weight=1.0, max_steps=1)
        trainer = SiftTrainer(model_of(tiny_config, kind), args, train_dataset=rows(kind=kind))
        trainer.model_accepts_loss_kwargs = counts
        logs, _ = train(trainer)
        losses.append(logs[0]["sift_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0] > 0


def fixed_noise(trainer):
    """Return the same δ for a token in any row: a fixed vector for each position."""
    make = trainer.sift.first_delta

    def first(inputs, generator):
        delta, real, rows = make(inputs, generator)
        mask = inputs["attention_mask"].bool().flatten(0, -2)
        table = 0.5 * torch.randn(mask.shape[1], delta.shape[-1], generator=torch.Generator().manual_seed(1))
        vectors = table.expand(len(mask), -1, -1)
        return (vectors[mask][None] if delta.shape[:2] != mask.shape else vectors * mask[..., None]), real, rows

    trainer.sift.first_delta = first


@pytest.mark.parametrize("family", ["ours", "stock"])
def test_bf16_and_gradient_checkpointing(family, tiny_config, stock_config, tmp_path):
    config = stock_config("v3", num_labels=3, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    losses = {}
    for name, more in {"plain": {}, "bf16": dict(bf16=True), "checkpointing": dict(gradient_checkpointing=True)}.items():
        set_seed(0)
        model = AutoModelForSequenceClassification.from_config(config) if family == "stock" else model_of(tiny_config)
        args = arguments(tmp_path, sift_weight=1.0, sift_steps=2, **more)
        logs, weights = train(SiftTrainer(model, args, train_dataset=rows()))
        assert all(torch.isfinite(value).all() for value in weights.values() if value.is_floating_point())
        losses[name] = [entry["loss"] for entry in logs]
    assert losses["checkpointing"] == pytest.approx(losses["plain"], rel=1e-5)
    assert losses["bf16"] == pytest.approx(losses["plain"], rel=0.05) and losses["bf16"] != losses["plain"]


@pytest.mark.parametrize("form", ["virtual", "adversarial"])
def test_label_smoothing_and_a_custom_loss(form, tiny_config, tmp_path):
    """Remove the labels from the perturbed passes, too, if Trainer removes them from the clean pass."""

    def own(outputs, labels, num_items_in_batch=None):
        return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    losses = []
    for more, kwargs in ((dict(label_smoothing_factor=0.1), {}), ({}, dict(compute_loss_func=own)), ({}, {})):
        args = arguments(tmp_path, sift_weight=1.0, max_steps=1, sift_form=form, **more)
        logs, _ = train(SiftTrainer(model_of(tiny_config), args, train_dataset=rows(), **kwargs))
        losses.append(logs[0]["sift_loss"])
    assert min(losses) > (0 if form == "virtual" else 0.9)
    assert form == "adversarial" or losses == pytest.approx([losses[0]] * 3, rel=1e-4)


def test_presets_flags_over_them_and_what_is_refused(tiny_config, tmp_path, monkeypatch):
    official = SiftArguments("out", sift_preset="official", sift_steps=3).sift_options
    assert official.steps == 3 and official.learning_rate == PRESETS["official"].learning_rate and not official.same_dropout
    assert SiftArguments("out").sift_options == PRESETS["default"]
    assert SiftArguments("out", sift_preset="official", sift_same_dropout=True).sift_options.same_dropout
    for wrong, message in (
        (dict(sift_weight=-1.0), "sift_weight must be 0 or a positive number, got -1.0"),
        (dict(sift_weight=float("nan")), "sift_weight must be 0 or a positive number, got nan"),
        (dict(sift_norm="l1"), "norm must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            SiftArguments("out", **wrong)
    args = arguments(tmp_path, sift_weight=1.0)
    monkeypatch.setattr(type(args), "n_gpu", property(lambda self: 2))
    with pytest.raises(ValueError, match="one GPU per process, got 2"):
        SiftTrainer(model_of(tiny_config), args, train_dataset=rows())
