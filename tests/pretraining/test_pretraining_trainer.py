# SPDX-License-Identifier: Apache-2.0
"""Test PretrainingTrainer: objectives are averaged over their targets, for any accumulation, processes and batches."""

import copy
import math

import pytest
import torch
from accumulation import exact_accumulation
from target_trainers import WEIGHTS, build
from target_trainers import objective_rows as rows
from torch.nn import functional

from hf_deberta_ext.pretraining.dynamic_masking import MaskingCollator, NumberedExamples
from hf_deberta_ext.pretraining.masking import MaskingOptions, MaskingVocabulary
from hf_deberta_ext.pretraining.objectives import MultiObjectiveMaskedLM, row_statistics
from hf_deberta_ext.pretraining.trainer import PretrainingArguments, PretrainingTrainer, evaluation_metrics


def by_hand(model, examples):
    """Return {objective: (loss sum, correct, targets)}, computed example by example."""
    totals = {name: [0.0, 0, 0] for name in WEIGHTS}
    model.eval()
    for example in examples:
        inputs = {name: value[None] for name, value in example.items()}
        with torch.no_grad():
            for name, statistics in model(**inputs).statistics.items():
                for column in range(3):
                    totals[name][column] += statistics[0, column].item()
    return totals


@pytest.fixture
def model(tiny_config, shake):
    return shake(MultiObjectiveMaskedLM(tiny_config(), [*WEIGHTS]))


