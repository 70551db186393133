# SPDX-License-Identifier: Apache-2.0
"""Try an installed package: a model computes with the backend that the wheel should have, and README's first lines run.

python -I .ci/try_wheel.py native
"""

import os
import re
import sys
from pathlib import Path

import torch

import hf_deberta_ext
from hf_deberta_ext.native import kernel_status

ROOT = Path(__file__).resolve().parents[1]
package = Path(hf_deberta_ext.__file__).parent
assert package.parent != ROOT and (package / "py.typed").is_file(), package
config = hf_deberta_ext.DebertaExtConfig.from_preset("v3-xsmall", num_hidden_layers=1, vocab_size=50)
model = hf_deberta_ext.DebertaExtModel(config).eval()
model(torch.ones(1, 9, dtype=torch.int64))
((backend, _),) = model.attention_backends().values()
print(package, kernel_status(), backend, sep=" | ")
assert backend == sys.argv[1]
# With the model that is here in place of one that needs the Hub.
os.chdir(ROOT)
readme = Path("README.md").read_text(encoding="utf-8")
snippet = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[1]
exec(re.sub(r'"microsoft/[\w.-]+"', '"examples/models/deberta-ext-small-en"', snippet))
