# SPDX-License-Identifier: Apache-2.0
"""Mark for tests of gradient accumulation, which transformers before 5.6 computes incorrectly."""

import pytest
import transformers
from packaging.version import Version

exact_accumulation = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"),
    reason="Trainer in transformers 5.4 and 5.5 divides the loss by the accumulation steps twice, for every model",
)
