# SPDX-License-Identifier: Apache-2.0
"""Table of examples/guides/cluster.md: bytes that an accelerator sends in a step of joint RTD (GDES), and bytes that it
keeps.

    python tests/support/byte_plan.py

In a ring of n accelerators, a reduce-scatter of gradients or an all-gather of parameters of b bytes sends b (n - 1) / n.
"""

import torch

from hf_deberta_ext import DebertaExtConfig, DebertaExtForPreTraining

# (transfers of all numbers, bytes of a transferred number, bytes of a number on every accelerator, bytes of a number that
# are split over all): float32 parameters, gradients and AdamW's moments. ZeRO also has bfloat16 parameters and gradients.
STRATEGIES = {
    "DDP": (2, 4, 16, 0), "FSDP 2": (3, 2, 0, 16), "ZeRO 1": (2, 2, 4, 12), "ZeRO 2": (2, 2, 2, 14), "ZeRO 3": (3, 2, 0, 16),
}  # fmt: skip


def sent(numbers: int, strategy: str, processes: int) -> float:
    """Return the bytes that each process sends in a step of bfloat16 training."""
    transfers, width, *_ = STRATEGIES[strategy]
    return transfers * numbers * width * (processes - 1) / processes


def kept(numbers: int, strategy: str, processes: int) -> float:
    """Return the bytes of parameters, gradients and optimizer states that each process keeps; activations need additional
    memory.
    """
    *_, whole, split = STRATEGIES[strategy]
    return numbers * (whole + split / processes)


def table() -> str:
    lines = ["| model, numbers | n | " + " | ".join(STRATEGIES) + " |", "| --- " * (2 + len(STRATEGIES)) + "|"]
    for preset in ("v3-base", "v3-large"):
        with torch.device("meta"):
            model = DebertaExtForPreTraining(DebertaExtConfig.from_preset(preset))
        numbers = sum(parameter.numel() for parameter in model.parameters())
        for n in (8, 64, 512):
            cells = [f"{sent(numbers, s, n) / 1e9:.2f} / {kept(numbers, s, n) / 1e9:.2f}" for s in STRATEGIES]
            lines.append(f"| {preset}, {numbers / 1e6:.1f}M | {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
