# SPDX-License-Identifier: Apache-2.0
"""Print registers, spills, shared memory and occupancy of the compiled Triton kernels, without a GPU.

    python examples/benchmarks/gpu_kernel_report.py --output_dir study
    python examples/benchmarks/gpu_kernel_report.py --output_dir study --capabilities 90 --dtypes bfloat16   # a minute

Calls the operators on CPU tensors with a driver that compiles for the given compute capability and launches nothing, so the
kernels are the same as in real calls. Writes kernels.csv, a row for each kernel.
"""

import argparse
import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from measuring import write_csv

from hf_deberta_ext import AttentionInputs, RelativePosition

# Shared memory of an SM in KB, by compute capability.
SHARED_KB = {80: 164, 90: 228, 100: 228}
# Counted instructions, by their prefix: products, exponentials, spills.
COUNTED = ("HGMMA", "HMMA", "FFMA", "MUFU.EX2", "STL", "LDL")


@contextlib.contextmanager
def compiled_for(capability: int):
    """Collect the launches inside the context as (name, keyword arguments, compiled kernel); none of them runs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime.jit import JITFunction

    class CompileOnly(CudaDriver):
        def __init__(self):
            # Triton stores compiled kernels by device index.
            self.get_current_device, self.get_current_stream = (lambda: capability), (lambda device: 0)

        def get_current_target(self):
            return GPUTarget("cuda", capability, 32)

    kernels, run, active = [], JITFunction.run, triton.runtime.driver._active

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        kernels.append((self.fn.__name__.removeprefix("disentangled_"), options, kernel))

    triton.runtime.driver.set_active(CompileOnly())
    JITFunction.run = compile_only
    try:
        yield kernels
    finally:
        JITFunction.run, triton.runtime.driver._active = run, active


def disassemble(cubin: bytes) -> tuple[str, str]:
    """Return the resource usage and the SASS of a compiled kernel, from the tools that are installed with triton."""
    import triton.backends.nvidia

    tools = Path(triton.backends.nvidia.__file__).parent / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        commands = [tools / "cuobjdump", "-res-usage", file.name], [tools / "nvdisasm", "-c", file.name]
        return tuple(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands)


def kernel_row(name: str, options: dict, kernel, capability: int) -> dict:
    usage, sass = disassemble(kernel.asm["cubin"])
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    warps, shared = options.get("num_warps", 4), kernel.metadata.shared
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", sass)
    count = {key: sum(opcode.startswith(key) for opcode in opcodes) for key in COUNTED}
    # Equals HGMMA if ptxas makes each product wait for the previous one ("wgmma.mma_async instructions are serialized").
    count["HGMMA_groups"] = len(re.findall(r"HGMMA.*, gsb0", sass))
    blocks = min(
        65536 // (-(-registers // 8) * 8 * 32 * warps), SHARED_KB[capability] * 1024 // (shared + 1024), 64 // warps
    )
    row = dict(capability=capability, kernel=name, warps=warps, registers=registers, stack_bytes=stack, shared_bytes=shared)
    return row | dict(blocks_per_sm=blocks, instructions=len(opcodes)) | count


def kernel_rows(capability: int, dtype: torch.dtype, head_size: int, dropout_p: float = 0.0):
    """Yield a row for each kernel of a training step at 2,048 tokens, with the launch parameters that this package uses."""
    from hf_deberta_ext.kernels import attention_triton

    there = dict(triton_unavailable=lambda *args: None, capability=lambda device: divmod(capability, 10))
    content = [torch.zeros(1, 2048, 2, head_size, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    K_r, Q_r = (torch.zeros(512, 2, head_size, dtype=dtype).transpose(0, 1).requires_grad_() for _ in range(2))
    delta = RelativePosition(buckets=256, max_distance=512)(2048)
    inputs = AttentionInputs(*content, 0.1, K_r, Q_r, delta, ("c2p", "p2c"), dropout_p=dropout_p, max_distance=512)
    with mock.patch.multiple(attention_triton, **there), compiled_for(capability) as kernels:
        out = attention_triton.disentangled_attention_triton(inputs)
        out.backward(torch.zeros_like(out))
    for name, launch, kernel in kernels:
        shared = dict(dtype=str(dtype).removeprefix("torch."), head_size=head_size, dropout=dropout_p)
        yield shared | kernel_row(name, launch, kernel, capability)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("study"), help="folder for kernels.csv")
    parser.add_argument("--capabilities", type=int, nargs="+", default=[80, 90], choices=list(SHARED_KB))
    parser.add_argument("--head_sizes", type=int, nargs="+", default=[64], choices=[16, 32, 64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.1], help="dropout rates")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        raise SystemExit("TRITON_INTERPRET is set, so no kernel is compiled; unset it")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    rows = []
    for capability, dtype, size, rate in itertools.product(args.capabilities, args.dtypes, args.head_sizes, args.dropout):
        for row in kernel_rows(capability, getattr(torch, dtype), size, rate):
            if row not in rows:
                rows.append(row)
                print(row, flush=True)
        write_csv(args.output_dir / "kernels.csv", rows)


if __name__ == "__main__":
    sys.exit(main())
