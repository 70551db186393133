# SPDX-License-Identifier: Apache-2.0
"""Optimizer and schedule of the official code against its formula, written out for one number."""

import math

import pytest
import target_trainers
import torch
from transformers import TrainerCallback

from hf_deberta_ext import DebertaExtForPreTraining
from hf_deberta_ext.training.published_optimizer import PublishedAdam, published_rate


def official_path(x: float, gradients: list[float], rates: list[float], *, betas, eps, weight_decay) -> list[float]:
    """Return the values of one parameter after each step of the official XAdam (DeBERTa/optims/xadam.py) in floats."""
    m = v = 0.0
    path = []
    for g, rate in zip(gradients, rates, strict=True):
        m = m * betas[0] + (1 - betas[0]) * g
        v = v * betas[1] + (1 - betas[1]) * g * g
        x -= rate * (m / (math.sqrt(v) + eps) + weight_decay * x)
        path.append(x)
    return path


def official_schedule(step: int, total: int, warmup: float) -> float:
    x = step / total
    return x / warmup if x < warmup else 1.0 - x


@pytest.mark.parametrize("warmup", [0, 50, 0.1])
def test_rates_are_those_of_the_official_schedule(warmup):
    share = warmup if warmup < 1 else warmup / 500
    expected = [official_schedule(step, 500, share) for step in range(500)]
    assert [published_rate(step, steps=500, warmup=warmup) for step in range(500)] == pytest.approx(expected, abs=1e-12)
    assert published_rate(500, steps=500, warmup=warmup) == 0


class Recorder(TrainerCallback):
    """Record the gradient and value of one number in each half of a joint model, at each optimizer step."""

    def __init__(self, model):
        table = "deberta.encoder.layer.0.intermediate.dense.weight"
        self.weights = {half: model.get_parameter(f"{half}.{table}") for half in ("generator", "discriminator")}
        self.path = {half: [weight[0, 0].item()] for half, weight in self.weights.items()}
        self.gradients = {half: [] for half in self.weights}

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        def note(optimizer, arguments, keywords):
            for half, weight in self.weights.items():
                if weight.grad is not None:
                    self.gradients[half].append(weight.grad[0, 0].item())

        optimizer.optimizer.register_step_pre_hook(note)

    def on_step_end(self, *arguments, **keywords):
        for half, weight in self.weights.items():
            self.path[half].append(weight[0, 0].item())


@pytest.mark.parametrize("stepping", ["joint", "decoupled"])
def test_both_optimizers_of_replaced_token_detection_take_the_published_path(stepping, tiny_config, tmp_path):
    model = DebertaExtForPreTraining(tiny_config(generator={}, special_token_ids=[0, 1, 2, 63]))
    arguments = dict(
        published_optimizer=True, lr_scheduler_type="linear", learning_rate=2e-3, warmup_steps=5, max_steps=40, seed=3,
        discriminator_learning_rate=1e-3, discriminator_warmup_steps=10, weight_decay=0.01, max_grad_norm=1.0,
        stepping=stepping, adam_epsilon=1e-6, save_strategy="steps", save_steps=20, per_device_train_batch_size=4,
    )  # fmt: skip
    state = {name: x.clone() for name, x in model.state_dict().items()}
    trainer = target_trainers.build(model, tmp_path / "whole", target_trainers.joint_rows(), **arguments)
    recorder = Recorder(model)
    trainer.add_callback(recorder)
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, PublishedAdam)
    for half, lr, warmup in (("generator", 2e-3, 5), ("discriminator", 1e-3, 10)):
        rates = [lr * official_schedule(step, 40, warmup / 40) for step in range(40)]
        options = dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
        gradients, path = recorder.gradients[half], torch.tensor(recorder.path[half], dtype=torch.float64)
        expected = torch.tensor(official_path(path[0].item(), gradients, rates, **options), dtype=torch.float64)
        # Weights of 0.01 are rounded to 1e-9 in each step of 1e-4.
        assert ((path[1:] - expected).abs().max() / path.diff().abs().sum()).item() < 1e-5

    resumed = DebertaExtForPreTraining(tiny_config(generator={}, special_token_ids=[0, 1, 2, 63]))
    resumed.load_state_dict(state)
    folder = tmp_path / "whole" / "checkpoint-20"
    target_trainers.build(resumed, tmp_path / "resumed", target_trainers.joint_rows(), **arguments).train(str(folder))
    assert all(torch.equal(x, resumed.state_dict()[name]) for name, x in model.state_dict().items())
