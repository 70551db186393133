# SPDX-License-Identifier: Apache-2.0
"""Record of the tensors that operations return."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Record every tensor that an operation returns: (operation, dtype, shape, elements of the storage)."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if torch.is_tensor(x):
                elements = x.untyped_storage().nbytes() // x.element_size()
                self.seen.append((str(function), x.dtype, tuple(x.shape), elements))
        return result
