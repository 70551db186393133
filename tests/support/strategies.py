# SPDX-License-Identifier: Apache-2.0
"""Strategies of the fuzzers: configurations, batches and models, as plain values that a falsifying example prints.

Environment variables set the number of cases and the seed. DEBERTA_EXT_FUZZ_CASES scales every test (default with
--run-slow: `TOTAL`, the sum of `CASES`; otherwise about 50). DEBERTA_EXT_FUZZ_SEED (default 0) is added to the tests' own
seeds. Equal values give equal cases. DEBERTA_EXT_FUZZ_SHRINK=0 prints the first failure without shrinking it, which saves
minutes.
"""

import os

import hypothesis
import torch
from every_head import CLASSES
from hypothesis import strategies as st
from tiny_constants import SHARING, random_weights

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.heads import HEADS as TABLE

# Number of examples of each test.
CASES = {
    "backends": 200, "joint": 60, "round trip": 100, "alone": 150, "streams": 150, "extreme": 150,
    "wrong field": 400, "wrong inputs": 100,
}  # fmt: skip
TOTAL = sum(CASES.values())
ASKED = int(os.environ.get("DEBERTA_EXT_FUZZ_CASES") or TOTAL)
SEED = int(os.environ.get("DEBERTA_EXT_FUZZ_SEED") or 0)
SHRINK = os.environ.get("DEBERTA_EXT_FUZZ_SHRINK") != "0"

# Without "pretraining", which has its own configurations.
HEADS = [head for head in CLASSES if head not in ("pretraining", "entity-scoring")]
# Smooth functions, whose gradient does not jump where a rounding error crosses a kink; and others. xielu is left out:
# transformers loads its parameters as bfloat16 for every model.
SMOOTH = ("gelu", "gelu_new", "silu", "tanh", "mish", "quick_gelu", "sigmoid", "linear", "gelu_pytorch_tanh")
CORNERED = ("relu", "relu6", "leaky_relu", "hardswish", "relu2", "prelu", "gelu_10", "laplace")
TERMS = ("c2p|p2c", ["c2p", "p2c"], "c2p", ["p2c"], "P2C | c2p", "p2p", "c2p|p2c|p2p", None, [])
MASKS = ("none", "right", "left", "holes", "empty rows", "square", "heads", "columns")
MASK_DTYPES = ("int64", "int32", "uint8", "bool", "float32", "float64", "bfloat16", "float16")


def cases(name: str):
    """Run a test that draws from `data` for as many cases as `CASES` says, scaled by DEBERTA_EXT_FUZZ_CASES."""
    settings = hypothesis.settings(
        max_examples=max(1, CASES[name] * ASKED // TOTAL),
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate] + [hypothesis.Phase.shrink] * SHRINK,
    )

    def decorate(test):
        return hypothesis.seed(SEED * 1000 + list(CASES).index(name))(settings(hypothesis.given(data=st.data())(test)))

    return decorate


