# SPDX-License-Identifier: Apache-2.0
"""TaskTrainer: losses with gradient accumulation, several evaluation sets, and predictions."""

import dataclasses
import math

import datasets
import numpy as np
import pytest
import torch
import transformers
from accumulation import exact_accumulation
from torch.nn import functional
from toy_task import accuracy
from transformers import BertConfig, default_data_collator

from hf_deberta_ext.finetuning.arguments import FineTuningArguments
from hf_deberta_ext.finetuning.class_weights import WeightedLoss
from hf_deberta_ext.finetuning.task import EncodedTask, EvaluationSet
from hf_deberta_ext.finetuning.trainer import TaskTrainer, check_losses, set_prefix
from hf_deberta_ext.sift import SiftArguments

N = 7
HEADS = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "question": transformers.AutoModelForQuestionAnswering,
    "choice": transformers.AutoModelForMultipleChoice,
}


def rows(kind, count=16, seed=0):
    """Create rows of random ids with labels of a head; every third token has the label -100."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high, *shape):
        return torch.randint(5 if high == 64 else 0, high, (count, *shape), generator=generator).tolist()

    columns = {"input_ids": draw(64, 3, N) if kind == "choice" else draw(64, N)}
    columns["attention_mask"] = (np.ones_like(columns["input_ids"])).tolist()
    if kind == "question":
        columns |= dict(start_positions=draw(N), end_positions=draw(N))
    elif kind == "tokens":
        columns["labels"] = [[-100 if n % 3 == 0 else label for n, label in enumerate(row)] for row in draw(3, N)]
    else:
        columns["labels"] = draw(3)
    return datasets.Dataset.from_dict(columns)


def evaluation_set(data, metrics=None):
    return EvaluationSet(rows=data, metrics=metrics, write=lambda *_: [], examples=len(data))


def encoded(kind="sequence", evaluation=None, **more):
    return EncodedTask(
        train=rows(kind), evaluation=evaluation or {}, test={}, collator=default_data_collator, metric="accuracy", **more
    )


def get_model(kind, config):
    torch.manual_seed(0)
    config.num_labels = 2 if kind == "question" else 3
    return HEADS[kind].from_config(config)


def trainer(folder, model, task, **arguments):
    common = dict(
        output_dir=str(folder), report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no", logging_steps=1,
        per_device_train_batch_size=16, max_steps=1,
    )  # fmt: skip
    return TaskTrainer(model, SiftArguments(**(common | arguments)), task=task)


def first_step(folder, model, task, accumulation, **arguments):
    """Train one step of 16 rows in micro-batches at a learning rate of zero; return its log."""
    ours = trainer(
        folder, model, task, learning_rate=0.0, gradient_accumulation_steps=accumulation,
        per_device_train_batch_size=16 // accumulation, **arguments,
    )  # fmt: skip
    ours.train()
    return next(entry for entry in ours.state.log_history if "loss" in entry)


def bert(**more):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=64)
    return BertConfig(**(sizes | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0) | more))


@exact_accumulation
@pytest.mark.parametrize(
    ("family", "kind", "smoothing"),
    [
        *((family, kind, 0.0) for family in ("ours", "v2", "bert") for kind in HEADS),
        *(("ours", kind, 0.2) for kind in HEADS if kind != "question"),
    ],
)
def test_accumulation_changes_neither_loss_nor_gradient(family, kind, smoothing, tiny_config, stock_config, tmp_path):
    """transformers' heads accept and ignore num_items_in_batch: plain Trainer would report 2 and 4 times the loss."""
    make_config = {"ours": tiny_config, "v2": stock_config, "bert": bert}[family]
    logged = []
    for steps in (1, 4):
        entry = first_step(
            tmp_path / str(steps), get_model(kind, make_config()), encoded(kind), steps, label_smoothing_factor=smoothing
        )
        logged.append((entry["loss"], entry["grad_norm"]))
    assert logged[0][1] > 0
    assert logged[1] == pytest.approx(logged[0], rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "problem", "guess"),
    [
        ("sequence", None, math.log(3)), ("tokens", None, math.log(3)), ("question", None, math.log(N)),
        ("choice", None, math.log(3)), ("sequence", "multi_label_classification", math.log(2)),
        ("sequence", "regression", 4.25),
    ],
)  # fmt: skip
def test_the_loss_of_a_uniform_guess_is_that_of_the_task(kind, problem, guess, tmp_path):
    """Divergence is measured against this loss."""
    model, task = get_model(kind, bert(problem_type=problem)), encoded(kind)
    if problem == "regression":
        task = dataclasses.replace(task, train=task.train.remove_columns("labels").add_column("labels", [0.5, -2.87228] * 8))
    assert trainer(tmp_path, model, task).uniform_loss == pytest.approx(guess, rel=1e-4)


WEIGHTS = torch.tensor([0.2, 5.0, 1.0])


