# SPDX-License-Identifier: Apache-2.0
"""The compiled Triton kernels in numbers, without a GPU: registers, spills, occupancy, bank conflicts, a floor of time.

    python examples/gpu_kernel_report.py --output_dir study
    python examples/gpu_kernel_report.py --output_dir study --capabilities 90 --head_sizes 64 --dtypes bfloat16   # a minute

Calls the operators on CPU tensors with a driver that compiles for the asked compute capability and launches nothing, so that
the kernels are those of real calls. Writes kernels.csv, a row for each kernel, and tiles.csv, a row for each length. The
floor counts tensor cores, shared memory (the shear alone) and exponentials of an H200, each as if nothing else took time.
"""

import argparse
import collections
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

from hf_deberta_ext.model.relative_position import RelativePosition

# Coordinates of each gather of a tile, as `pick` takes them, and the columns of its result in blocks.
TURNED = [("q - p", "q", 1), ("p", "q - p", 1)]


def gathers(name: str, head_size: int) -> list[tuple[str, str, int]]:
    near = [("p", "p - q", 1), ("q", "p - q", 1) if head_size > 64 else ("p - q", "q", 1)]
    return {
        "fwd": near,
        "bwd_kernel_dq": [*near, ("p", "p - q", 2)],
        "bwd_kernel_dkv": [*TURNED, ("p", "p + q", 2)],
        "bwd_kernel_bands": [*near, ("q", "q - p", 1), ("p + q", "q", 1)],
    }.get(name, [])


# Products of [BLOCK, BLOCK, d] for each near and far tile; a window is two blocks wide.
PRODUCTS = {"fwd": (6, 2), "bwd_kernel_dq": (9, 3), "bwd_kernel_dkv": (10, 4), "bwd_kernel_bands": (10, 0)}
# Shared memory of an SM in KB.
SHARED_KB = {80: 164, 90: 228, 100: 228}
# H200: SMs, GHz, dense bfloat16 TFLOP/s, exponentials a clock and SM.
SMS, GHZ, TFLOPS, EXPONENTIALS = 132, 1.755, 989, 16