@st.composite
def configurations(draw, smooth: bool = False, training: bool = False) -> dict:
    """Draw fields of a valid configuration of a tiny model, in every shape that the fields allow.

    Args:
        smooth: only use activations without kinks.
        training: also draw dropout.
    """
    heads = draw(st.sampled_from([1, 2, 3, 4]))
    hidden = heads * draw(st.sampled_from([2, 3, 4, 8] if heads < 3 else [2, 4]))
    layers = draw(st.integers(1, 3))
    rows = draw(st.sampled_from([80, 1, 2, 5, 16, 33, 128]))
    fields = dict(
        vocab_size=draw(st.sampled_from([24, 8, 31])),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=draw(st.sampled_from([12, 1, 5])),
        max_position_embeddings=rows,
        max_relative_positions=draw(st.sampled_from([-1, 2, 3, 7, 20, 100])),
        relative_attention=draw(st.sampled_from([True, True, True, False])),
        pos_att_type=draw(st.sampled_from(TERMS)),
        share_att_key=draw(st.booleans()),
        norm_rel_ebd=draw(st.sampled_from(["layer_norm", "none"])),
        share_layers=draw(st.sampled_from(["none", "none", "all", "ffn", "attention"])),
        embedding_size=draw(st.sampled_from([None, None, 1, 3, hidden])),
        type_vocab_size=draw(st.sampled_from([0, 0, 1, 2])),
        hidden_act=draw(st.sampled_from(SMOOTH if smooth else SMOOTH + CORNERED)),
        pooler_hidden_act=draw(st.sampled_from(SMOOTH if smooth else SMOOTH + CORNERED)),
        layer_norm_eps=draw(st.sampled_from([1e-7, 1e-5, 1e-12])),
        pad_token_id=draw(st.sampled_from([0, None, 7])),
        num_labels=draw(st.sampled_from([2, 1, 3])),
        position_biased_input=draw(st.sampled_from([False, False, True])),
        masked_only=draw(st.booleans()),
    )  # fmt: skip
    distance = fields["max_relative_positions"] if fields["max_relative_positions"] > 0 else rows
    fields["position_buckets"] = draw(st.sampled_from([-1] + [b for b in (2, 3, 4, 7, 8, 16, 32) if distance - 1 > b // 2]))
    if fields["max_relative_positions"] == -1 and rows == 1:
        fields["max_relative_positions"] = 2
        fields["position_buckets"] = -1
    if layers > 1:
        fields["conv_kernel_size"] = draw(st.sampled_from([0, 0, 1, 3, 5]))
        if fields["conv_kernel_size"]:
            fields["conv_act"] = draw(st.sampled_from(SMOOTH if smooth else SMOOTH + CORNERED))
            fields["conv_groups"] = draw(st.sampled_from([1, heads]))
    if not fields["position_biased_input"]:
        fields["emd_layers"] = draw(st.integers(1, 3))
        fields["emd_input"] = draw(st.sampled_from(["position+hidden", "position", "hidden"]))
    if training:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout"):
            fields[name] = draw(st.sampled_from([0.1, 0, 0.5, 0.9]))
    else:
        fields |= dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return fields


@st.composite
def joint_fields(draw, **options) -> dict:
    """Draw fields of a valid configuration of generator and discriminator."""
    fields = draw(configurations(**options))
    sharing = draw(st.sampled_from(SHARING))
    fields |= dict(
        embedding_sharing=sharing,
        rtd_lambda=draw(st.sampled_from([50, 1.0, 10])),
        rtd_temperature=draw(st.sampled_from([1.0, 0.5])),
        rtd_special_tokens=draw(st.booleans()),
        special_token_ids=draw(st.sampled_from([[0, 1, 2], []])),
    )
    generator = {}
    if sharing != "all":
        if fields.get("conv_kernel_size", 0) == 0:
            generator["num_hidden_layers"] = draw(st.integers(1, 2))
        if draw(st.booleans()) and fields.get("conv_groups", 1) == 1 and sharing == "nes":
            generator["hidden_size"] = fields["hidden_size"] // fields["num_attention_heads"]
    fields["generator"] = draw(st.sampled_from([generator, None]))
    return fields


def build(head: str, fields: dict, seed: int = 0, dtype: torch.dtype = torch.float64):
    """Return the model with random weights, in eval mode."""
    return random_weights(CLASSES[head](DebertaExtConfig(**fields)), seed, std=0.3).to(dtype)


@st.composite
def batches(draw, fields: dict, kinds: tuple[str, ...] = MASKS, longest: int = 80) -> dict:
    """Draw a batch described by plain values; `make_batch` makes its tensors."""
    rows = fields["max_position_embeddings"] if has_positions(fields) else longest
    given = draw(st.booleans()) and has_positions(fields)
    N = draw(st.integers(1, longest) if given else st.integers(1, min(longest, rows)))
    return dict(
        B=draw(st.integers(1, 4)),
        N=N,
        mask=draw(st.sampled_from(kinds)),
        mask_dtype=draw(st.sampled_from(MASK_DTYPES)),
        embeds=draw(st.sampled_from([False, False, True])),
        types=draw(st.booleans()),
        positions=draw(st.sampled_from([1, None])) if given else None,
        rows=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    ) | (dict(positions=True) if given else {})


def has_positions(fields: dict) -> bool:
    """Return True if any head of this configuration uses the absolute position table."""
    return fields["position_biased_input"] or fields["emd_input"] != "hidden"


def make_batch(fields: dict, batch: dict, dtype=torch.float64) -> tuple[dict, torch.Tensor]:
    """Return the arguments of a model's forward, and the mask [B, N] of real tokens."""
    B, N = batch["B"], batch["N"]
    generator = torch.Generator().manual_seed(batch["seed"])
    arguments = {}
    ids = torch.randint(1, fields["vocab_size"], (B, N), generator=generator)
    if batch["embeds"]:
        size = fields["embedding_size"] or fields["hidden_size"]
        arguments["inputs_embeds"] = torch.randn(B, N, size, generator=generator).to(dtype)
    else:
        arguments["input_ids"] = ids
    if batch["types"]:
        highest = max(1, fields["type_vocab_size"])
        arguments["token_type_ids"] = torch.randint(0, highest, (B, N), generator=generator)
    if batch["positions"]:
        rows = B if batch["rows"] else 1
        arguments["position_ids"] = torch.randint(0, fields["max_position_embeddings"], (rows, N), generator=generator)
    kind, H = batch["mask"], fields["num_attention_heads"]
    places, lengths = torch.arange(N), torch.randint(1, N + 1, (B, 1), generator=generator)
    real = torch.ones(B, N, dtype=torch.bool)
    mask = None
    if kind == "right":
        mask = real = places < lengths
    elif kind == "left":
        mask = real = places >= N - lengths
    elif kind == "holes":
        mask = real = (torch.rand(B, N, generator=generator) < 0.6) | (places == N // 2)
    elif kind == "empty rows":
        mask = real = (places < lengths) & (torch.arange(B) % 2 == 1)[:, None]
    elif kind == "square":
        mask = (torch.rand(B, N, N, generator=generator) < 0.5) | (places == N // 2)
        mask[:, 0] = False
    elif kind == "heads":
        mask = (torch.rand(B, H, N, N, generator=generator) < 0.5) | torch.eye(N, dtype=torch.bool)
    elif kind == "columns":
        real = places < lengths
        mask = real[:, None, None]
    elif kind == "documents":
        arguments["document_ids"] = documents(B, N, generator)
        real = arguments["document_ids"] != 0
    if mask is not None:
        arguments["attention_mask"] = mask.to(getattr(torch, batch["mask_dtype"]))
    return arguments, real


def documents(B: int, N: int, generator: torch.Generator) -> torch.Tensor:
    """Return ids [B, N] of one to four documents a row, with some padding between and after them."""
    ids = torch.zeros(B, N, dtype=torch.long)
    for row in range(B):
        cuts = torch.randint(0, N + 1, (3,), generator=generator).sort().values.tolist()
        for number, (first, end) in enumerate(zip([0, *cuts], [*cuts, N], strict=True)):
            ids[row, first : max(0, end - int(torch.randint(0, 2, (), generator=generator)))] = number + 1
    if ids[0, 0] == 0:
        ids[0, 0] = 9
    return ids


def labels_for(head: str, fields: dict, batch: dict, real: torch.Tensor) -> dict:
    """Return valid labels of a head for a batch; token labels only at real tokens."""
    B, N = real.shape
    generator = torch.Generator().manual_seed(batch["seed"] + 1)

    def draw(high, shape):
        return torch.randint(0, high, shape, generator=generator)

    classes = 2 if head == "replaced-token-detection" else fields["num_labels"]
    match TABLE[head].labels:
        case None:
            return {}
        case "span":
            return dict(start_positions=draw(N, (B,)), end_positions=draw(N, (B,)))
        case "row":
            return dict(labels=torch.rand(B, generator=generator) if classes == 1 else draw(classes, (B,)))
        case "choice":
            return dict(labels=draw(2, (B,)))
        case kind:
            counted = (torch.rand(B, N, generator=generator) < 0.5) & real
            labels = draw(fields["vocab_size"] if kind == "words" else classes, (B, N))
            return dict(labels=labels.masked_fill(~counted, -100))