@exact_accumulation
@pytest.mark.parametrize("count", [16, 13], ids=["whole_step", "end_of_epoch"])
@pytest.mark.parametrize("kind", ["sequence", "tokens", "several labels"])
def test_a_weighted_loss_is_the_weighted_mean_over_the_step(kind, count, tmp_path):
    """The denominator is the sum of the weights of all micro-batches, not of one micro-batch."""
    several = kind == "several labels"
    data = rows("tokens" if kind == "tokens" else "sequence", count)
    if several:
        labels = [[float(label == c or n % 5 == c) for c in range(3)] for n, label in enumerate(data["labels"])]
        data = data.remove_columns("labels").add_column("labels", labels)
    loss = WeightedLoss(WEIGHTS.tolist(), multi_label=several)
    task = dataclasses.replace(encoded(), train=data, loss=loss)
    model = get_model("tokens" if kind == "tokens" else "sequence", bert())
    batch = default_data_collator([*data])
    labels = batch.pop("labels")
    with torch.no_grad():
        log_probabilities = model(**batch).logits.log_softmax(-1)
        logits = model(**batch).logits
    if several:
        each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        expected = (each * torch.where(labels == 1, WEIGHTS, 1.0)).mean()
    else:
        kept = labels != -100
        of_label = log_probabilities[kept].gather(-1, labels[kept][:, None])[:, 0]
        expected = -(WEIGHTS[labels[kept]] * of_label).sum() / WEIGHTS[labels[kept]].sum()
    norms = []
    for steps in (1, 4):
        entry = first_step(tmp_path / str(steps), model, task, steps)
        assert entry["loss"] == pytest.approx(float(expected), rel=1e-4)
        norms.append(entry["grad_norm"])
    assert norms[0] > 0 and norms == pytest.approx([norms[0]] * 2, rel=1e-3)


@exact_accumulation
def test_sift_is_a_mean_over_rows_whatever_the_class_weights(tmp_path):
    """Only the loss on labels is weighted."""
    entries, more = [], dict(sift_init_size=0.5, sift_steps=0)
    for weight in (0.0, 1000.0):
        task = encoded(loss=WeightedLoss([0.01, 9.0, 1.0]))
        entries.append(first_step(tmp_path / "run", get_model("sequence", bert()), task, 4, sift_weight=weight, **more))
    plain, both = entries
    assert 1000 * both["sift_loss"] > 0.01
    assert both["loss"] - 1000 * both["sift_loss"] == pytest.approx(plain["loss"], rel=1e-4)


def test_evaluation_has_the_loss_of_the_model(tmp_path):
    """The evaluation loss must be comparable between class weights and not depend on the batch size."""
    sets = {"": evaluation_set(rows("sequence", 7), accuracy)}
    losses = []
    for loss in (None, WeightedLoss(WEIGHTS.tolist())):
        ours = trainer(tmp_path, get_model("sequence", bert()), encoded(evaluation=sets, loss=loss))
        losses.append(ours.evaluate()["eval_loss"])
    assert losses[0] == losses[1]


def test_balanced_sampling_is_resumed_within_an_epoch(tmp_path):
    def run(folder, **more):
        task = encoded(balanced_sampling=True)
        sizes = dict(per_device_train_batch_size=4, max_steps=7, learning_rate=1e-2, save_strategy="steps", save_steps=6)
        ours = trainer(folder, get_model("sequence", bert()), task, **sizes)
        ours.train(**more)
        return ours.model.state_dict()

    whole = run(tmp_path)
    resumed = run(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


@pytest.fixture
def sets():
    sizes = {"": (6, 1), "mm": (9, 2)}
    return {name: evaluation_set(rows("sequence", count, seed), accuracy) for name, (count, seed) in sizes.items()}


def test_every_set_has_its_metrics_under_its_name(sets, tmp_path):
    ours = trainer(tmp_path, get_model("sequence", bert()), encoded(evaluation=sets))
    metrics = ours.evaluate()
    with torch.no_grad():
        for prefix, name, data in (("eval", "", sets[""].rows), ("eval_mm", "mm", sets["mm"].rows)):
            batch = {key: torch.tensor(data[key]) for key in data.column_names}
            outputs = ours.model.eval()(**batch)
            expected = (outputs.logits.argmax(-1) == batch["labels"]).float().mean().item()
            assert metrics[f"{prefix}_accuracy"] == pytest.approx(expected)
            assert metrics[f"{prefix}_samples"] == len(data)
            np.testing.assert_allclose(ours.predictions[prefix], outputs.logits, rtol=1e-5, atol=1e-6)
            assert set_prefix("eval", name) == prefix
    assert metrics["eval_loss"] > 0 and metrics["eval_mm_loss"] != metrics["eval_loss"]


@pytest.mark.parametrize("kind", ["sequence", "question"])
def test_only_logits_are_kept_of_what_a_model_returns(kind, tmp_path):
    """Otherwise, hidden states and attentions of all rows would be gathered."""
    config = bert(output_hidden_states=True, output_attentions=True, attn_implementation="eager")
    task = encoded(kind, evaluation={"": evaluation_set(rows(kind, 5), lambda predictions, labels: {"n": len(predictions)})})
    ours = trainer(tmp_path, get_model(kind, config), task)
    metrics = ours.evaluate()
    kept = ours.predictions["eval"]
    if kind == "question":
        assert metrics["eval_n"] == 2 and [part.shape for part in kept] == [(5, N), (5, N)]
    else:
        assert kept.shape == (5, 3)


NO_CLASSES = "--label_smoothing_factor 0.1 cannot be used for question answering, regression"


@pytest.mark.parametrize(
    ("name", "value", "problem_type", "loss", "message"),
    [
        ("prediction_loss_only", True, None, None, "--prediction_loss_only must be False, got True; metrics"),
        ("include_for_metrics", ["loss"], None, None, r"--include_for_metrics must be \[\], got \['loss'\]; metrics"),
        ("label_smoothing_factor", 0.1, None, lambda outputs, labels: outputs["logits"].mean(), NO_CLASSES),
        ("label_smoothing_factor", 0.1, "regression", None, NO_CLASSES),
        ("sift_loss", "mse", "regression", None, "--sift_loss mse has no effect on a regression"),
    ],
)
def test_arguments_that_lose_predictions_or_have_no_effect_are_refused(name, value, problem_type, loss, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        args = FineTuningArguments(str(tmp_path), do_eval=True, report_to="none", use_cpu=True, **{name: value})
        check_losses(args, encoded(loss=loss), problem_type)
