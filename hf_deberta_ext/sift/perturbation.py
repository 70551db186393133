# SPDX-License-Identifier: Apache-2.0
"""SiFT, scale-invariant fine-tuning (DeBERTa, He et al. 2021, section 5.2): adversarial training on normalised embeddings.

The sum of a model's embeddings x is normalised, n = (x - mean) / std, and a perturbation δ is added to n before the model's
embedding LayerNorm. Because n has unit variance in every model, the same size of δ suits all models. A few steps of gradient
ascent maximise the distance D between the outputs with δ and without δ, and training adds this distance to the loss:

    loss + weight · D(f(n), f(n + δ)),    δ ← Π(δ + lr · g / |g|),    g = ∂D / ∂δ

`SiftTrainer` does this for any transformers encoder with a LayerNorm over its embeddings; `Sift` is for your own loop.
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
    """Options of the gradient ascent and the adversarial loss. Sizes are in standard deviations of the embeddings.

    Args:
        learning_rate (`float`): size of an ascent step, in the norm `norm`.
        init_size (`float`): δ starts as normal noise with this standard deviation, clipped at ±2 standard deviations.
        steps (`int`): number of ascent steps K; with 0, δ is only the initial noise.
        radius (`float`): maximum size of δ, in the norm `norm`.
        norm (`str`): norm of the gradient and of δ: "linf" (largest element of a token), "rms" (root mean square of a
            token's elements) or "sequence_rms" (root mean square over all real tokens of the sequence).
        projection (`str`): how δ is limited after a step: "ball" scales it down to `radius`, "clamp" clips each element to
            ±`radius`, "none" does not limit it.
        loss (`str`): distance between the outputs of classifiers: "symmetric_kl" (KL(p‖q) + KL(q‖p)),
            "symmetric_cross_entropy" (both directions, targets detached), "kl" (KL(p‖q), p detached) or "mse" of the logits.
            Regression always uses the squared error. The released code differs in two ways. For regression, it applies a
            softmax over the batch. With "kl" or "mse", it uses this distance only in the ascent; the loss that it adds is
            the symmetric cross-entropy.
        form (`str`): "virtual" compares outputs and needs no labels; "adversarial" uses the model's loss on the labels.
        same_dropout (`bool`): use the dropout noise of the clean pass in all passes of a step.
        detach_embeddings (`bool`): pass no gradient from the perturbed pass to the embeddings.
        gradient_eps (`float`): number added to |g|, so that small gradients make shorter steps; 0: every step has the size
            `learning_rate`.

    Raises:
        ValueError: if a value is out of range.
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
        for name in ("learning_rate", "init_size", "radius", "gradient_eps", "steps"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be 0 or a positive number, got {value}")
        if self.form == "virtual" and self.init_size == 0 and self.steps:
            raise ValueError(
                "init_size must be positive with form='virtual', got 0: if the initial perturbation δ is zero, the outputs "
                "do not change and the gradient of δ is zero; give a small init_size or form='adversarial'"
            )


PRESETS: dict[str, SiftOptions] = {
    "default": SiftOptions(),
    # The released code: one step of 1e-4 from noise of 1e-2, so δ is mostly noise. Small gradients shorten the step: at the
    # start of fine-tuning it is at most 1.5e-8.
    "official": SiftOptions(
        learning_rate=1e-4,
        norm="linf",
        projection="none",
        loss="symmetric_cross_entropy",
        same_dropout=False,
        detach_embeddings=True,
        gradient_eps=1e-6,
    ),
}


@dataclass(frozen=True)
class SiftOutput:
    """Result of a call of `Sift`: the adversarial loss, and measurements of δ.

    Args:
        loss (`torch.Tensor`): adversarial loss, scalar with gradient.
        size (`torch.Tensor`): root mean square of δ over real tokens.
        change (`torch.Tensor`): mean absolute change of the logits by δ, without ignored tokens and choices.
        delta (`torch.Tensor`): δ, in the shape of the embeddings.
    """

    loss: torch.Tensor
    size: torch.Tensor
    change: torch.Tensor
    delta: torch.Tensor


def embedding_norm(model: nn.Module, name: str | None = None) -> tuple[str, nn.Module]:
    """Find the LayerNorm whose input is the sum of a model's embeddings; return its name and module.

    Args:
        name (`str`, *optional*): name of the LayerNorm, or the end of its name; None: the LayerNorm directly inside a
            module named "embeddings".
    Raises:
        ValueError: if no LayerNorm matches, or more than one.
    """
    norms = {path: module for path, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    if name is None:
        kind = "over its embeddings"
        matches = [path for path in norms if path.split(".")[-2:-1] == ["embeddings"]]
    else:
        kind = f"named {name!r}"
        matches = [path for path in norms if f".{path}".endswith(f".{name}")]
    if len(matches) != 1:
        raise ValueError(
            f"expected one LayerNorm {kind} in {type(model).__name__}, got {len(matches)}; set layer_norm "
            "(--sift_layer_norm) to the name of the LayerNorm that normalises the embeddings. Names: "
            f"{', '.join((matches or [*norms])[:8])}"
        )
    return matches[0], norms[matches[0]]


class Sift:
    """SiFT for your own training loop:

        sift = Sift(model, SiftOptions(steps=2))
        with sift:
            for batch in batches:
                with sift.clean_pass():
                    outputs = model(**batch)
                loss = outputs.loss + weight * sift(outputs, batch).loss
                loss.backward()

    Parameters receive gradients only from the returned loss, not from the ascent. If `same_dropout` is set, the loop
    draws the same random numbers as without SiFT. Pass the unwrapped model, and wrap it (DDP, torch.compile)
    inside `with sift`.

    Args:
        model (`nn.Module`): a transformers model with a head.
        options (`SiftOptions`, *optional*): options, such as a value of `PRESETS`; default `SiftOptions()`.
        layer_norm (`str`, *optional*): name of the LayerNorm over the embeddings; default: see `embedding_norm`.

    Raises:
        ValueError: if there is no LayerNorm over the embeddings, or more than one.
    """

    def __init__(self, model: nn.Module, options: SiftOptions | None = None, *, layer_norm: str | None = None):
        self.model = model
        self.options = options or SiftOptions()
        self.layer_norm, self._module = embedding_norm(model, layer_norm)
        self._handle = None
        self._before: dict[str, torch.Tensor] = {}
        # Shape, device and dtype of δ, recorded in the clean pass.
        self._seen: tuple[torch.Size, torch.device, torch.dtype] | None = None
        self._delta: torch.Tensor | None = None

    def __enter__(self) -> "Sift":
        if self._handle is None:
            self._handle = self._module.register_forward_pre_hook(self._add_delta)
        return self

    def __exit__(self, *exception):
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def _add_delta(self, module: nn.Module, args: tuple[torch.Tensor, ...]):
        """Record the LayerNorm's input shape in a clean pass; normalise the input and add δ in a perturbed pass."""
        if not torch.is_grad_enabled():
            return None
        embedded, *rest = args
        if self._delta is None:
            self._seen = embedded.shape, embedded.device, torch.promote_types(embedded.dtype, torch.float32)
            return None
        exact = embedded.to(self._delta.dtype)
        normalised = functional.layer_norm(exact, exact.shape[-1:], eps=1e-7)
        if self.options.detach_embeddings:
            normalised = normalised.detach()
        return ((normalised + self._delta).to(embedded.dtype), *rest)

    @contextlib.contextmanager
    def clean_pass(self) -> Iterator[None]:
        """Context manager for the clean forward pass; saves the random state that perturbed passes restore."""
        self._seen = None
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
        """Compute δ and the adversarial loss for a batch.

        Args:
            outputs (`ModelOutput`): outputs of the clean pass, with their graph.
            inputs (`dict`): the batch.
            forward (`Callable`, *optional*): function that runs the forward pass and returns its outputs; default:
                `model(**inputs)`.
            labelled (`Callable`, *optional*): only for the form "adversarial": function that runs the forward pass and
                returns (loss on the labels, outputs); default: `forward` and the loss in its outputs.
            generator (`torch.Generator`, *optional*): generator for the initial δ; default: torch's default generator.
            num_items (`int`, *optional*): number by which the sum of distances is divided; default: number of items that
                `divergence` counts.
            scale (`Callable`, *optional*): `GradScaler.scale`, so that float16 gradients of δ do not underflow.
        Raises:
            RuntimeError: if called outside of `with sift`, or without a clean pass before.
            ValueError: if the LayerNorm's input does not have one vector for each token.
        """
        if self._handle is None or self._seen is None:
            raise RuntimeError(
                "sift(...) must be called inside `with sift:`. In this block, before each call, run the model with "
                "gradients enabled inside `with sift.clean_pass():`"
            )
        options = self.options
        forward = forward or (lambda: self.model(**inputs))
        constant = {name: value.detach() for name, value in outputs.items() if isinstance(value, torch.Tensor)}
        after = _random_state(self._seen[1])
        try:
            delta, real, rows = self.first_delta(inputs, generator)
            for _ in range(options.steps):
                delta.requires_grad_()
                with self.perturbed(delta):
                    value, _, _ = self._measure(constant, inputs, forward, labelled)
                (gradient,) = torch.autograd.grad(value if scale is None else scale(value), delta)
                if scale is not None and options.gradient_eps:
                    gradient = gradient / scale(torch.ones_like(value)).detach()
                delta = self.ascend(delta.detach(), gradient.masked_fill(~real, 0), real, rows)
            with self.perturbed(delta):
                loss, count, change = self._measure(outputs, inputs, forward, labelled)
        finally:
            self._seen = None
            if options.same_dropout:
                _set_random_state(after)
        if options.form == "virtual":
            items = torch.as_tensor(count if num_items is None else num_items, device=loss.device)
            loss = loss / items.clamp(min=1)
        size = (delta.square().sum() / (real.sum() * delta.shape[-1]).clamp(min=1)).sqrt()
        return SiftOutput(loss, size, change, delta)

    def _measure(self, target, inputs, forward, labelled) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Run a perturbed pass; return (loss, number of distances, mean change of the logits).

        For form "virtual", the loss is the sum of distances; for "adversarial", it is the loss on the labels, and the number
        is None.
        """
        if self.options.form == "virtual":
            values, counts, change = divergence(target, forward(), inputs, self.model.config, self.options.loss)
            return values.masked_fill(~counts, 0).sum(), counts.sum(), change
        if labelled is None:
            perturbed = forward()
            loss = perturbed["loss"]
        else:
            loss, perturbed = labelled()
        with torch.no_grad():
            _, _, change = divergence(target, perturbed, inputs, self.model.config)
        return loss, None, change

    @contextlib.contextmanager
    def perturbed(self, delta: torch.Tensor) -> Iterator[None]:
        """Context manager that adds δ to the embeddings, with the dropout noise of the clean pass."""
        if self.options.same_dropout:
            _set_random_state(self._before)
        self._delta = delta
        try:
            yield
        finally:
            self._delta = None

    def first_delta(self, inputs, generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw the initial δ. Return δ, the mask of real tokens [.., .., 1], and the row index of each token.

        If the model removes padding before its embeddings, the T real tokens of all rows form one row, [1, T, E].
        """
        shape, device, dtype = self._seen
        real = torch.ones(shape[:2], dtype=torch.bool, device=device)
        rows = torch.arange(shape[0], device=device)[:, None].expand(shape[:2])
        mask = real_tokens(inputs)
        if mask is not None and mask.shape == shape[:2]:
            real = mask.to(device)
        elif mask is not None and shape[:2] == (1, int(mask.sum())):
            rows = mask.nonzero()[:, 0].to(device)[None]
        elif mask is not None:
            raise ValueError(
                f"the input of {self.layer_norm} must have one vector for each token of the mask {list(mask.shape)}, got "
                f"shape {list(shape)}; choose another LayerNorm by layer_norm (--sift_layer_norm)"
            )
        drawn_on = device if generator is None else generator.device
        noise = torch.randn(shape, generator=generator, device=drawn_on, dtype=dtype).to(device)
        delta = (self.options.init_size * noise).clamp(-2 * self.options.init_size, 2 * self.options.init_size)
        return delta.masked_fill(~real[..., None], 0), real[..., None], rows

    def ascend(self, delta: torch.Tensor, gradient: torch.Tensor, real: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Take one ascent step: Π(δ + lr · g / (|g| + gradient_eps)). Non-finite elements of g count as 0."""
        options = self.options
        gradient = gradient.masked_fill(~gradient.isfinite(), 0)
        # Divide by the largest element, so that squares do not underflow.
        largest = gradient.abs().max().clamp(min=torch.finfo(gradient.dtype).tiny)
        gradient = gradient / largest
        size = sizes(gradient, options.norm, real, rows) + options.gradient_eps / largest
        delta = delta + options.learning_rate * torch.where(size > 0, gradient / size, 0)
        if options.projection == "clamp":
            return delta.clamp(-options.radius, options.radius)
        if options.projection == "ball":
            size = sizes(delta, options.norm, real, rows)
            return torch.where(size > options.radius, delta * (options.radius / size), delta)
        return delta


def sizes(x: torch.Tensor, norm: str, real: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Compute the `norm` of x [.., .., E] for each token, [.., .., 1].

    For "sequence_rms", each token gets the norm of its sequence, and `rows` contains the index of each token's sequence. x
    must be 0 where `real` is False.
    """
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
        module = torch if kind == "cpu" else torch.get_device_module(kind)
        module.set_rng_state(state)
