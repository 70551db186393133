# SPDX-License-Identifier: Apache-2.0
"""Choice of a backend by name or automatically, refused names, and cached position projections at inference."""

import copy
import functools
import json
import pickle
import warnings

import pytest
import torch
from attention_inputs import saved_and_loaded
from backends import AUTO, NAMES, NATIVE
from transformers import AutoModel, AutoModelForMaskedLM, DebertaV2Model

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtModel
from hf_deberta_ext.kernels import attention_native
from hf_deberta_ext.model.attention_deberta_ext import BACKENDS, choose_backend

CALL = dict(device=torch.device("cpu"), dtype=torch.float32, head_size=64)


@pytest.fixture
def tiny_config(tiny_config):
    """Return a `tiny_config` with heads that are wide enough for every backend."""
    return functools.partial(tiny_config, num_attention_heads=2)


@pytest.fixture
def folder(tiny_config, shake, tmp_path):
    shake(DebertaExtModel(tiny_config("v3"))).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", [*NAMES, NATIVE, "auto", None])
def test_a_backend_is_named_in_every_way_serves_every_layer_and_is_not_saved(
    name, folder, tiny_config, stock_config, tmp_path, batch
):
    ids, mask = batch(2, 20, [20, 19])
    DebertaV2Model(stock_config("v3", num_attention_heads=2)).save_pretrained(tmp_path / "official")
    switched = DebertaExtModel(tiny_config("v3", attn_implementation="eager"))
    switched.set_attn_implementation(name)
    models = [
        DebertaExtModel.from_pretrained(folder, attn_implementation=name),
        DebertaExtModel.from_pretrained(tmp_path / "official", attn_implementation=name),
        AutoModel.from_pretrained(folder, attn_implementation=name),
        AutoModelForMaskedLM.from_config(tiny_config("v3"), attn_implementation=name),
        DebertaExtModel(tiny_config("v3", attn_implementation=name)),
        switched,
    ]
    requested = None if name == "auto" else name
    expected = (AUTO, "best on cpu") if requested is None else (name, "requested")
    for model in models:
        assert model.config._attn_implementation == model.base_model.config._attn_implementation == requested
        assert model.attention_backends() == {}
        with torch.no_grad():
            model.eval()(ids, attention_mask=mask)
        assert [*model.attention_backends().values()] == [expected] * 3
    models[0].save_pretrained(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert not [key for key in config if "attn" in key or "implementation" in key]


UNKNOWN = f"must be one of {', '.join(map(repr, BACKENDS))}, got"
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="triton serves CUDA")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, UNKNOWN) for name in ("fast", "flash_attention_2", "paged|eager", "kernels-community/x", "me/k:f", "")),
        pytest.param("triton", r"'triton' does not support this model .*; use 'eager', 'sdpa', 'blocked'", marks=NO_GPU),
    ],
)
def test_names_of_no_backend_here_are_refused_where_they_are_set(name, message, folder, tiny_config):
    """Check that names that transformers uses select neither its attention nor its loader of Hub kernels."""
    model = DebertaExtModel.from_pretrained(folder, attn_implementation="blocked")
    config = json.loads((folder / "config.json").read_text())
    for set_name in (
        lambda: DebertaExtModel.from_pretrained(folder, attn_implementation=name),
        lambda: AutoModel.from_config(tiny_config(), attn_implementation=name),
        lambda: model.set_attn_implementation(name),
    ):
        with pytest.raises(ValueError, match=message):
            set_name()
    assert model.config._attn_implementation == "blocked"
    (folder / "config.json").write_text(json.dumps(config | dict(attn_implementation=name)))
    with pytest.raises(ValueError, match=message):
        DebertaExtModel.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("native", dict(dtype=torch.float16), "supports float32 and bfloat16, not float16; use 'eager', 'sdpa', 'blocked'"),
        ("native", dict(head_size=8), "head sizes from 16 to 128, not 8; use 'eager', 'sdpa', 'blocked'"),
        ("native", dict(device=torch.device("meta")), "runs on cpu, not on meta; use 'eager'"),
        ("blocked", dict(needs_probs=True), "does not return attention probabilities; use 'eager'"),
        ("sdpa", dict(needs_probs=True), "does not return attention probabilities; use 'eager'"),
        ("fast", dict(), "must be one of .*, got 'fast'"),
    ],
)
def test_a_named_backend_never_falls_back(name, arguments, message, tiny_config, batch):
    with pytest.raises(ValueError, match=message):
        choose_backend(name, **(CALL | arguments))
    if name in NAMES:
        model = DebertaExtModel(tiny_config(attn_implementation=name))
        with pytest.raises(ValueError, match=f"'{name}' does not support this call: it {message}"):
            model(batch(1, 9)[0], output_attentions=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (dict(), AUTO),
        (dict(dtype=torch.bfloat16), AUTO),
        (dict(dtype=torch.float64, head_size=1), "blocked"),
        (dict(dtype=torch.float16), "blocked"),
        (dict(query_share=0.1), "native" if AUTO == "native" else "eager"),
        (dict(query_share=0.1, head_size=8), "eager"),
        (dict(query_share=0.5), AUTO),
        (dict(needs_probs=True), "eager"),
        (dict(device=torch.device("meta")), "eager"),
        (dict(device=torch.device("cuda")), "sdpa"),
        (dict(device=torch.device("mps")), "sdpa"),
        (dict(device=torch.device("xla")), "sdpa"),
    ],
    ids=str,
)
def test_automatic_choice(arguments, expected):
    for requested in (None, "auto"):
        name, why = choose_backend(requested, **(CALL | arguments))
        assert name == expected and why


