# SPDX-License-Identifier: Apache-2.0
"""Names of attention backends for tests, from the table of backends."""

import torch

from hf_deberta_ext import ATTENTION_BACKENDS
from hf_deberta_ext.model.attention_backends import backend_unavailable

__all__ = ["NAMES"]

TRAINING = dict(device=torch.device("cpu"), dtype=torch.float32, head_size=64, needs_grad=True, dropout_p=0.1)
# Backends that run forward and backward on this machine's CPU; with TRITON_INTERPRET=1 "triton" is one of them.
NAMES = [name for name in ATTENTION_BACKENDS if backend_unavailable(name, **TRAINING) is None]
