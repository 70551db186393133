# SPDX-License-Identifier: Apache-2.0
"""Cache, for inference on CPU, of the relative table and its projections, so that calls do not compute them again."""

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

        The table is only computed again if `rel_embeddings` or `LayerNorm` has changed (`module_state`), has hooks, or does
        not have torch's own class.
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

        If a module has hooks, nothing is cached, and the module is only called with the table, so that hooks that calibrate
        a quantiser only see real inputs.
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
    """Return the versions and the samples of `module_state` as two lists; the first version is the state of autocast."""
    states = [module_state(module, table) for module in modules]
    autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return [autocast, *(versions for versions, _ in states)], [sample for _, sample in states]


def module_state(module: nn.Module, table: torch.Tensor | None = None) -> tuple[list[tuple[int, int]], torch.Tensor]:
    """Return the addresses and versions of a module's weights, and a sample of its values.

    The version of a weight does not change if it is written through `weight.data`, or if an attribute enables an adapter;
    the sample detects both. The sample of a plain module has its vectors and, of each matrix, one element of every row and
    column (the diagonal if it is square). The sample of other modules is their output for a fixed row. A write through
    `.data` to only a few other elements is not detected.

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
