# SPDX-License-Identifier: Apache-2.0
"""`python -m hf_deberta_ext COMMAND ...` is `deberta-ext COMMAND ...`."""

import sys

from .commands import main

__all__ = []

if __name__ == "__main__":
    sys.exit(main())
