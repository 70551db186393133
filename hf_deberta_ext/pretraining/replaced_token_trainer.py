# SPDX-License-Identifier: Apache-2.0
"""Train generator and discriminator jointly, or in alternating steps like the official code (`ReplacedTokenTrainer`)."""

import contextlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import distributed
from torch.optim.lr_scheduler import LambdaLR
from transformers import SchedulerType, get_scheduler
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from ..analysis.embedding_similarity import average_cosine_similarity, word_tables
from ..heads import PARTS
from ..model.replaced_tokens_deberta_ext import DebertaExtForPreTraining
from ..training.arguments import RunArguments, check_longer, has_warmup
from ..training.distributed import spread_seed
from ..training.finite_loss import check_loss
from ..training.flags import option
from ..training.published_optimizer import published_schedule
from .objectives import row_statistics
from .trainer import TargetArguments, TargetTrainer

__all__ = ["ReplacedTokenArguments", "ReplacedTokenTrainer", "check_stepping"]

STEPPING = ("joint", "decoupled")
WITHOUT_WARMUP, HAS_WARMUP = RunArguments.needs["warmup_steps"]


def warms_up(args: Any) -> bool:
    """Return True if the generator or the discriminator has a schedule with a warm-up."""
    own = args.discriminator_lr_scheduler_type
    return HAS_WARMUP(args) or (own is not None and has_warmup(own))


@dataclass
class ReplacedTokenArguments(TargetArguments):
    """`TrainingArguments` for `ReplacedTokenTrainer`. If a discriminator argument is None, the generator's value is used."""

    stepping: str = option(
        "joint",
        "joint: one step on the sum of both losses; decoupled: a generator step, then a discriminator step with the "
        "generator's new embeddings, as in the official code",
        choices=[*STEPPING],
    )
    discriminator_learning_rate: float | None = option(None, "learning rate of the discriminator; default: --learning_rate")
    discriminator_warmup_steps: float | None = option(
        None, "warm-up of the discriminator: number of steps, or a share below 1; default: --warmup_steps"
    )
    discriminator_lr_scheduler_type: str | None = option(
        None, "learning rate schedule of the discriminator; default: --lr_scheduler_type"
    )
    discriminator_max_grad_norm: float | None = option(
        None, "maximum gradient norm of the discriminator, only for decoupled steps; default: --max_grad_norm"
    )

    needs: ClassVar = dict.fromkeys(("warmup_steps", "discriminator_warmup_steps"), (WITHOUT_WARMUP, warms_up))

    def __post_init__(self):
        if self.stepping not in STEPPING:
            raise ValueError(f"stepping must be joint or decoupled, got {self.stepping!r}")
        for name in ("learning_rate", "warmup_steps", "max_grad_norm"):
            value = getattr(self, f"discriminator_{name}")
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"discriminator_{name} must be 0 or a positive number, got {value}")
        if self.discriminator_max_grad_norm is not None and self.stepping == "joint":
            raise ValueError("discriminator_max_grad_norm needs stepping = 'decoupled': joint steps have one gradient norm")
        if self.discriminator_lr_scheduler_type is not None:
            check_longer(self.train_longer, self.discriminator_lr_scheduler_type, self.discriminator_warmup_steps or 0)
            if self.published_optimizer:
                raise ValueError("discriminator_lr_scheduler_type and published_optimizer are mutually exclusive")
        super().__post_init__()


