# SPDX-License-Identifier: Apache-2.0
"""SiFT, scale-invariant fine-tuning (DeBERTa, He et al. 2021, section 5.2): adversarial training on normalised embeddings.

The sum of a model's embeddings x is normalised, n = (x - mean) / std, and a perturbation δ is added to it before the model's
own embedding LayerNorm. Because n has unit variance whatever the model, one size of δ serves all of them. δ is made by a few
steps of gradient ascent on how much it changes the outputs, and training adds the change that is left:

    loss + weight · D(f(n), f(n + δ)),    δ ← Π(δ + lr · g / |g|),    g = ∂D / ∂δ

`SiftTrainer` does this for any transformers encoder with a LayerNorm over its embeddings; `Sift` is for a loop of one's own.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .output_distance import LOSSES, divergence, real_tokens

__all__ = ["FORMS", "NORMS", "PRESETS", "PROJECTIONS", "Sift", "SiftOptions", "SiftOutput", "embedding_norm"]

NORMS = ("linf", "rms", "sequence_rms")
PROJECTIONS = ("ball", "clamp", "none")
FORMS = ("virtual", "adversarial")


@dataclass(frozen=True)
class SiftOptions:
    """Options of the ascent and of the adversarial loss. Sizes are in standard deviations of the normalised embeddings.

    Args:
        learning_rate (`float`): size of a step of the ascent, in `norm`.
        init_size (`float`): δ begins as normal noise of this standard deviation, cut at twice that.
        steps (`int`): K, steps of the ascent; 0 leaves the noise as it is.
        radius (`float`): the largest size of δ, in `norm`.
        norm (`str`): of gradient and δ: "linf" (the largest element of a token), "rms" (root mean square of a token's
            elements), "sequence_rms" (of all elements of the sequence's real tokens).
        projection (`str`): after each step "ball" scales δ down to `radius`, "clamp" cuts each element to ±`radius`, "none"
            leaves it.
        loss (`str`): between the outputs of classifiers: "symmetric_kl" (KL(p‖q) + KL(q‖p)), "symmetric_cross_entropy" (of
            each from the other, which passes no gradient as a target), "kl" (of q from p, which passes none), "mse" of the
            logits. Regression always takes the squared error. (The released code softmaxes a regression over the batch, and
            with "kl" or "mse" takes these for the ascent alone: its loss is then the symmetric cross-entropy.)
        form (`str`): "virtual" compares outputs and needs no labels; "adversarial" takes the model's own loss on the labels.
        same_dropout (`bool`): all passes of a step have the dropout noise of the clean one.
        detach_embeddings (`bool`): the perturbed pass passes no gradient to the embeddings.
        gradient_eps (`float`): added to |g|, so that a step is shorter where the gradient is of this size or less; 0: every
            step has its full size.

    Raises:
        ValueError: a value out of its range.
    """

    learning_rate: float = 0.02
    init_size: float = 0.01
    steps: int = 1
    radius: float = 0.02
    norm: str = "rms"
    projection: str = "ball"
    loss: str = "symmetric_kl"
    form: str = "virtual"
    same_dropout: bool = True
    detach_embeddings: bool = False
    gradient_eps: float = 0.0

    def __post_init__(self):
        for name, choices in dict(norm=NORMS, projection=PROJECTIONS, loss=LOSSES, form=FORMS).items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("learning_rate", "init_size", "radius", "gradient_eps"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be 0 or a positive number, got {value}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise ValueError(f"steps must be a whole number, 0 or more, got {self.steps!r}")
        if self.form == "virtual" and self.init_size == 0 and self.steps:
            raise ValueError(
                "init_size is 0: outputs do not differ there, so that the gradient has no direction; give a small size, "
                "or form='adversarial'"
            )


PRESETS: dict[str, SiftOptions] = {
    "default": SiftOptions(),
    # The released code: a step of 1e-4 beside noise of 1e-2, so that δ is noise for the most part, and shorter where the
    # gradient is small: at most 1.5e-8 at the beginning of a fine-tuning.
    "official": SiftOptions(
        learning_rate=1e-4, init_size=1e-2, steps=1, norm="linf", projection="none", loss="symmetric_cross_entropy",
        same_dropout=False, detach_embeddings=True, gradient_eps=1e-6,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class SiftOutput:
    """Result of a perturbation.

    Args:
        loss (`torch.Tensor`): scalar, with gradient: the adversarial loss.
        size (`torch.Tensor`): scalar, root mean square of δ over real tokens.
        change (`torch.Tensor`): scalar, mean absolute change of the logits that count.
        delta (`torch.Tensor`): δ, in the shape of the embeddings.
    """

    loss: torch.Tensor
    size: torch.Tensor
    change: torch.Tensor
    delta: torch.Tensor


def embedding_norm(model: nn.Module, name: str | None = None) -> tuple[str, nn.Module]:
    """(name, module) of the LayerNorm over the sum of a model's embeddings.

    Args:
        name (`str`, *optional*): its name, or the end of it; None finds what lies in a module named "embeddings".
    Raises:
        ValueError: there is none, or more than one; lists those that there are.
    """
    norms = {path: module for path, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    if name is not None:
        matches = {path: module for path, module in norms.items() if f".{path}".endswith(f".{name}")}
        description = f"named {name!r}"
    else:
        matches = {path: module for path, module in norms.items() if path.split(".")[-2:-1] == ["embeddings"]}
        description = "over its embeddings"
    if len(matches) == 1:
        return next(iter(matches.items()))
    listed = ", ".join([*(matches or norms)][:8]) or "none at all"
    raise ValueError(
        f"{type(model).__name__} has {len(matches) or 'no'} LayerNorm{'s' * (len(matches) > 1)} {description}; name the one "
        f"that δ is added in front of, layer_norm=... (--sift_layer_norm). It has: {listed}"
    )


class _EmbeddingHook:
    """Hook before the embeddings' LayerNorm: notes the shape of its input, and adds δ while there is one."""

    def __init__(self, detach: bool):
        self.detach = detach
        self.shape: tuple[int, ...] | None = None
        self.device: torch.device | None = None
        self.dtype: torch.dtype | None = None
        self.delta: torch.Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[torch.Tensor, ...]):
        if not torch.is_grad_enabled():
            return None
        embedded, *rest = args
        if self.delta is None:
            self.shape, self.device = tuple(embedded.shape), embedded.device
            self.dtype = torch.promote_types(embedded.dtype, torch.float32)
            return None
        exact = embedded.to(self.dtype)
        normalised = functional.layer_norm(exact, exact.shape[-1:], eps=1e-7)
        if self.detach:
            normalised = normalised.detach()
        return ((normalised + self.delta).to(embedded.dtype), *rest)


