# SPDX-License-Identifier: Apache-2.0
"""`SiftTrainer`, a transformers Trainer with SiFT, and its arguments."""

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import Trainer, TrainingArguments

from ..training.distributed import check_sharding
from ..training.flags import option
from .output_distance import LOSSES
from .perturbation import FORMS, NORMS, PRESETS, PROJECTIONS, Sift, SiftOptions

__all__ = ["SiftArguments", "SiftTrainer"]


@dataclass
class SiftArguments(TrainingArguments):
    """`TrainingArguments` with SiFT's options; `SiftOptions` documents their units and values."""

    sift_weight: float = option(0.0, "weight of SiFT's adversarial loss; 0 disables SiFT. Published: 5 (preset official)")
    sift_preset: str = option("default", "values for the --sift_ flags that are not given", choices=[*PRESETS])
    sift_learning_rate: float | None = option(None, "size of an ascent step, in standard deviations of the embeddings")
    sift_init_size: float | None = option(None, "standard deviation of the initial noise")
    sift_steps: int | None = option(None, "number of ascent steps K")
    sift_radius: float | None = option(None, "maximum size of the perturbation, in the norm --sift_norm")
    sift_norm: str | None = option(None, "norm of gradient and perturbation", choices=[*NORMS])
    sift_projection: str | None = option(None, "how the perturbation is limited to --sift_radius", choices=[*PROJECTIONS])
    sift_loss: str | None = option(None, "distance between clean and perturbed outputs", choices=[*LOSSES])
    sift_form: str | None = option(None, "virtual: compare outputs; adversarial: use the loss on labels", choices=[*FORMS])
    sift_same_dropout: bool | None = option(None, "use the same dropout noise in all passes of a step")
    sift_detach_embeddings: bool | None = option(None, "pass no gradient from the perturbed pass to the embeddings")
    sift_gradient_eps: float | None = option(
        None, "number added to the gradient norm; shortens the steps of small gradients"
    )
    sift_start_step: int = option(0, "number of optimizer steps before SiFT starts")
    sift_layer_norm: str | None = option(None, "name of the LayerNorm over the embeddings; default: found automatically")

    needs: ClassVar = {
        **{
            f"sift_{name}": ("without --sift_weight", lambda args: args.sift_weight > 0)
            for name in ("preset", "start_step", "layer_norm", *(field.name for field in dataclasses.fields(SiftOptions)))
        },
        "sift_radius": (
            "unless --sift_weight is set and --sift_projection is ball or clamp",
            lambda args: args.sift_weight > 0 and (args.sift_projection or PRESETS[args.sift_preset].projection) != "none",
        ),
        "sift_loss": (
            "unless --sift_weight is set and --sift_form is virtual",
            lambda args: args.sift_weight > 0 and (args.sift_form or PRESETS[args.sift_preset].form) == "virtual",
        ),
    }

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.sift_weight < math.inf:
            raise ValueError(f"sift_weight must be 0 or a positive number, got {self.sift_weight}")
        # Raise for a wrong value here, before anything is loaded.
        _ = self.sift_options

    @property
    def sift_options(self) -> SiftOptions:
        """Options of `sift_preset`, with the values of all sift_ arguments that are not None."""
        given = {}
        for field in dataclasses.fields(SiftOptions):
            value = getattr(self, f"sift_{field.name}")
            if value is not None:
                given[field.name] = value
        return dataclasses.replace(PRESETS[self.sift_preset], **given)


