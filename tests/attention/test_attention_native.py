# SPDX-License-Identifier: Apache-2.0
"""The native kernel: every instruction set, shape and option against the equation, threads, sanitizers, and the build."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attention_inputs import call, make_inputs, whole
from backends import AUTO
from torch.utils.checkpoint import checkpoint
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_deberta_ext import DebertaExtModel, native
from hf_deberta_ext.model.attention_deberta_ext import RelativePosition

ROOT = Path(__file__).resolve().parents[2]
needs_library = pytest.mark.skipif(AUTO != "native", reason=native.kernel_status())
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
ALL_TERMS = [(), ("c2p",), ("p2c",), ("c2p", "p2c"), ("p2p",), ("c2p", "p2c", "p2p")]


@pytest.fixture(params=native.INSTRUCTION_SETS, ids=native.INSTRUCTION_SETS.get)
def instruction_set(request, monkeypatch):
    if AUTO != "native":
        pytest.skip(native.kernel_status())
    if not native.library.disentangled_supports(request.param):
        pytest.skip(f"this CPU has no {native.INSTRUCTION_SETS[request.param]}")
    monkeypatch.setattr(native, "instruction_set", request.param)


def random_call(seed):
    """Return leaves, arguments for "native", and the arguments for "eager" that replace cu_seqlens."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kind = draw.choice(["plain", "plain", "packed", "decoded"])
    B, H, d = draw.randint(1, 3), draw.randint(1, 3), draw.choice([16, 64, 128, draw.randint(16, 128)])
    N = draw.choice([draw.randint(1, 20), draw.randint(20, 150), draw.randint(150, 330)])
    lengths = [draw.randint(1, N) for _ in range(B)]
    M = N
    if kind == "packed":
        B, M, N = 1, sum(lengths), sum(lengths)
    elif kind == "decoded":
        M = draw.randint(1, 2 * N)

    def content(length):
        if draw.random() < 0.3:
            return torch.randn(B, H, length, d, generator=generator)
        fused = torch.randn(B, length, H, 2 * d, generator=generator).transpose(1, 2)
        return fused[..., :d] if draw.random() < 0.5 else fused[..., ::2]

    distance = draw.choice([4, 20, 130])
    position = RelativePosition(buckets=draw.choice([-1, 2 * (distance // 4)]), max_distance=distance)
    R = int(position.rows.max()) + 1
    tables = [torch.randn(R, H, d, generator=generator).transpose(0, 1) for _ in range(2)]
    longest = max(lengths) if kind == "packed" else N
    terms = draw.choice(ALL_TERMS)
    options = dict(terms=terms, scale=(d * (1 + len(terms))) ** -0.5, delta=position(longest + draw.choice([0, 0, 7])))
    ours, theirs = dict(max_distance=draw.choice([distance, None])), {}
    if kind == "packed":
        documents = torch.arange(B * len(lengths)).repeat_interleave(torch.tensor(lengths))
        ours["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0).int()
        theirs.update(mask=documents[:, None] == documents, delta=position(N))
    elif draw.random() < 0.6:
        shape = draw.choice([(B, 1, 1, N), (B, 1, M, N), (1, H, M, N), (B, H, M, N), (M, N), (B, 1, M, 1)])
        options["mask"] = torch.rand(shape, generator=generator) < 0.7
    if kind == "decoded":
        options["query_positions"] = torch.randint(N, (B, M), generator=generator)
    leaves = [content(M), content(N), content(N), *tables]
    return leaves, options | ours, options | theirs


def results_of(seed, dtype):
    """Return outputs and gradients of "native" in this dtype, and of "eager" in float64 for the same inputs."""
    leaves, ours, theirs = random_call(seed)
    results = []
    for backend, computed, options in (("native", dtype, ours), ("eager", torch.float64, theirs)):
        tensors = [x.to(dtype).to(computed).requires_grad_() for x in leaves]
        out = call(backend, tensors, options)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(computed)
        gradients = torch.autograd.grad((out * weight).sum(), tensors, allow_unused=True)
        results.append([out, *(torch.zeros(1) if x is None else x for x in gradients)])
    return results


@pytest.mark.parametrize("seed", [*range(16), pytest.param(range(16, 316), marks=pytest.mark.slow, id="300 more")])
def test_random_calls_equal_the_equation_on_every_instruction_set(seed, instruction_set, relative_error):
    for number in seed if isinstance(seed, range) else [seed]:
        results = results_of(number, torch.float32)
        largest = max(x.norm() for x in results[1])
        for ours, wanted in zip(*results, strict=True):
            # With one key, gradients of scores are only rounding errors.
            if wanted.norm() > 1e-3 * largest:
                assert relative_error("native, random calls", whole(ours), whole(wanted)) < 2e-5, number
            else:
                assert (ours - wanted).norm() <= 1e-5 * largest, number


@pytest.mark.parametrize("seed", [*range(6), pytest.param(range(6, 106), marks=pytest.mark.slow, id="100 more")])
def test_bfloat16_costs_no_more_than_the_rounding_of_results_and_probabilities(seed, instruction_set, relative_error):
    for number in seed if isinstance(seed, range) else [seed]:
        (out, *gradients), (wanted, *wanted_gradients) = results_of(number, torch.bfloat16)
        # Rounding to bfloat16 has an error of 1.7e-3.
        assert relative_error("native, bfloat16", whole(out), whole(wanted)) < 3e-3, number
        largest = max(x.norm() for x in wanted_gradients)
        for ours, theirs in zip(gradients, wanted_gradients, strict=True):
            assert (ours - theirs).norm() <= 2e-2 * theirs.norm() + 1e-3 * largest, number


@needs_library
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(Q_r=torch.zeros(2, 31, 16)), r"Q_r must be torch.float32 with shape \[2, 32, 16\], got .* \[2, 31, 16\]"),
        (dict(delta=torch.zeros(63)), r"delta must be torch.int64 with shape \[63\], got torch.float32 \[63\]"),
        (dict(query_positions=torch.zeros(2, 5).long()), r"positions must be .* with shape \[2, 32\], got .* \[2, 5\]"),
        (dict(cu_seqlens=torch.tensor([0, 32])), r"starts must be torch.int32 with shape \[2\], got torch.int64"),
        (dict(mask=torch.ones(2, 1, 1, 32)), r"mask must be torch.bool with shape .*, got torch.float32"),
        (dict(delta=torch.full((63,), 32)), "an index is out of range"),
        (dict(query_positions=torch.full((2, 32), 32)), "an index is out of range"),
    ],
    ids=["table", "delta", "positions", "cu_seqlens", "mask", "delta-value", "position-value"],
)
def test_tensors_that_do_not_fit_are_refused_before_the_kernel_reads_them(change, message):
    leaves, options = make_inputs(32, ("c2p", "p2c"))
    leaves[4] = change.get("Q_r", leaves[4])
    with pytest.raises(ValueError, match=message):
        call("native", leaves, options | {name: x for name, x in change.items() if name != "Q_r"})


@needs_library
def test_checkpointing_draws_the_dropout_of_the_forward_again_and_second_derivatives_are_refused():
    leaves, options = make_inputs(70, ("c2p", "p2c"))
    gradients = []
    for wrap in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
        torch.manual_seed(3)
        out = wrap(lambda *x: call("native", x, options, dropout_p=0.4), *leaves)
        gradients.append(torch.autograd.grad(out.square().sum(), leaves))
    assert all(map(torch.equal, *gradients))
    leaves, options = make_inputs(9, ("c2p", "p2c"))
    (gradient,) = torch.autograd.grad(call("native", leaves, options).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(ValueError, match="native attention has no second derivatives; use attn_implementation = 'eager'"):
        gradient.sum().backward()


@needs_library
def test_tensors_of_mixed_dtypes_are_computed_in_float32(relative_error):
    """Test tables or biases with a wider dtype than projections, as under autocast."""
    leaves, options = make_inputs(40, ("c2p", "p2c", "p2p"))
    mixed = [x.bfloat16() if place < 3 else x for place, x in enumerate(leaves)]
    out = call("native", mixed, options)
    assert out.dtype == torch.bfloat16
    assert relative_error("native, mixed", out, call("eager", [x.double() for x in mixed], options)) < 5e-3


@needs_library
def test_operators_are_registered_as_torch_expects():
    leaves, options = make_inputs(20, ("c2p", "p2c"), mask="right")
    arguments = (*leaves, None, options["delta"], options["mask"], None, None, None, 20, options["scale"], 0.0)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.hf_deberta_ext.disentangled_attention.default, arguments, test_utils=checks)


@needs_library
def test_remote_code_takes_the_operator_of_the_installed_package(tiny_config, shake, batch, tmp_path):
    model = shake(DebertaExtModel(tiny_config("v3", num_attention_heads=2)))
    model.save_pretrained(tmp_path)
    remote_class = get_class_from_dynamic_module("modeling_deberta_ext.DebertaExtModel", str(tmp_path))
    assert remote_class is not DebertaExtModel
    remote = remote_class.from_pretrained(tmp_path)
    ids, mask = batch(2, 30, [30, 12])
    with torch.no_grad():
        states = [m(ids, attention_mask=mask).last_hidden_state for m in (model, remote)]
    served = {module.last_backend[0] for module in remote.modules() if hasattr(module, "last_backend")}
    assert torch.allclose(*states, atol=1e-6) and served == {"native"}


@needs_library
@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["no-dropout", "dropout"])
def test_compiled_training_has_no_graph_break(dropout, tiny_config, shake, batch):
    """Test Inductor with several lengths. Each call draws new dropout; the same seed repeats it."""
    config = tiny_config("v3", num_attention_heads=2, attention_probs_dropout_prob=dropout)
    model = shake(DebertaExtModel(config)).train()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    weight = model.encoder.layer[0].attention.self.query_proj.weight
    for length in (20, 33, 47, 61):
        ids, mask = batch(2, length, [length, 11])
        results = []
        for function, seed in ((compiled, 0), (compiled, 0), (compiled, 1), (model, 0)):
            torch.manual_seed(seed)
            states = function(ids, attention_mask=mask).last_hidden_state[mask.bool()]
            results.append((states, *torch.autograd.grad(states.square().sum(), weight)))
        first, again, other, plain = results
        assert all(map(torch.equal, first, again))
        assert torch.equal(first[0], other[0]) == (dropout == 0)
        if dropout == 0:
            assert torch.allclose(first[0], plain[0], atol=1e-5) and torch.allclose(first[1], plain[1], rtol=1e-3, atol=1e-3)


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize(("N", "mask"), [(50, "right"), (300, "documents"), (1500, "none")])
def test_one_two_and_three_threads_give_the_same(N, mask, relative_error):
    """Check equality up to the order of sums, and bitwise equality for an equal number of threads."""
    leaves, options = make_inputs(N, ("c2p", "p2c", "p2p"), mask=mask, d=32)
    before, results = torch.get_num_threads(), {}
    try:
        for threads in (1, 2, 3, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            out = call("native", leaves, options, dropout_p=0.1)
            result = out, *torch.autograd.grad(out.square().sum(), leaves)
            assert all(map(torch.equal, result, results.setdefault(threads, result)))
    finally:
        torch.set_num_threads(before)
    for threads in (2, 3):
        for x, wanted in zip(results[threads], results[1], strict=True):
            assert relative_error("native, threads", whole(x), whole(wanted)) < 1e-5


def compile_program(compiler: str, program: Path, *flags: str) -> Path:
    source = Path(native.__file__).with_name("disentangled_attention.cpp")
    flags = ("-std=gnu++17", "-Wno-psabi", f'-DKERNEL="{source}"', "-pthread", *flags)
    main = ROOT / "tests" / "support" / "native_program.cpp"
    subprocess.run([compiler, *flags, main, "-o", program, "-ldl"], check=True, timeout=300)
    return program


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing_on_any_instruction_set(sanitizer, tmp_path):
    """Place every tensor at the end of its memory. TSan supports the kernel's own threads, but not OpenMP."""
    program = tmp_path / "program"
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}", *["-fno-sanitize-recover=undefined"] * ("undefined" in sanitizer)]
    compile_program("g++", program, *flags)
    # TSan does not support every random address layout of the kernel.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    environment = os.environ | {"DEBERTA_EXT_NATIVE_OPENMP": "0"}
    done = subprocess.run([*fixed, program, "20"], capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0 and not done.stderr and "40 cases" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64-static")),
    reason="no compiler and emulator of arm64: Debian's packages g++-aarch64-linux-gnu and qemu-user-static",
)
def test_neon_gives_the_results_of_the_generic_code(tmp_path):
    """Compare norms and projections of outputs and all gradients, for random shapes and options, under emulation."""
    environment = os.environ | {"DEBERTA_EXT_NATIVE_OPENMP": "0"}
    results = []
    emulator = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]
    for compiler, start in (("g++", []), ("aarch64-linux-gnu-g++", emulator)):
        program = compile_program(compiler, tmp_path / compiler, "-O2", "-ffp-contract=fast")
        command = [*start, program, "5", "print"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=True)
        results.append([[*map(float, line.split())] for line in done.stdout.partition("isa")[0].splitlines()])
    assert "isa 4: 10 cases" in done.stdout
    generic, neon = torch.tensor(results)
    in_bfloat16, sizes, _ = generic.T
    assert len(generic) == 70 and torch.equal(in_bfloat16, neon[:, 0])
    tolerances = torch.where(in_bfloat16 == 1, 3e-2, 3e-4) * sizes + 1e-5
    assert ((generic - neon)[:, 1:].abs() <= tolerances[:, None]).all()


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [pytest.param(True, marks=needs_compiler, id="compiler"), False])
def test_a_wheel_is_built_with_and_without_a_compiler(compiler, tmp_path):
    """The wheel is for any Python 3 of the platform. Without a compiler, it has no library and reports the reason."""
    pytest.importorskip("setuptools", minversion="77")
    ignored = shutil.ignore_patterns(".*", "*.so", "build", "tests", "*.egg-info")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=ignored)
    environment = os.environ | dict(PYTHONPATH=str(tmp_path / "package"))
    if not compiler:
        environment |= dict(PATH=str(tmp_path), CC="none", CXX="none")
    build = [sys.executable, "setup.py", "-q", "bdist_wheel"]
    done = subprocess.run(build, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ("failed" in done.stdout + done.stderr) != compiler
    (wheel,) = (copy / "dist").iterdir()
    assert wheel.name.split("-")[2:4] == ["py3", "none"] and "any" not in wheel.name
    shutil.unpack_archive(wheel, tmp_path / "package", "zip")
    code = "import hf_deberta_ext.native as n; print(n.__file__, n.kernel_status(), sep='\\n')"
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    place, status = shown.stdout.splitlines()
    assert place.startswith(str(tmp_path / "package")), shown.stderr
    assert compiler or status.startswith("no native CPU kernel: the kernel's library was not built")
    assert not compiler or AUTO != "native" or status == native.kernel_status()