class Sift:
    """SiFT in a training loop of one's own:

        sift = Sift(model, SiftOptions(steps=2))
        with sift:
            for batch in batches:
                with sift.clean_pass():
                    outputs = model(**batch)
                loss = outputs.loss + weight * sift(outputs, batch).loss
                loss.backward()

    Parameters receive gradients from the returned loss alone, none from the ascent. Random numbers of the loop stay those
    that it would draw without SiFT (with `same_dropout`). Wrap the model (DDP, torch.compile) after `with sift` began, and
    give the inner model here.

    Args:
        model (`nn.Module`): a transformers model with a head.
        options (`SiftOptions`, *optional*): or one of `PRESETS`.
        layer_norm (`str`, *optional*): the name of the LayerNorm over the embeddings, where it is not found by itself.

    Raises:
        ValueError: no LayerNorm over embeddings, or several.
    """

    def __init__(self, model: nn.Module, options: SiftOptions | None = None, *, layer_norm: str | None = None):
        self.model = model
        self.options = SiftOptions() if options is None else options
        self.layer_norm, self._module = embedding_norm(model, layer_norm)
        self._hook = _EmbeddingHook(self.options.detach_embeddings)
        self._handle = None
        self._before: dict[str, torch.Tensor] = {}

    def __enter__(self) -> "Sift":
        if self._handle is None:
            self._handle = self._module.register_forward_pre_hook(self._hook)
        return self

    def __exit__(self, *exception):
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    @contextlib.contextmanager
    def clean_pass(self) -> Iterator[None]:
        """Context of the model's own pass; notes the random state, which the perturbed passes repeat."""
        self._hook.shape = None
        self._before = _random_state(next(self._module.parameters()).device)
        yield

    def __call__(
        self,
        outputs: Any,
        inputs: Mapping[str, Any],
        *,
        forward: Callable[[], Any] | None = None,
        labelled: Callable[[], tuple[torch.Tensor, Any]] | None = None,
        generator: torch.Generator | None = None,
        num_items: torch.Tensor | int | None = None,
        scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> SiftOutput:
        """Make δ for a batch, and the adversarial loss.

        Args:
            outputs (`ModelOutput`): of the clean pass, with their graph.
            inputs (`dict`): the batch.
            forward (`Callable`, *optional*): repeats the clean pass and returns its outputs; default: `model(**inputs)`.
            labelled (`Callable`, *optional*): the same for the adversarial form, and returns (loss on the labels, outputs);
                default: the loss that the model gives.
            generator (`torch.Generator`, *optional*): draws the first δ, on its own device; default: torch's own.
            num_items (`int`, *optional*): divides the sum of the divergences; default: how many items of the batch count.
            scale (`Callable`, *optional*): a gradient scaler's `scale`, against underflow in float16.
        Raises:
            RuntimeError: not inside of `with sift`, or without a clean pass before it.
            ValueError: the model's outputs have no logits, or the input of its LayerNorm has no row for each sequence.
        """
        if self._handle is None or self._hook.shape is None:
            raise RuntimeError("run the model inside of `with sift:` and `with sift.clean_pass():`, with gradients, first")
        options, forward = self.options, forward or (lambda: self.model(**inputs))

        def measure(target: Any, mean: bool) -> tuple[torch.Tensor, torch.Tensor]:
            if options.form == "virtual":
                values, counts, change = divergence(target, forward(), inputs, self.model.config, options.loss)
                total = values.masked_fill(~counts, 0).sum()
                items = counts.sum() if num_items is None else num_items
                return total / torch.as_tensor(items, device=total.device).clamp(min=1) if mean else total, change
            if labelled is None:
                perturbed = forward()
                loss = perturbed["loss"]
            else:
                loss, perturbed = labelled()
            with torch.no_grad():
                return loss, divergence(target, perturbed, inputs, self.model.config)[2]

        constant = {name: value.detach() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
        after = _random_state(self._hook.device)
        try:
            delta, real, rows = self.first_delta(inputs, generator)
            for _ in range(options.steps):
                delta.requires_grad_()
                with self.perturbed(delta):
                    value, _ = measure(constant, mean=False)
                (gradient,) = torch.autograd.grad(value if scale is None else scale(value), delta)
                if scale is not None and options.gradient_eps:
                    gradient = gradient / scale(torch.ones_like(value)).detach()
                delta = self.ascend(delta.detach(), gradient.masked_fill(~real, 0), real, rows)
            with self.perturbed(delta):
                loss, change = measure(outputs, mean=True)
        finally:
            self._hook.shape = None
            if options.same_dropout:
                _set_random_state(after)
        size = (delta.square().sum() / (real.sum() * delta.shape[-1]).clamp(min=1)).sqrt()
        return SiftOutput(loss, size, change, delta)

    @contextlib.contextmanager
    def perturbed(self, delta: torch.Tensor) -> Iterator[None]:
        """Context in which the model sees its embeddings with δ, and the dropout noise of the clean pass."""
        if self.options.same_dropout:
            _set_random_state(self._before)
        self._hook.delta = delta
        try:
            yield
        finally:
            self._hook.delta = None

    def first_delta(self, inputs, generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(δ in the shape of the embeddings, [.., .., 1] bool: is it a real token, [.., ..] the sequence that it is in).

        A model that takes padding out sees one stream of real tokens, [1, T, E], row by row.
        """
        shape, device = self._hook.shape, self._hook.device
        mask = real_tokens(inputs)
        if mask is None or mask.shape == shape[:2]:
            real = torch.ones(shape[:2], dtype=torch.bool, device=device) if mask is None else mask.to(device)
            rows = torch.arange(shape[0], device=device)[:, None].expand(shape[:2])
        elif shape[0] == 1 and shape[1] == int(mask.sum()):
            real = torch.ones(shape[:2], dtype=torch.bool, device=device)
            rows = mask.nonzero()[:, 0].to(device)[None]
        else:
            raise ValueError(
                f"{self.layer_norm} sees embeddings of shape {list(shape)}, which fit no mask of shape {list(mask.shape)}; "
                "name the LayerNorm that sees one for each token, layer_norm=... (--sift_layer_norm)"
            )
        drawn_on = device if generator is None else generator.device
        noise = torch.randn(shape, generator=generator, device=drawn_on, dtype=self._hook.dtype).to(device)
        delta = (self.options.init_size * noise).clamp(-2 * self.options.init_size, 2 * self.options.init_size)
        return delta.masked_fill(~real[..., None], 0), real[..., None], rows

    def ascend(self, delta: torch.Tensor, gradient: torch.Tensor, real: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Π(δ + lr · g / (|g| + gradient_eps)). Where the gradient is zero or not finite, δ stays."""
        options = self.options
        gradient = gradient.masked_fill(~gradient.isfinite(), 0)
        # Squares do not underflow.
        largest = gradient.abs().max().clamp(min=torch.finfo(gradient.dtype).tiny)
        gradient = gradient / largest
        size = sizes(gradient, options.norm, real, rows) + options.gradient_eps / largest
        direction = torch.where(size > 0, gradient / size, 0)
        delta = delta + options.learning_rate * direction
        if options.projection == "clamp":
            return delta.clamp(-options.radius, options.radius)
        if options.projection == "ball":
            size = sizes(delta, options.norm, real, rows)
            delta = torch.where(size > options.radius, delta * (options.radius / size), delta)
        return delta


def sizes(x: torch.Tensor, norm: str, real: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[.., .., E] -> [.., .., 1], of each token or of the sequence that it is in; x is 0 where `real` is False."""
    if norm == "linf":
        return x.abs().amax(-1, keepdim=True)
    squares = x.square().mean(-1)
    if norm == "sequence_rms":
        sums = squares.new_zeros(2, rows.numel())
        sums[0].index_add_(0, rows.flatten(), squares.flatten())
        sums[1].index_add_(0, rows.flatten(), real.flatten().to(squares.dtype))
        squares = (sums[0] / sums[1].clamp(min=1))[rows]
    return squares.sqrt()[..., None]


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def _set_random_state(states: Mapping[str, torch.Tensor]):
    for kind, state in states.items():
        (torch if kind == "cpu" else torch.get_device_module(kind)).set_rng_state(state)
