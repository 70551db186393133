# SPDX-License-Identifier: Apache-2.0
"""Outputs and all gradients of every backend against float64, by the worst row: real shapes on a GPU, tiny ones elsewhere.

examples/gpu_study.py sets DEBERTA_EXT_STUDY to a file. Each finished case is written to it immediately, and not run
again."""

import contextlib
import functools
import importlib
import itertools
import json
import math
import os
from pathlib import Path

import pytest
import torch

from hf_deberta_ext import ATTENTION_BACKENDS, AttentionInputs, disentangled_attention_eager
from hf_deberta_ext.model.attention_deberta_ext import RelativePosition, backend_unavailable

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
pytestmark = pytest.mark.gpu if GPU else []
TENSORS = ("out", "Q_c", "K_c", "V_c", "K_r", "Q_r")
MAX_DISTANCE = 512 if GPU else 8
D = 64 if GPU else 16
LENGTHS = {"near": (63, 128, 512), "far": (513, 700, 1100, 2048, 8192)} if GPU else {"near": (7,), "far": (37,)}
# Ordered by importance for training and inference, so that a study that is stopped early has the first ones.
CASES = [("bfloat16", mask, dropout, D) for mask in ("none", "padding", "packed", "pairs") for dropout in (0.0, 0.1)]
CASES += [("float16", "none", 0.0, D), ("float16", "none", 0.1, D), ("float16", "padding", 0.1, D)]
CASES += [("bfloat16", "none", 0.1, 2 * D), ("float32", "none", 0.0, D), ("float32", "padding", 0.1, D)]
CASES = [(*case, max_distance) for case, max_distance in itertools.product(CASES, LENGTHS)]