def test_without_its_operator_native_is_refused_by_name_and_others_are_chosen(monkeypatch):
    monkeypatch.setattr(attention_native, "registered", lambda: False)
    for few, name in ((0.1, "eager"), (1.0, "blocked")):
        assert choose_backend("auto", **CALL, query_share=few)[0] == name
    with pytest.raises(ValueError, match=r"not registered: import hf_deberta_ext, .*; use 'eager', 'sdpa', 'blocked'"):
        choose_backend("native", **CALL)


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "after-a-call"])
def test_a_traced_model_is_eager_and_caches_no_projection(warm, tiny_config, shake, batch):
    """Check that torch.jit.trace does not turn cached tensors into constants, which weights could no longer change."""
    model = shake(DebertaExtModel(tiny_config("v3")))
    model.set_unpadding(False)
    model.config.return_dict = False
    ids, mask = batch(2, 20, [20, 11])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if warm:
            model(ids, mask)
        torch.jit.trace(model, (ids, mask), check_trace=False)
        assert {name for name, _ in model.attention_backends().values()} == {"eager"}
        traced = torch.jit.trace(model, (ids, mask))
        assert torch.allclose(traced(ids, mask)[0], model(ids, mask)[0], atol=1e-5)
        for parameter in model.parameters():
            parameter.mul_(1.1)
        assert torch.allclose(traced(ids, mask)[0], model(ids, mask)[0], atol=1e-5)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_compile_has_no_graph_break_with_the_default_choice(grad, tiny_config, shake, batch):
    model = shake(DebertaExtForMaskedLM(tiny_config("v3")))
    ids, mask = batch(2, 20, [20, 11])
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager" if grad else "eager")
    with torch.set_grad_enabled(grad):
        got, expected = compiled(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0]
    assert torch.allclose(got[mask.bool()], expected[mask.bool()], atol=1e-5)
    if grad:
        table = model.base_model.encoder.rel_embeddings.weight
        gradients = [torch.autograd.grad(x[mask.bool()].square().sum(), table)[0] for x in (got, expected)]
        assert gradients[1].any() and torch.allclose(*gradients, rtol=1e-3, atol=1e-3)


def test_dropout_that_is_switched_on_alone_drops(tiny_config, shake, batch):
    """Test Monte Carlo dropout: the model is in eval mode, its Dropout modules are in training mode."""
    ids, _ = batch(1, 20)
    for option in ("attention_probs_dropout_prob", "hidden_dropout_prob"):
        model = shake(DebertaExtModel(tiny_config("v3", **{option: 0.3})))
        attention = model.encoder.layer[0].attention.self
        with torch.no_grad():
            assert torch.equal(model(ids)[0], model(ids)[0])
            (attention.dropout if option.startswith("attention") else attention.pos_dropout).train()
            assert not torch.equal(model(ids)[0], model(ids)[0])


