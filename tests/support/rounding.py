# SPDX-License-Identifier: Apache-2.0
"""Comparison of the outputs of a model and its reloaded copy: equal weights give outputs that are equal up to rounding.

BLAS chooses its kernel by instruction set, number of threads and address of the weights, and kernels add up in different
orders.
"""

import torch

# Units in the last place of the largest value. Measured in float32 with another summation order in each linear layer: 26
# for states and logits, 200 for attention probabilities, which inherit the rounding of large scores; 0 in bfloat16.
UNITS = {torch.float64: 512, torch.float32: 512, torch.bfloat16: 4, torch.float16: 4}


def equal_outputs(outputs: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return True if shapes and dtypes are equal, and values up to `UNITS` of the largest finite one; integers exactly."""
    if outputs.shape != expected.shape or outputs.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(outputs, expected)
    finite = expected[expected.isfinite()].double().abs()
    largest = finite.max().item() if len(finite) else 0.0
    bound = UNITS[expected.dtype] * torch.finfo(expected.dtype).eps * largest
    return torch.allclose(outputs.double(), expected.double(), rtol=0, atol=bound, equal_nan=True)


def assert_equal_outputs(outputs: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]):
    """Check that the outputs have the same names and satisfy `equal_outputs`."""
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert equal_outputs(outputs[name], value), name