class SiftTrainer(Trainer):
    """Trainer that adds `sift_weight` times the adversarial loss of SiFT; with weight 0 it equals `Trainer` exactly.

    Supports sequence classification (single label, multi-label, regression), token classification, question answering and
    multiple choice. Logs "loss" (with SiFT's part), "sift_loss", "sift_size" (root mean square of δ) and "sift_change" (mean
    absolute change of the logits), averaged since the last log. The seed of δ is computed from the run's seed and the
    number of the micro-batch, so that a resumed run draws the same values.

    With form "virtual", the adversarial loss is an average over items. Like the model's loss, it is averaged over all items
    of the optimizer step if Trainer passes `num_items_in_batch`. Otherwise, it is averaged over those of the micro-batch.

    Raises:
        ValueError: if the model does not have exactly one LayerNorm over its embeddings, if a process has several GPUs, or
            if `training.distributed.check_sharding` rejects FSDP.
    """

    args: SiftArguments

    def __init__(self, model=None, args: SiftArguments | None = None, **kwargs):
        super().__init__(model, args, **kwargs)
        check_sharding(self)
        self.sift = None
        if not getattr(self.args, "sift_weight", 0):
            return
        if self.args.n_gpu > 1:
            raise ValueError(
                f"SiFT needs one GPU per process, got {self.args.n_gpu}; start a process for each GPU with torchrun"
            )
        self.sift = Sift(self.model, self.args.sift_options, layer_norm=self.args.sift_layer_norm)
        # Sums since the last log: loss, size, change, number of micro-batches, number of steps.
        self._sift_sums = torch.zeros(5, device=self.args.device)
        self._sift_step, self._sift_batch = -1, -1

    def train(self, *args, **kwargs):
        with self.sift or contextlib.nullcontext():
            return super().train(*args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        is_plain = self.sift is None or not (model.training and torch.is_grad_enabled())
        if is_plain or self.state.global_step < self.args.sift_start_step:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        # Trainer removes the labels from the inputs if it computes the loss itself.
        model_inputs = dict(inputs)
        with self.sift.clean_pass():
            loss, outputs = super().compute_loss(model, model_inputs, True, num_items_in_batch)
        # Distributed wrappers expect one forward for each backward. The inner model has the same parameters.
        inner = self.accelerator.unwrap_model(model)
        items = None
        if self.model_accepts_loss_kwargs or self.compute_loss_func:
            items = num_items_in_batch
        labels, logits = inputs.get("labels"), outputs.get("logits")
        if items is not None and logits is not None and logits.dim() == 2 and labels.shape == logits.shape:
            # Labels are [B, C]: Trainer counts several for each example, but SiFT counts an example once.
            items = items * len(labels) / (labels != -100).sum().clamp(min=1)
        scale = None
        if getattr(self.accelerator, "scaler", None) is not None:
            scale = self.accelerator.scaler.scale
        adversarial = self.sift(
            outputs,
            inputs,
            forward=lambda: inner(**model_inputs),
            labelled=lambda: super(SiftTrainer, self).compute_loss(inner, dict(inputs), True, num_items_in_batch),
            generator=self.sift_generator(),
            num_items=items,
            scale=scale,
        )
        extra, accumulated = adversarial.loss, self.current_gradient_accumulation_steps
        if self.sift.options.form == "virtual" and items is not None and self.args.average_tokens_across_devices:
            # Items are counted over all processes, but gradients are averaged over the processes.
            extra = extra * self.args.world_size
        part = extra.detach() / accumulated
        if items is not None:
            # This loss is already divided by the items of the step, so Trainer does not divide it by the micro-batches.
            part = extra.detach()
        elif self.compute_loss_func is not None:
            extra = extra / accumulated
        values = (part, adversarial.size, adversarial.change, torch.tensor(1.0), torch.tensor(1 / accumulated))
        self._sift_sums += torch.stack([value.to(self._sift_sums) for value in values])
        loss = loss + self.args.sift_weight * extra
        return (loss, outputs) if return_outputs else loss

    def sift_generator(self) -> torch.Generator:
        """Return a generator seeded by the number of the micro-batch, counted over all processes."""
        if self._sift_step != self.state.global_step:
            self._sift_step, self._sift_batch = self.state.global_step, -1
        self._sift_batch += 1
        number = self.state.global_step * self.args.gradient_accumulation_steps + self._sift_batch
        number = number * self.args.world_size + self.args.process_index
        # torch uses only the lowest 32 bits of a seed.
        return torch.Generator(self.args.device).manual_seed((1_000_003 * self.args.seed + number) % 2**32)

    def log(self, logs: dict[str, float], *args, **kwargs):
        if self.sift is not None and "loss" in logs:
            sums = self._sift_sums.clone()
            if self.args.world_size > 1:
                sums = self.accelerator.reduce(sums, "mean")
            loss, size, change, batches, steps = sums.tolist()
            if batches:
                logs |= dict(sift_loss=loss / steps, sift_size=size / batches, sift_change=change / batches)
            self._sift_sums.zero_()
        super().log(logs, *args, **kwargs)