@pytest.fixture(params=["v1", "v2", "v3"])
def model(request, tiny_config, shake):
    return shake(DebertaExtModel(tiny_config(request.param)))


@torch.no_grad()
def states_of(model, ids, mask=None):
    return model(ids, attention_mask=mask).last_hidden_state


def clear_caches(model):
    for module in model.modules():
        if hasattr(module, "position_cache"):
            module.position_cache = None
    return model


@pytest.fixture
def table_projections(model, monkeypatch):
    """Count the projections of the whole relative table in a list that grows."""
    calls, linear = [], torch.nn.Linear.forward

    def forward(module, x):
        if x.dim() == 2 and len(x) == model.encoder.relative_table_size:
            calls.append(module)
        return linear(module, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", forward)
    return calls


@pytest.mark.parametrize("place", ["module", "inner module"])
def test_hooks_of_a_calibration_see_the_inputs_of_the_model_alone(model, batch, place):
    """Regression test: hooks received a probe row that did not come from a text."""
    seen, module, ids = [], projection(model), batch(2, 9)[0]
    if place == "inner module":
        setattr(model.encoder.layer[1].attention.self, projection_name(model), torch.nn.Sequential(module))
    handle = module.register_forward_pre_hook(lambda called, args: seen.append(args[0].shape[:-1]))
    with handle:
        expected = states_of(model, ids)
        assert torch.equal(states_of(model, ids), expected)
    rows = torch.Size([model.encoder.relative_table_size])
    assert len(seen) in (2, 4) and {*seen} <= {rows, ids.shape} and rows in seen
    assert torch.allclose(states_of(model, ids), expected, atol=1e-6)


def test_cached_projections_are_computed_once_change_no_bit_and_are_not_there_with_gradients(
    model, batch, table_projections
):
    calls = table_projections
    ids, mask = batch(2, 50, [50, 21])
    first = states_of(model, ids, mask)
    for N in (20, 33, 150 if not model.config.position_biased_input else 60, 1):
        states_of(model, batch(2, N)[0])
    assert torch.equal(states_of(model, ids, mask), first)
    assert len(calls) == 6
    assert torch.equal(states_of(clear_caches(copy.deepcopy(model)), ids, mask), first)
    with torch.inference_mode():
        assert torch.equal(model(ids, attention_mask=mask).last_hidden_state, first)
    assert torch.equal(states_of(model, ids, mask), first)
    ids, _ = batch(1, 9)
    states_of(model, ids)
    model(ids).last_hidden_state.square().sum().backward()
    for name in ("rel_embeddings.weight", "layer.0.attention.self.query_proj.weight"):
        assert model.encoder.get_parameter(name).grad.any()
    calls.clear()
    attention = model.encoder.layer[0].attention.self
    assert attention.position_cache is not None
    model.train()
    assert model.encoder.position_cache is attention.position_cache is None
    for _ in range(2):
        states_of(model, ids)
    assert len(calls) in (6, 12)


def projection(model, name="query"):
    attention = model.encoder.layer[1].attention.self
    return attention.position_projections()[name == "query"]


def projection_name(model):
    attention, module = model.encoder.layer[1].attention.self, projection(model)
    return next(name for name, child in attention.named_children() if child is module)


def step(model):
    model(torch.arange(5, 14)[None]).last_hidden_state.square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()


def replace_module(model):
    old = projection(model)
    new = torch.nn.Linear(old.in_features, old.out_features)
    new.load_state_dict({key: x * 1.5 for key, x in old.state_dict().items()})
    setattr(model.encoder.layer[1].attention.self, projection_name(model), new)


def flip_table(model):
    weight = model.encoder.rel_embeddings.weight.data
    weight.copy_(weight.flip(1))


def table_norm(model):
    if hasattr(model.encoder, "LayerNorm"):
        model.encoder.LayerNorm.weight.data[3] += 0.5
    else:
        flip_table(model)


def load(model, **options):
    model.load_state_dict({name: x * 1.2 for name, x in model.state_dict().items()}, **options)


CHANGES = {
    "one element": lambda model: projection(model).weight[3, 5].add_(0.5),
    "one column, through data": lambda model: projection(model).weight.data[:, 5].add_(0.5),
    "whole projection": lambda model: projection(model, "key").weight.data.mul_(1.5),
    "bias": lambda model: projection(model).bias.data.add_(0.5),
    "new tensor": lambda model: setattr(projection(model).weight, "data", projection(model).weight.data * 1.5),
    "through numpy": lambda model: projection(model).weight.data.numpy()[2].fill(0.3),
    "table": flip_table,
    "norm of the table": table_norm,
    "load": load,
    "load and assign": lambda model: load(model, assign=True),
    "to bfloat16": lambda model: model.to(torch.bfloat16),
    "optimizer step": step,
    "replaced module": replace_module,
    "hook": lambda model: projection(model).register_forward_hook(lambda module, args, output: output * 1.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_cached_projections_follow_every_change(change, model, batch):
    ids, mask = batch(2, 30, [30, 11])
    before = states_of(model, ids, mask)
    with torch.set_grad_enabled("step" in change):
        CHANGES[change](model)
    after = states_of(model, ids, mask)
    assert torch.equal(after, states_of(clear_caches(copy.deepcopy(model)), ids, mask))
    assert not torch.allclose(before.double(), after.double(), atol=1e-4)


def test_cached_projections_follow_autocast_and_functional_calls(model, batch):
    """Check torch.func calls, which replace parameters only for one call."""
    ids, mask = batch(2, 20, [20, 19])
    model.set_attn_implementation("eager")
    parameters = {name: x.detach() * 1.3 for name, x in model.named_parameters()}
    wide = states_of(model, ids, mask)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            narrow = states_of(model, ids, mask)
            assert torch.equal(narrow, states_of(clear_caches(copy.deepcopy(model)), ids, mask))
        assert torch.equal(states_of(model, ids, mask), wide)
    with torch.no_grad():
        other = torch.func.functional_call(model, parameters, (ids, mask))[0]
    assert torch.equal(states_of(model, ids, mask), wide)
    model.load_state_dict(parameters, strict=False)
    assert torch.equal(states_of(clear_caches(copy.deepcopy(model)), ids, mask), other)
    assert not torch.equal(narrow.float(), wide) and not torch.allclose(wide, other, atol=1e-3)


def test_cached_projections_are_in_no_copy_and_no_file(model, batch):
    names = set(model.state_dict())
    expected = states_of(model, batch(1, 20)[0])
    module = model.encoder.layer[0].attention.self
    assert set(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), saved_and_loaded(model)):
        assert other.encoder.position_cache is None
        assert other.encoder.layer[0].attention.self.position_cache is None
        assert torch.equal(states_of(other, batch(1, 20)[0]), expected)
    assert model.encoder.position_cache is not None and module.position_cache is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_stacked_models_and_tangents_of_torch_func(model, batch, mode):
    """Regression test: cached projections read addresses of weights, which do not exist in a torch.func transform."""
    ids, mask = batch(2, 9)
    models = [model, copy.deepcopy(model)]
    models[1].load_state_dict({name: x * 1.5 for name, x in model.state_dict().items()})
    stacked = torch.func.stack_module_state(models)

    def call(parameters, buffers):
        return torch.func.functional_call(model, (parameters, buffers), (ids, mask)).last_hidden_state

    weights = {name: x.detach() for name, x in model.named_parameters()}
    with mode():
        for ours, alone in zip(torch.func.vmap(call)(*stacked), models, strict=True):
            assert torch.allclose(ours, alone(ids, mask).last_hidden_state, atol=1e-5)
        if mode is not torch.inference_mode:
            tangents = {name: torch.full_like(x, 1e-3) for name, x in weights.items()}
            states, tangent = torch.func.jvp(lambda p: call(p, dict(model.named_buffers())), (weights,), (tangents,))
            moved = call({name: x + 1e-1 * tangents[name] for name, x in weights.items()}, dict(model.named_buffers()))
            assert torch.allclose(states + 1e-1 * tangent, moved, atol=1e-3) and tangent.abs().max() > 1e-2
