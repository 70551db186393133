# SPDX-License-Identifier: Apache-2.0
"""Cache the relative position embeddings and their projections, for inference on CPU, and reuse them in later calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["PositionCache"]


class PositionCache(nn.Module):
    """Base class of modules that cache tensors computed from their weights.

    The attribute `position_cache` is one immutable tuple of cached tensors and the values they were computed from. A call
    reads it once, compares these values, and replaces the whole tuple if they differ. Several threads can therefore share
    a module, and outdated tuples are never used. `train()` clears the attribute; copies and pickles omit it.
    """

    position_cache: tuple | None = None

    def train(self, mode: bool = True):
        if mode:
            self.position_cache = None
        return super().train(mode)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "position_cache"}

    def kept_table(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return `compute()`, the relative table [R, hidden]; always the same object until its values change.

        `compute` is only called again if one of the modules `rel_embeddings` and `LayerNorm` has changed (`module_state`),
        has forward hooks, or is not plain (`is_plain`).
        """
        modules = [module for module in (self.rel_embeddings, getattr(self, "LayerNorm", None)) if module is not None]
        entry, versions, samples = self.position_cache, None, None
        if all(is_plain(module) and not has_hooks(module) for module in modules):
            versions, samples = module_states(modules)
            if entry is not None and entry[0] == versions and all(map(same_values, entry[1], samples)):
                return entry[2]
        P = compute()
        if entry is not None and same_values(entry[2], P):
            P = entry[2]
        else:
            P = P.clone()
        self.position_cache = versions, samples, P
        return P

    def kept_projections(self, table: torch.Tensor, modules: list[nn.Module], project: Callable) -> Any:
        """Return `project(table)`, cached until another table is passed or a module changes (`module_state`).

        If a module has forward hooks, nothing is cached, and `module_state` is not called. It can call the module with an
        artificial input, which hooks that calibrate a quantiser must not see.
        """
        packed = [getattr(module, "packed", None) for module in modules]
        if all(weights is not None for weights in packed):
            return self.kept_of_packed(table, packed, project)
        if any(map(has_hooks, modules)):
            return project(table)
        versions, samples = module_states(modules, table)
        entry = self.position_cache
        if entry is not None:
            kept_table, kept_versions, kept_samples, projected = entry
            if kept_table is table and kept_versions == versions and all(map(same_values, kept_samples, samples)):
                return projected
        projected = project(table)
        self.position_cache = table, versions, samples, projected
        return projected

    def kept_of_packed(self, table: torch.Tensor, packed: list[object], project: Callable) -> Any:
        """Return `project(table)`; recompute it only if the table or packed weights (`int8.Int8Linear`) change."""
        entry = self.position_cache
        if entry is not None and entry[0] is table and all(a is b for a, b in zip(entry[1], packed, strict=True)):
            return entry[3]
        projected = project(table)
        self.position_cache = table, packed, None, projected
        return projected


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two tensors have equal dtype and values."""
    return a is b or (a.dtype == b.dtype and torch.equal(a, b))


def has_hooks(module: nn.Module) -> bool:
    """Return True if a module, or one of its submodules, has a forward hook or forward pre-hook."""
    # torch has no public function for this.
    return any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def is_plain(module: nn.Module) -> bool:
    """Return True for torch's own Linear, Embedding or LayerNorm, with plain parameters and an unchanged `forward`."""
    is_own = type(module) in (nn.Linear, nn.Embedding, nn.LayerNorm) and "forward" not in vars(module)
    return is_own and all(type(weight) is nn.Parameter for weight in module.parameters())


def module_states(modules: list[nn.Module], table: torch.Tensor | None = None) -> tuple[list[Any], list[torch.Tensor]]:
    """Return a list of the autocast state and each module's versions, and a list of the samples; see `module_state`."""
    states = [module_state(module, table) for module in modules]
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return [autocast, *(versions for versions, _ in states)], [sample for _, sample in states]


def module_state(module: nn.Module, table: torch.Tensor | None = None) -> tuple[list[tuple[int, int]], torch.Tensor]:
    """Return the address and version of each weight of a module, and a sample of the module's values.

    The version is torch's count of writes to the weight. It does not change after a write through `weight.data`, or if an
    attribute of the module enables an adapter; the sample detects both. For a plain module (`is_plain`), the sample has all
    elements of vectors, and every (columns + 1)th element of a matrix (the diagonal if it is square). For other modules, the
    sample is the output for a fixed input row. A write through `.data` that misses the sample is not detected.

    Args:
        table (`torch.Tensor`, *optional*): the module's input, [R, hidden]; required unless `is_plain(module)`.
    """
    weights = list(module.parameters())
    # `_version` is torch's only count of writes; tensors of inference mode have none.
    versions = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    if is_plain(module):
        # Of a matrix, every (columns + 1)th element.
        steps = [weight.shape[1] + 1 if weight.dim() == 2 else 1 for weight in weights]
        return versions, torch.cat([weight.flatten()[::step] for weight, step in zip(weights, steps, strict=True)])
    return versions, module(torch.arange(table.shape[1]).cos().to(table.dtype)[None])