def documents(N):
    """Return the document number of each token, [N], for five documents of different lengths."""
    ends = torch.tensor([N // 11, N // 5, N // 2, N // 2 + 1])
    return torch.bucketize(torch.arange(N), ends, right=True)


def mask_of(kind, B, N):
    """Return a mask [B, 1, 1 or N, N]; True = may attend."""
    if kind == "none":
        return None
    if kind == "packed":
        return documents(N)[:, None].eq(documents(N))[None, None]
    if kind == "pairs":
        return torch.rand(B, 1, N, N, generator=torch.Generator().manual_seed(5)) < 0.7
    return (torch.arange(N) < torch.tensor([N, N // 2 + 1])[:B, None])[:, None, None]


def replayed(inputs, keep):
    """Return an eager backend with a given dropout mask."""
    out, probs = disentangled_attention_eager(inputs._replace(dropout_p=0.0))
    if keep is None:
        return out
    return (probs * keep / (1 - inputs.dropout_p)).to(out.dtype) @ inputs.V_c


def out_and_gradients(function, leaves, **options):
    leaves = [x.detach().requires_grad_() for x in leaves]
    Q_c, K_c, V_c, K_r, Q_r = leaves
    out = function(AttentionInputs(Q_c, K_c, V_c, K_r=K_r, Q_r=Q_r, **options))
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def worst_rows(results, references):
    """Return, by tensor, the largest |difference| of a row relative to its |reference| or that of a typical row."""
    errors = {}
    for name, x, reference in zip(TENSORS, results, references, strict=True):
        sizes = reference.norm(dim=-1)
        usual = sizes.square().mean().sqrt()
        errors[name] = ((x.double() - reference).norm(dim=-1) / sizes.clamp(min=usual)).max().item()
    return errors


def rows_of(N, dtype_name, kind, dropout_p, d, monkeypatch):
    """Return a row of errors for each backend that supports the case, eager first."""
    dtype = getattr(torch, dtype_name)
    B, H = (1, 1 if N > 4096 else 4) if kind == "packed" or N > 4096 else (2, 3)
    generator = torch.Generator().manual_seed(N)
    R = 256 if MAX_DISTANCE == 512 else 4
    leaves = [torch.randn(B, N, H, d, generator=generator).to(DEVICE, dtype).transpose(1, 2) for _ in range(3)]
    leaves += [torch.randn(H, 2 * R, d, generator=generator).to(DEVICE, dtype) for _ in range(2)]
    delta = RelativePosition(buckets=R, max_distance=MAX_DISTANCE)(N).to(DEVICE)
    options = dict(delta=delta, terms=("c2p", "p2c"), scale=1 / math.sqrt(3 * d))
    mask = mask_of(kind, B, N)
    mask = mask if mask is None else mask.to(DEVICE)
    keep = None
    if dropout_p:
        # Only the Triton kernels can report the probabilities that they keep.
        triton = importlib.import_module("hf_deberta_ext.kernels.attention_triton")
        seed = torch.tensor([7], device=DEVICE)
        monkeypatch.setattr(triton, "draw_seed", lambda device: seed)
        keep = triton.dropout_mask(seed, B, H, N, dropout_p)
    options |= dict(mask=mask, dropout_p=dropout_p)
    eager = functools.partial(replayed, keep=keep)
    exact = out_and_gradients(eager, [x.double() for x in leaves], **options)
    rows = [dict(backend="eager", N=N, **worst_rows(out_and_gradients(eager, leaves, **options), exact))]
    for name in ["triton"] if dropout_p else [name for name in ATTENTION_BACKENDS if name != "eager"]:
        if backend_unavailable(name, DEVICE, dtype, d):
            continue
        backend, how = ATTENTION_BACKENDS[name], options | dict(max_distance=MAX_DISTANCE)
        if kind == "packed" and backend.takes_cu_seqlens:
            ends = documents(N).bincount().cumsum(0)
            how |= dict(mask=None, cu_seqlens=torch.cat([ends.new_zeros(1), ends]).int().to(DEVICE))
        errors = worst_rows(out_and_gradients(backend.function, leaves, **how), exact)
        # A row may be worse than eager's worst by chance, and in a document of few tokens by the backward's row sums, which
        # are taken of the rounded output, as in FlashAttention; another result is worse by orders of magnitude.
        bounds = {key: 8 * max(rows[0][key], torch.finfo(dtype).eps) for key in errors}
        rows.append(dict(backend=name, N=N, **errors, ok=all(errors[key] <= bounds[key] for key in errors)))
    return rows


def study_lines(file):
    """Return the lines of a study's results, without an incomplete last line."""
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def is_right(line):
    return "rows" in line and all(row.get("ok", True) for row in line["rows"])


@pytest.mark.parametrize(("dtype", "kind", "dropout_p", "d", "max_distance"), CASES)
def test_outputs_and_gradients_are_as_close_to_float64_as_those_of_eager(
    dtype, kind, dropout_p, d, max_distance, monkeypatch
):
    file, case = os.environ.get("DEBERTA_EXT_STUDY"), f"{dtype} {kind} dropout {dropout_p:g} d {d} {max_distance}"
    if file and any(case == line["case"] and is_right(line) for line in study_lines(file)):
        pytest.skip("the study has it")
    if dropout_p and backend_unavailable("triton", DEVICE, getattr(torch, dtype), d):
        pytest.skip("no backend here says which probabilities its dropout keeps")
    labels, rows = dict(dtype=dtype, mask=kind, dropout=dropout_p, d=d), []
    for N in LENGTHS[max_distance]:
        # Dense float64 masks for 8,192 tokens need tens of gigabytes.
        if N < 4096 or (kind, d) == ("none", D):
            rows += [labels | row for row in rows_of(N, dtype, kind, dropout_p, d, monkeypatch)]
    if file:
        with open(file, "a", encoding="utf-8") as study:
            study.write(json.dumps(dict(stage="correctness", case=case, state="done", rows=rows)) + "\n")
    assert len({row["backend"] for row in rows}) > 1
    wrong = [row for row in rows if not row.get("ok", True)]
    assert not wrong, wrong
