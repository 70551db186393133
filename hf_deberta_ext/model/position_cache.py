# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The cache of relative positions: at inference on CPU, the relative table and its projections are kept between calls."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

__all__ = ["PositionCache", "has_hooks", "module_state", "same_values"]


class PositionCache(nn.Module):
    """Base class of modules that keep what they compute from their weights.

    `position_cache` holds one immutable entry, with everything that it was computed from. A call reads the attribute once,
    compares, and replaces the entry as a whole where it does not match. So calls in several threads are safe, and it never
    has to be dropped for a result to be right. `train()` drops it, and copies and pickles leave it out.
    """

    position_cache: torch.Tensor | tuple | None = None

    def train(self, mode: bool = True):
        if mode:
            self.position_cache = None
        return super().train(mode)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "position_cache"}

    def kept_table(self, P: torch.Tensor) -> torch.Tensor:
        """Return a tensor equal to the relative table `P` [R, hidden]; the same object as long as its values stay."""
        kept = self.position_cache
        if kept is None or not same_values(kept, P):
            self.position_cache = kept = P.clone()
        return kept


def same_values(a, b) -> bool:
    """Return whether two tensors have equal dtype and values; other objects are the same only if they are one object."""
    both = torch.is_tensor(a) and torch.is_tensor(b)
    return a is b or (both and a.dtype == b.dtype and torch.equal(a, b))


def has_hooks(module: nn.Module | None) -> bool:
    """Return whether a forward hook sees the calls of a module or of one inside it."""
    if module is None:
        return False
    # torch 2.6 has no function for the hooks of all modules.
    everywhere = _global_forward_hooks or _global_forward_pre_hooks
    return bool(everywhere) or any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def module_state(module: nn.Module, table: torch.Tensor) -> tuple[list[tuple[int, int]], object]:
    """Return the versions of a projection's weights and a sample of values, which differ after it has changed.

    Args:
        table (`torch.Tensor`): what it projects, [R, hidden].

    Writes through `weight.data` have no version, and adapters are switched by attributes. The sample shows both: of a plain
    Linear, its bias and the diagonal of its weight, which crosses every row and column; of an int8 Linear, its packed
    weights, which are never changed in place; of any other module, its output for one row of numbers. A write through
    `.data` to single elements off the diagonal is not seen.
    """
    if is_plain_linear(module):
        weights = [module.weight] if module.bias is None else [module.weight, module.bias]
        return versions_of(weights), torch.cat([module.weight.diagonal(), *weights[1:]])
    # torch.ao's dynamically quantised Linear has a module with this attribute.
    packed = getattr(getattr(module, "_packed_params", None), "_packed_params", None)
    if packed is not None:
        return [], packed
    return versions_of(module.parameters()), module(torch.arange(table.shape[1]).cos().to(table.dtype)[None])


def versions_of(weights: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the address and the version of each weight; weights of inference mode have no version."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def is_plain_linear(module: nn.Module) -> bool:
    """Return whether a module is a Linear with plain tensors and the forward of its class."""
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    plain = (nn.Parameter, torch.Tensor)
    return type(module.weight) in plain and (module.bias is None or type(module.bias) in plain)