class ReplacedTokenTrainer(TargetTrainer):
    """Trainer for `DebertaExtForPreTraining`.

    Joint steps: one optimizer step on L_MLM + rtd_lambda * L_RTD, where each loss is the mean over its own targets.
    Decoupled steps, as in the official code: first a generator step on L_MLM, then a discriminator step on
    rtd_lambda * L_RTD, each with the gradient over all micro-batches. The generator produces the discriminator's inputs
    before the generator step. The two gradients are clipped separately. In both kinds of steps, generator and discriminator
    have separate Adam moments, learning rates and schedules, in one optimizer object and one checkpoint.

    Logs generator_loss, generator_accuracy, discriminator_loss, discriminator_precision and discriminator_recall (of the
    class "replaced", at a threshold of 1/2), and replaced_share, the share of replaced tokens among the counted tokens. With
    decoupled steps, grad_norm only includes the discriminator, and generator_grad_norm is also logged. Evaluations also
    compute, for generator and discriminator, the average cosine similarity of the word embeddings. They also compute
    discriminator_guess_loss, the loss of always predicting replaced_share: a discriminator whose loss stays at this value
    has collapsed. All evaluations use the same random replacements.
    """

    args: ReplacedTokenArguments
    model: DebertaExtForPreTraining

    def __init__(self, model: DebertaExtForPreTraining, args: ReplacedTokenArguments, **kwargs):
        own = ("discriminator_learning_rate", "discriminator_warmup_steps", "discriminator_lr_scheduler_type")
        self._own_settings, self._rate = [name for name in own if getattr(args, name) is not None], None
        if self._own_settings and kwargs.get("optimizers", (None, None)) != (None, None):
            raise ValueError(
                f"{', '.join(self._own_settings)} cannot be combined with `optimizers`; set these values in `optimizers`"
            )
        check_stepping(args.stepping, model.config.embedding_sharing)
        weights = {"generator": 1.0, "discriminator": float(model.config.rtd_lambda)}
        self._evaluated, self._waiting, self._norms = 0, [], {}
        super().__init__(model, args, weights=weights, statistics=[*weights, "replaced"], **kwargs)

    def check_wrappers(self):
        super().check_wrappers()
        sharing = self.model.config.embedding_sharing
        if self.is_fsdp_enabled and sharing in ("es", "all"):
            raise ValueError(
                f"embedding_sharing = {sharing!r} cannot run under FSDP, which cannot shard shared parameters; "
                "use 'gdes' or 'nes', or train without fsdp"
            )
        if self.args.stepping == "joint":
            return
        if self.is_deepspeed_enabled:
            raise ValueError(
                "decoupled steps cannot run under DeepSpeed, which calls the optimizer itself; use stepping = 'joint'"
            )
        if self.is_fsdp_enabled and not self.accelerator.is_fsdp2:
            raise ValueError(
                "stepping = 'decoupled' cannot run under FSDP 1, which clips the gradients of generator and discriminator "
                "together; set fsdp_version 2 in fsdp_config, or use stepping = 'joint'"
            )

    def count_targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        counted = self.model.counted_tokens(
            batch["input_ids"], batch["labels"], batch.get("attention_mask"), batch.get("document_ids")
        )
        return torch.stack([(batch["labels"] != -100).sum(), counted.sum()]).float()

    def batch_sums(self, model, inputs) -> tuple[Any, torch.Tensor]:
        outputs = model(**inputs)
        return outputs, torch.stack([self._generator_sums(outputs, inputs["labels"]), *self._discriminator_sums(outputs)])

    def _generator_sums(self, outputs, labels: torch.Tensor) -> torch.Tensor:
        targets = labels[labels != -100]
        correct = (outputs.generator_logits.argmax(-1) == targets).sum()
        return torch.stack([outputs.generator_loss * len(targets), correct, correct.new_tensor(len(targets))])

    def _discriminator_sums(self, outputs) -> tuple[torch.Tensor, torch.Tensor]:
        replaced, flagged, counted = detected(outputs)
        count = counted.sum()
        correct = ((flagged == replaced) & counted).sum()
        caught = torch.stack([(flagged & replaced).sum(), flagged.sum(), replaced.sum()])
        loss = torch.stack([outputs.discriminator_loss * count, correct, count])
        return loss, caught.to(loss.dtype)

    def row_sums(self, model, inputs) -> torch.Tensor:
        device = self.args.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
            torch.manual_seed(spread_seed(0, self._evaluated * self.args.world_size + self.args.process_index))
            outputs = model(**inputs)
        self._evaluated += 1
        labels = inputs["labels"]
        selected = labels != -100
        generator = row_statistics(
            outputs.generator_logits, labels[selected], selected.nonzero()[:, 0], len(labels), count_right=True
        )
        replaced, flagged, counted = detected(outputs)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs.discriminator_logits.float(), replaced.float(), reduction="none"
        )
        columns = [losses * counted, (flagged == replaced) & counted, counted, flagged & replaced, flagged, replaced]
        rows = torch.stack([column.sum(1).float() for column in columns], 1).view(-1, 2, 3)
        return torch.cat([generator[:, None], rows], 1)

    def evaluation_loop(self, *args, **kwargs):
        self._evaluated = 0
        return super().evaluation_loop(*args, **kwargs)

    def training_metrics(self, sums: dict[str, list[float]]) -> dict[str, float]:
        metrics = super().training_metrics(sums)
        _, correct, targets = sums["generator"]
        if targets:
            metrics["generator_accuracy"] = correct / targets
        metrics |= detection_metrics(*sums["replaced"], sums["discriminator"][2])
        if "generator" in self._norms:
            metrics["generator_grad_norm"] = float(self._norms["generator"])
        if self._own_settings:
            metrics["discriminator_learning_rate"] = self._rate
        return metrics

    def evaluation_metrics(self, statistics: torch.Tensor) -> dict[str, float]:
        metrics = super().evaluation_metrics(statistics)
        sums = statistics.double().sum(0).tolist()
        metrics |= detection_metrics(*sums[2], sums[1][2])
        metrics["discriminator_guess_loss"] = guess_loss(metrics["replaced_share"])
        special = self.model.config.special_token_ids or []
        embeddings = [half.get_input_embeddings() for half in (self.model.generator, self.model.discriminator)]
        with gathered([parameter for embedding in embeddings for parameter in embedding.parameters()]):
            for name, table in word_tables(self.model.generator, self.model.discriminator, special).items():
                metrics[f"{name}_similarity"] = average_cosine_similarity(table)
        return metrics

    def create_optimizer(self, *args, **kwargs):
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(*args, **kwargs)
        rate = self.args.discriminator_learning_rate
        # A shared table belongs to the generator.
        generators = set(map(id, self.model.generator.parameters()))
        groups = []
        for group in optimizer.param_groups:
            for half in PARTS:
                members = [p for p in group["params"] if (id(p) in generators) == (half == "generator")]
                if members:
                    groups.append({**group, "params": members, "half": half})
        for group in groups:
            if group["half"] == "discriminator" and rate is not None:
                group["lr"] = rate
        optimizer.param_groups[:] = groups
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        args = self.args
        first = SchedulerType(args.lr_scheduler_type).value
        kind = args.discriminator_lr_scheduler_type or first
        warmup = args.discriminator_warmup_steps
        if self.lr_scheduler is not None or (kind == first and warmup is None):
            return super().create_scheduler(num_training_steps, optimizer)
        optimizer = optimizer or self.optimizer
        generators = super().create_scheduler(num_training_steps, optimizer)
        if warmup is None:
            warmup = args.warmup_steps
        options = args.lr_scheduler_kwargs if kind == first else None
        rates = [group["initial_lr"] for group in optimizer.param_groups]
        if args.published_optimizer:
            discriminators = published_schedule(optimizer, num_training_steps, warmup)
        else:
            steps = math.ceil(warmup * num_training_steps) if warmup < 1 else int(warmup)
            discriminators = get_scheduler(kind, optimizer, steps, num_training_steps, scheduler_specific_kwargs=options)
        if not (isinstance(generators, LambdaLR) and isinstance(discriminators, LambdaLR)):
            raise ValueError(
                "separate schedules of generator and discriminator must be functions of the step, such as linear, cosine, "
                f"constant_with_warmup, got {first} and {kind}"
            )
        functions = {"generator": generators.lr_lambdas[0], "discriminator": discriminators.lr_lambdas[0]}
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = group["initial_lr"] = rate
        self.lr_scheduler = LambdaLR(optimizer, [functions[group["half"]] for group in optimizer.param_groups])
        return self.lr_scheduler

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        if self._own_settings:
            # Store the learning rate of this step, because the schedule steps before the log is written.
            self._rate = next(group["lr"] for group in self.optimizer.param_groups if group["half"] == "discriminator")
        if self.args.stepping == "joint":
            return super().training_step(model, inputs, num_items_in_batch)
        if self.begin_micro_batch() == 0:
            # An interrupted step may have left batches.
            self._waiting = []
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            # Schedule-free optimizers also have a training mode.
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        repeated = inputs.pop("repeated", None) is not None
        total, outputs = self._half_step(model, "generator", inputs, num_items_in_batch, repeated)
        corrupted = dict(inputs, input_ids=outputs.corrupted_ids, labels=outputs.discriminator_labels)
        self._waiting.append((corrupted, repeated))
        del outputs
        check_loss(total, self)
        if not self.accelerator.sync_gradients:
            return total
        self._norms["generator"] = self._reduce_and_clip(model, self.args.max_grad_norm)
        self.optimizer.step()
        model.zero_grad()
        for number, (batch, repeated) in enumerate(self._waiting):
            self.seed_micro_batch(number, 1)
            total = total + self._half_step(model, "discriminator", batch, num_items_in_batch, repeated)[0]
        check_loss(total, self)
        limit = self.args.discriminator_max_grad_norm
        if limit is None:
            limit = self.args.max_grad_norm
        self._norms["discriminator"] = self._reduce_and_clip(model, limit)
        self._waiting = []
        return total

    def _half_step(self, model, half: str, inputs: dict, counts: torch.Tensor, repeated: bool):
        """Run forward and backward for one `half` (generator or discriminator); return the loss of this half and outputs."""
        with model.no_sync() if self._reduces_itself(model) else contextlib.nullcontext():
            with self.compute_loss_context_manager():
                outputs = model(**inputs, part=half)
                if half == "generator":
                    generator = self._generator_sums(outputs, inputs["labels"])
                    sums = torch.stack([generator, *torch.zeros_like(generator).expand(2, 3)])
                else:
                    discriminator, caught = self._discriminator_sums(outputs)
                    sums = torch.stack([torch.zeros_like(discriminator), discriminator, caught])
                loss = self.weighted_loss(sums * (not repeated), counts)
            self.accelerator.backward(loss)
        return loss.detach(), outputs

    def _reduces_itself(self, model) -> bool:
        """Return True for a DDP model, which would wait for gradients of both halves; this trainer averages gradients."""
        return isinstance(model, torch.nn.parallel.DistributedDataParallel)

    def _reduce_and_clip(self, model, limit: float | None):
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        if self._reduces_itself(model):
            for work in [distributed.all_reduce(parameter.grad, async_op=True) for parameter in parameters]:
                work.wait()
            for parameter in parameters:
                parameter.grad /= self.args.world_size
        return self.accelerator.clip_grad_norm_(parameters, limit or math.inf)

    def _clip_grad_norm(self, model):
        if self.args.stepping == "joint":
            return super()._clip_grad_norm(model)
        return self._norms["discriminator"]

    def _get_grad_norm(self, model, grad_norm=None):
        # Without clipping, Trainer would compute the norm again, but a loss scaler can only unscale gradients once.
        if grad_norm is None:
            grad_norm = self._norms.get("discriminator")
        return super()._get_grad_norm(model, grad_norm)


