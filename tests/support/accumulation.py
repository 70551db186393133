# SPDX-License-Identifier: Apache-2.0
"""The mark of tests of gradient accumulation, which transformers before 5.6 gets wrong."""

import pytest
import transformers
from packaging.version import Version

exact_accumulation = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"),
    reason="Trainer of transformers 5.4 and 5.5 divides by the accumulation steps twice, for every model",
)
