# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: an offline environment, tiny configurations, stock models to compare with, and the worst error seen."""

import gc
import os
import socket
import sys
from collections import defaultdict

# Before transformers is imported: no test may reach for the network or for a cache outside of the test run.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# The models are tiny: threads would only wait for each other, in the processes that tests start too. Two show that no test
# depends on the order of sums.
os.environ["OMP_NUM_THREADS"] = os.environ.get("DEBERTA_EXT_TEST_THREADS") or "1"

import pytest
import torch
from scripts import EXAMPLES, module_of
from shares import share
from tiny_constants import SPECIAL, TINY, random_weights
from transformers import DebertaConfig, DebertaV2Config

from hf_deberta_ext import DebertaExtConfig, DebertaExtForPreTraining

THREADS = int(os.environ["OMP_NUM_THREADS"])
torch.set_num_threads(THREADS)

# How many they draw without --run-slow, which draws thousands.
FEW_CASES = "50"
# Name of a comparison: [number of comparisons, worst relative error]; printed at the end of a run.
WORST = defaultdict(lambda: [0, 0.0])


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption("--share", help="run a share of the selected tests, such as 2/4; four such runs have all of them")


def pytest_configure(config):
    if not config.getoption("--run-slow"):
        os.environ.setdefault("DEBERTA_EXT_FUZZ_CASES", FEW_CASES)
    if getattr(config.option, "dist", "no") == "load":
        # With pytest-xdist a file is run by one worker: what several of its tests need is made once.
        config.option.dist = "loadfile"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """After -m and -k."""
    if config.getoption("--share"):
        kept = share(items, *map(int, config.getoption("--share").split("/")))
        config.hook.pytest_deselected(items=list({*items} - {*kept}))
        items[:] = kept
    reasons = {}
    if not config.getoption("--run-slow"):
        reasons["slow"] = "slow: give --run-slow"
    if not torch.cuda.is_available():
        reasons["gpu"] = "no CUDA device"
    reasons["network"] = "the tests run without the Hub"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["worst"] = dict(WORST)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """With pytest-xdist, what a worker measured."""
    output = getattr(node, "workeroutput", {})
    for name, (count, error) in output.get("worst", {}).items():
        WORST[name] = [WORST[name][0] + count, max(WORST[name][1], error)]


def pytest_terminal_summary(terminalreporter):
    for name, (count, error) in sorted(WORST.items()):
        terminalreporter.write_line(f"{name}: {count} comparisons, worst relative error {error:.1e}")


@pytest.fixture(scope="module", autouse=True)
def modules_are_not_searched_for_garbage():
    """accelerate collects garbage in every run of a Trainer, which took longer than the training itself: half a second to go
    through torch and transformers each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def relative_error():
    """relative_error(name, ours, reference, mask=None): |difference| / |reference|, worst row; for the summary."""

    def measure(name, ours, reference, mask=None):
        ours, reference = ours.detach().double(), reference.detach().double()
        if mask is not None:
            ours, reference = ours[mask], reference[mask]
        assert torch.isfinite(ours).all() and torch.isfinite(reference).all()
        rows = (ours - reference).flatten(0, -2).norm(dim=-1) / reference.flatten(0, -2).norm(dim=-1).clamp(min=1e-12)
        error = rows.max().item()
        WORST[name][0] += 1
        WORST[name][1] = max(WORST[name][1], error)
        return error

    return measure


@pytest.fixture
def tiny_config():
    """tiny_config(kind, **overrides): our configuration of a family, small. kind is "v1", "v2" or "v3"."""

    def build(kind="v3", **overrides):
        family = {
            "v1": dict(position_buckets=-1, norm_rel_ebd="none", share_att_key=False),
            "v2": dict(position_buckets=16, conv_kernel_size=3),
            "v3": dict(position_buckets=16),
        }[kind]
        return DebertaExtConfig(**(TINY | family | overrides))

    return build


@pytest.fixture
def stock_config():
    """stock_config(kind, **overrides): the same families as transformers knows them."""

    def build(kind="v3", **overrides):
        common = TINY | dict(relative_attention=True, position_biased_input=False, pos_att_type="p2c|c2p")
        if kind == "v1":
            return DebertaConfig(**(common | overrides))
        family = dict(position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True)
        if kind == "v2":
            family |= dict(conv_kernel_size=3, conv_act="gelu")
        return DebertaV2Config(**(common | family | overrides))

    return build


@pytest.fixture
def shake():
    """shake(model, seed=0): every parameter random and large enough that each one matters; eval mode."""
    return random_weights


@pytest.fixture
def joint(tiny_config, shake):
    """joint(sharing, std, **fields): a joint model with noise in every parameter; eval mode."""

    def build(sharing="gdes", std=0.15, **fields):
        fields = dict(special_token_ids=SPECIAL, num_hidden_layers=4) | fields
        model = shake(DebertaExtForPreTraining(tiny_config(embedding_sharing=sharing, **fields)), std=std)
        model.tie_weights()
        return model

    return build


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """folder_of(family): the folder of a tiny model of a family, for the made task of fine-tuning."""
    from toy_task import model_folders

    return model_folders(tmp_path_factory.mktemp)


@pytest.fixture
def masked():
    """A batch of three rows, the last padded, [CLS] and [SEP] around; positions 3 to 6 and 9 are masked."""
    ids = torch.randint(5, 63, (3, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[2, 12:] = 0
    ids[:, 0], ids[:2, -1], ids[2, 11] = 1, 2, 2
    labels = torch.full_like(ids, -100)
    for place in (3, 4, 5, 6, 9):
        labels[:, place] = ids[:, place]
    inputs = torch.where(labels != -100, 63, ids) * mask
    return dict(input_ids=inputs, attention_mask=mask, labels=labels), ids * mask


@pytest.fixture
def no_network(monkeypatch):
    """Refuse the network and the packages that download metrics; a test fails if it asked for the network."""
    for package in ("evaluate", "seqeval"):
        monkeypatch.setitem(sys.modules, package, None)
    asked = []

    def refuse(*args, **kwargs):
        # Recorded, because callers may catch the error.
        asked.append(args)
        raise OSError(f"the network was asked for: {args}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert asked == []


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub of the tests' own, to which huggingface_hub and transformers talk."""
    from local_hub import LocalHub

    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home")
        yield hub


def _module_fixture(name):
    return pytest.fixture(scope="session", name=name)(lambda: module_of(name))


# run_glue, run_mlm, ...: the module of each example script.
for name in EXAMPLES:
    globals()[f"module_of_{name}"] = _module_fixture(name)


@pytest.fixture
def batch():
    """batch(B, N, lengths, vocab=64, side="right", seed=0): input_ids and a 2-D attention mask, padded with 0."""

    def build(B, N, lengths=None, vocab=64, side="right", seed=0):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(5, vocab, (B, N), generator=generator)
        lengths = torch.tensor(lengths if lengths is not None else [N] * B)
        mask = torch.arange(N) < lengths[:, None]
        if side == "left":
            mask = mask.flip(1)
        return ids * mask, mask.long()

    return build
