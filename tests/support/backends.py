# SPDX-License-Identifier: Apache-2.0
"""Names of attention backends for tests, from the table of backends."""

import pytest
import torch

from hf_deberta_ext import ATTENTION_BACKENDS
from hf_deberta_ext.model.attention_deberta_ext import backend_unavailable, choose_backend
from hf_deberta_ext.native import kernel_status

CALL = torch.device("cpu"), torch.float32, 64
SERVING = [name for name in ATTENTION_BACKENDS if backend_unavailable(name, *CALL) is None]
# Backends that run forward and backward on this machine's CPU; with TRITON_INTERPRET=1 these include "triton".
NAMES = [name for name in SERVING if name != "native"]
# "native" takes head sizes of at least 16, does not take float16, and is available where its library was built.
NATIVE = pytest.param("native", id="native", marks=pytest.mark.skipif("native" not in SERVING, reason=kernel_status()))
# Default backend for such heads on a CPU.
AUTO, _ = choose_backend(None, *CALL)