def gathered(parameters: list[torch.nn.Parameter]) -> contextlib.AbstractContextManager:
    """Return a context manager in which each process has the complete parameters, which ZeRO-3 divides among processes."""
    if not is_deepspeed_zero3_enabled():
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def check_stepping(stepping: str, embedding_sharing: str):
    """Raise a ValueError for decoupled steps if both generator and discriminator train shared weights."""
    if stepping == "decoupled" and embedding_sharing in ("es", "all"):
        raise ValueError(
            f"embedding_sharing = {embedding_sharing!r} needs joint steps: in decoupled steps, the discriminator's gradient "
            "would change shared weights after the generator's step. The official code drops this gradient. Use either "
            "stepping = 'joint', or embedding_sharing = 'gdes' or 'nes'"
        )


def detected(outputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return three bool tensors [B, N]: tokens that are replaced, predicted as replaced (logit > 0), counted in the loss.

    The first two tensors are False for tokens that are not counted.
    """
    counted = outputs.discriminator_labels != -100
    return (outputs.discriminator_labels == 1), (outputs.discriminator_logits > 0) & counted, counted


def detection_metrics(caught: float, flagged: float, replaced: float, counted: float) -> dict[str, float]:
    """Return precision and recall of "replaced" (0 if no token was flagged or replaced), and the share of replaced tokens.

    Of the `counted` tokens of the loss, `replaced` were replaced, `flagged` are predicted as replaced, and `caught` are
    both. All four are numbers of tokens.
    """
    return {
        "discriminator_precision": caught / max(1, flagged),
        "discriminator_recall": caught / max(1, replaced),
        "replaced_share": replaced / max(1, counted),
    }


def guess_loss(share: float) -> float:
    """Return the cross-entropy loss of always predicting the probability `share`, the share of replaced tokens."""
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