@exact_accumulation
def test_accumulation_changes_neither_losses_nor_gradient(model, tmp_path):
    examples = rows()
    totals = by_hand(model, examples)
    expected = sum(WEIGHTS[name] * total / count for name, (total, _, count) in totals.items())
    norms = []
    for accumulation in (1, 2, 8):
        trainer = build(
            copy.deepcopy(model), tmp_path, examples, max_steps=1, per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        trainer.train()
        log = trainer.state.log_history[0]
        # Trainer rounds logged values to four digits before transformers 5.20.
        assert log["loss"] == pytest.approx(expected, rel=1e-4)
        for name, (total, _, count) in totals.items():
            assert log[f"{name}_loss"] == pytest.approx(total / count, rel=1e-5)
        norms.append(float(log["grad_norm"]))
    assert norms[0] > 0.01 and norms == pytest.approx([norms[0]] * 3, rel=1e-4)


def test_logged_losses_average_over_the_steps_since_the_last_log_also_in_bfloat16(model, tmp_path):
    examples, totals, logs = rows(), by_hand(model, rows()), []
    for bf16 in (False, True):
        trainer = build(
            copy.deepcopy(model), tmp_path, examples, max_steps=2, per_device_train_batch_size=4, logging_steps=2, bf16=bf16
        )
        trainer.train()
        logs.append(trainer.state.log_history[0])
    for name, (total, _, count) in totals.items():
        assert logs[0][f"{name}_loss"] == pytest.approx(total / count, rel=1e-5)
        assert logs[0][f"{name}_loss"] != logs[1][f"{name}_loss"]
        assert logs[1][f"{name}_loss"] == pytest.approx(total / count, rel=0.03)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_evaluation_weighs_every_target_alike(batch, model, tmp_path):
    examples = rows(7)
    metrics = build(model, tmp_path, evaluate=examples, per_device_eval_batch_size=batch).evaluate()
    totals = by_hand(model, examples)
    for name, (total, right, count) in totals.items():
        assert metrics[f"eval_{name}_loss"] == pytest.approx(total / count, rel=1e-5)
        assert metrics[f"eval_{name}_accuracy"] == pytest.approx(right / count)
        assert metrics[f"eval_{name}_targets"] == count
    assert metrics["eval_mlm_perplexity"] == pytest.approx(math.exp(metrics["eval_mlm_loss"]))
    assert metrics["eval_loss"] == pytest.approx(sum(WEIGHTS[name] * t / n for name, (t, _, n) in totals.items()), rel=1e-5)
    assert "eval_sop_perplexity" not in metrics and "eval_sbo_perplexity" in metrics


@exact_accumulation
def test_dropout_depends_on_the_number_of_the_micro_batch_alone(tiny_config, tmp_path):
    config = tiny_config(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    torch.manual_seed(0)
    start = MultiObjectiveMaskedLM(config, [*WEIGHTS])
    same = [rows(1)[0]] * 4
    seen = []
    for accumulation in (1, 2):
        trainer = build(
            copy.deepcopy(start), tmp_path, same, max_steps=4 // accumulation, per_device_train_batch_size=1,
            gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        trainer.train()
        seen.append([entry["mlm_loss"] for entry in trainer.state.log_history if "mlm_loss" in entry])
    assert len({*seen[0]}) == 4
    # A step of two micro-batches has the same two dropout masks.
    assert seen[1] == pytest.approx([(seen[0][0] + seen[0][1]) / 2, (seen[0][2] + seen[0][3]) / 2], rel=1e-5)


def test_the_masking_rate_falls_on_a_line_and_z_loss_is_part_of_the_training_alone(tiny_config, tmp_path):
    ids = torch.arange(64)
    vocabulary = MaskingVocabulary(ids > 4, ids < 5, ids < 5, ids[5:], mask_id=4, pad_id=0)
    collator = MaskingCollator(vocabulary, MaskingOptions(rate=0.5, final_rate=0.1))
    examples = [{"input_ids": torch.randint(5, 64, (60,), generator=torch.Generator().manual_seed(i))} for i in range(10)]
    args = PretrainingArguments(
        str(tmp_path), max_steps=5, per_device_train_batch_size=4, gradient_accumulation_steps=2, z_loss=0.5,
        logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, learning_rate=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = PretrainingTrainer(
        MultiObjectiveMaskedLM(tiny_config()), args, data_collator=collator, train_dataset=NumberedExamples(examples),
        eval_dataset=NumberedExamples(examples, fixed=True),
    )  # fmt: skip
    seen, batch_sums = [], trainer.batch_sums

    def noted(model, inputs):
        outputs, sums = batch_sums(model, inputs)
        logits = model.predict(inputs["input_ids"], labels=inputs["labels"], masked_only=True).logits
        seen.append(
            (trainer.state.global_step, len(inputs["labels"]), len(logits), logits.detach().logsumexp(-1).square().sum())
        )
        return outputs, sums

    trainer.batch_sums = noted
    trainer.train()
    for step, log in enumerate(trainer.state.log_history[:5]):
        rows_of_step, targets, squares = (sum(batch[k] for batch in seen if batch[0] == step) for k in (1, 2, 3))
        assert targets == 6 * rows_of_step * (5 - step)
        assert log["z_loss"] == pytest.approx(float(squares) / targets, rel=1e-4)
        assert log["loss"] == pytest.approx(log["mlm_loss"] + 0.5 * log["z_loss"], rel=1e-4)
    metrics = trainer.evaluate()
    assert metrics["eval_mlm_targets"] == 60 and metrics["eval_loss"] == metrics["eval_mlm_loss"]
    assert not any("_z_" in name for name in metrics)


def test_targets_are_counted_on_the_device_of_the_batches(model, tmp_path, monkeypatch):
    """Count on the batch's device: on GPUs, accelerate moves batches first, and counting failed (here "meta")."""
    monkeypatch.setattr("torch.fx.experimental._config.meta_nonzero_assume_all_nonzero", True)
    batch = {name: torch.stack([row[name] for row in rows()]) for name in rows()[0]}
    trainer = build(model, tmp_path, rows())
    _, counts = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
    _, moved = trainer.get_batch_samples(iter([{k: v.to("meta") for k, v in batch.items()}]), 1, torch.device("meta"))
    assert counts.all() and (moved.device.type, moved.shape) == ("meta", counts.shape)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(mlm_weight=0.0), "add mlm"),
        (dict(sbo_weight=-1.0), "sbo_weight must be 0 or a positive number, got -1.0"),
        (dict(mlm_weight=float("nan")), "mlm_weight must be 0 or a positive number, got nan"),
        (dict(z_loss=-1.0), "z_loss must be 0 or a positive number, got -1.0"),
        (dict(remove_unused_columns=True), "remove_unused_columns must be False, got True"),
        (dict(include_for_metrics=["loss"]), r"include_for_metrics must be \[\], got \['loss'\]"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        PretrainingArguments(str(tmp_path), **arguments)


def test_a_lower_perplexity_is_better(tmp_path):
    """Minimise perplexity: transformers maximises every metric with a name that does not end in "loss"."""
    for metric, greater in (("mlm_perplexity", False), ("mlm_accuracy", True)):
        assert PretrainingArguments(str(tmp_path), metric_for_best_model=metric).greater_is_better is greater


def test_evaluation_data_without_targets_is_refused_before_the_training(tiny_config, tmp_path):
    example = rows(1)[0] | dict(labels=torch.full((20,), -100))
    model = MultiObjectiveMaskedLM(tiny_config(), [*WEIGHTS])
    with pytest.raises(ValueError, match="none of the 3 rows of evaluation data has a target of mlm, sbo; use more"):
        build(model, tmp_path, evaluate=[example] * 3)
    with pytest.raises(ValueError, match="none of the 1 rows of evaluation data has a target of mlm, sbo"):
        build(model, tmp_path, evaluate={"good": rows(), "bad": [example]})
    with pytest.raises(ValueError, match="none of the 2 rows of evaluation data has a target of sop"):
        evaluation_metrics(torch.tensor([[[1.0, 1, 1], [0, 0, 0]]] * 2), dict(mlm=1.0, sop=1.0))


def test_cross_entropy_is_computed_in_float32():
    """Use float32: with a vocabulary of thousands, bfloat16 losses differ in the second digit."""
    logits, targets = torch.randn(50, 4000, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.arange(50)
    losses = row_statistics(logits, targets, torch.zeros(50).long(), 1)
    expected = functional.cross_entropy(logits.float(), targets, reduction="sum").item()
    assert losses[0, 0] == pytest.approx(expected, rel=1e-6)