@contextlib.contextmanager
def compiled_for(capability: int):
    """A list of (name, keyword arguments, compiled kernel) that fills with the launches inside; none of them runs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime.jit import JITFunction

    class CompileOnly(CudaDriver):
        def __init__(self):
            # Triton keeps compiled kernels by the number of their device.
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
    """Resource usage and SASS, by the tools that triton brings."""
    import triton.backends.nvidia

    tools = Path(triton.backends.nvidia.__file__).parent / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        commands = [tools / "cuobjdump", "-res-usage", file.name], [tools / "nvdisasm", "-c", file.name]
        return tuple(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands)


def position(axis: str, p: int, q: int, block: int) -> int:
    return {"p": p, "q": q, "p - q": p - q + block - 1, "q - p": q - p + block - 1, "p + q": p + q - block + 1}[axis]


def wavefronts(words: list[int]) -> int:
    """Passes that one access of a warp to these words of shared memory takes: of each bank, its different words."""
    return max(collections.Counter(word % 32 for word in {*words}).values())


def shear_wavefronts(ttgir: str, gathers: list[tuple[str, str, int]], block: int) -> int:
    """Passes through shared memory of the gathers of one near tile, from the layouts of the compiled code."""
    layouts = {}
    for alias, kind, text in re.findall(r"^#(\w+) = #ttg\.(linear|blocked)<\{(.*)\}>", ttgir, re.M):
        if kind == "linear" and "lane = [[" in text:
            layouts[alias] = {key: [int(x[0]) for x in eval(text.split(key + " = ")[1].split("]]")[0] + "]]")]
                              if f"{key} = [[" in text else [] for key in ("register", "lane", "warp")}  # fmt: skip
    total = 0
    found = re.findall(r"tt\.gather .*\(tensor<(\d+)x(f32|f16|bf16), #(\w+)>, tensor<(\d+)xi32, #(\w+)>", ttgir)
    for (count, dtype, source, size, target), (row, col, wide) in zip(found, gathers, strict=True):
        bits = 32 if dtype == "f32" else 16
        # Small results are laid out lane by lane.
        in_order = dict(lane=[1, 2, 4, 8, 16], warp=[], register=[32 << i for i in range(int(size).bit_length() - 6)])
        columns = int(count) // block if row in "pq" and bits == 32 else block
        width = wide * block
        coordinates = {flatten(p, q, width, bits): (p, q) for p in range(int(size) // width) for q in range(width)}
        for layout, reads in ((layouts[source], False), (layouts.get(target, in_order), True)):
            # 16 bits: two neighbours of a lane are stored as one word.
            registers = [x for x in layout["register"] if reads or bits == 32 or x != 1]
            for bases in itertools.product(*[(0, x) for x in registers + layout["warp"]]):
                places = []
                for lane in range(32):
                    place = sum(bases) ^ sum(x for i, x in enumerate(layout["lane"]) if lane >> i & 1)
                    if reads:
                        p, q = coordinates[place]
                        r, c = (position(axis, p, q, block) for axis in (row, col))
                        r, c = r % (int(count) // columns), c % columns
                        place = flatten(r, c, columns, bits)
                    places.append(place * bits // 32)
                total += wavefronts(places)
    return total


def flatten(row: int, col: int, columns: int, bits: int) -> int:
    """The place of [row, col] in the order of `triton_tiles.flatten`."""
    if bits == 16:
        wide = min(columns, 32)
        return ((row // 2 * (columns // wide) + col // wide) * 2 + row % 2) * wide + col % wide
    return (row // 8 * (columns // 8) + col // 8) * 64 + col % 2 * 32 + row % 8 * 4 + col % 8 // 2


def kernel_row(name: str, options: dict, kernel, capability: int) -> dict:
    usage, sass = disassemble(kernel.asm["cubin"])
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    warps, shared = options.get("num_warps", 4), kernel.metadata.shared
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", sass)
    count = {key: sum(x.startswith(key) for x in opcodes) for key in ("HGMMA", "HMMA", "FFMA", "MUFU.EX2", "STL", "LDL")}
    # As many as HGMMA: ptxas makes each wait for the one before ("wgmma.mma_async instructions are serialized").
    count["HGMMA_groups"] = len(re.findall(r"HGMMA.*, gsb0", sass))
    blocks = min(
        65536 // (-(-registers // 8) * 8 * 32 * warps), SHARED_KB[capability] * 1024 // (shared + 1024), 64 // warps
    )
    row = dict(capability=capability, kernel=name, warps=warps, registers=registers, stack_bytes=stack, shared_bytes=shared)
    row |= dict(blocks_per_sm=blocks, instructions=len(opcodes)) | count | dict(shear_wavefronts="")
    block = options.get("BLOCK_M", options.get("BLOCK"))
    found = gathers(name.removesuffix("_kernel"), options.get("BLOCK_D", 0))
    if found and "#linear" in kernel.asm["ttgir"]:
        row["shear_wavefronts"] = shear_wavefronts(kernel.asm["ttgir"], found, block)
    return row | dict(block=block)


def kernel_rows(capability: int, dtype: torch.dtype, head_size: int, dropout_p: float = 0.0):
    """Yield a row for each kernel of a training step at 2,048 tokens, with the launch parameters of the table."""
    from hf_deberta_ext.model import attention_triton

    there = dict(triton_unavailable=lambda *args, **kwargs: None, capability=lambda device: divmod(capability, 10))
    content = [torch.zeros(1, 2048, 2, head_size, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    K_r, Q_r = (torch.zeros(512, 2, head_size, dtype=dtype).transpose(0, 1).requires_grad_() for _ in range(2))
    options = dict(delta=RelativePosition(buckets=256, max_distance=512)(2048), terms=("c2p", "p2c"), scale=0.1, reach=512)
    with mock.patch.multiple(attention_triton, **there), compiled_for(capability) as kernels:
        out = attention_triton.disentangled_attention_triton(*content, K_r=K_r, Q_r=Q_r, dropout_p=dropout_p, **options)
        out.backward(torch.zeros_like(out))
    for name, launch, kernel in kernels:
        shared = dict(dtype=str(dtype).removeprefix("torch."), head_size=head_size, dropout=dropout_p)
        yield shared | kernel_row(name, launch, kernel, capability)


def tile_row(N: int, batch: int, rows: list[dict], *, heads=12, head_size=64, block=64, reach=512) -> dict:
    """Tiles with and without gathers, and milliseconds that each unit of an H200 needs at least."""
    blocks = -(-N // block)
    near = 0
    for start in range(0, N, block):
        first = min(max(start - reach + 1, 0) // block, blocks)
        near += min(-(-(start + block - 1 + reach) // block), blocks) - first
    far = blocks**2 - near
    row = dict(tokens=N, batch=batch, near_tiles=near, far_tiles=far, gathers_forward=2 * near)
    for part, names in (("forward", ["fwd"]), ("backward", [name for name in PRODUCTS if name != "fwd"])):
        work = batch * heads * block**2
        products = sum(PRODUCTS[name][0] * near + PRODUCTS[name][1] * far for name in names)
        row[f"{part}_tensor_cores_ms"] = round(2 * work * head_size * products / TFLOPS / 1e9, 4)
        passes = {row["kernel"].removesuffix("_kernel"): row["shear_wavefronts"] for row in rows}
        clocks = batch * heads * near * sum(passes.get(name) or 0 for name in names)
        row[f"{part}_shear_ms"] = round(clocks / SMS / GHZ / 1e6, 4)
        exponentials = sum(near + (far if name != "bwd_kernel_bands" else 0) for name in names)
        row[f"{part}_exponentials_ms"] = round(work * exponentials / EXPONENTIALS / SMS / GHZ / 1e6, 4)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("study"), help="folder for kernels.csv and tiles.csv")
    parser.add_argument("--capabilities", type=int, nargs="+", default=[80, 90], choices=list(SHARED_KB))
    parser.add_argument("--head_sizes", type=int, nargs="+", default=[64], choices=[16, 32, 64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.1], help="rates of dropout")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        raise SystemExit("TRITON_INTERPRET is set: interpreted kernels are not compiled; unset it")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    rows = []
    for capability, dtype, size, rate in itertools.product(args.capabilities, args.dtypes, args.head_sizes, args.dropout):
        for row in kernel_rows(capability, getattr(torch, dtype), size, rate):
            if row not in rows:
                rows.append(row)
                print(*(f"{key} {value}" for key, value in row.items() if value != ""), sep=", ", flush=True)
        write_csv(args.output_dir / "kernels.csv", rows)
    fastest = [row for row in rows if row["head_size"] == 64 and row["capability"] == max(args.capabilities)]
    tiles = [tile_row(N, batch, fastest) for N, batch in ((128, 32), (512, 8), (1024, 4), (2048, 2), (4096, 2), (8192, 2))]
    write_csv(args.output_dir / "tiles.csv", tiles)
    for row in tiles:
        print(*(f"{key} {value}" for key, value in row.items()), sep=", ")
    print("disentangled-flash claims 8.48 ms forward and 53.8 ms forward and backward on an H200, bfloat16, 8192 tokens")


if __name__ == "__main__":
    sys.exit(main())
