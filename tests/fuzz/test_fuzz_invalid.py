# SPDX-License-Identifier: Apache-2.0
"""Wrong configurations, inputs and labels at random: always a ValueError or TypeError that names what is wrong."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from strategies import HEADS, batches, build, cases, configurations, joint_fields, labels_for, make_batch

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.model.heads import HEADS as TABLE

pytestmark = pytest.mark.fuzz

NAN, INF = float("nan"), float("inf")
NO_INT = ["3", 2.5, None, [4], True, {}]
# Wrong whatever the other fields are.
WRONG = {
    **{
        name: [*NO_INT, 0, -1, -100]
        for name in (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings", "conv_groups", "emd_layers",
        )
    },
    "embedding_size": [0, -1, "8", 2.5, [8], True],
    **{name: ["3", 2.5, None, True, -1, -100] for name in ("type_vocab_size", "conv_kernel_size")},
    **{name: ["3", 2.5, None, True, 0, 1, -2] for name in ("position_buckets", "max_relative_positions")},
    **{
        name: ["0.1", 1, 1.0, -0.1, 7, NAN, INF, -INF, True, [0.1]]
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout")
    },
    **{name: ["x", 0, -1.0, NAN, INF, None, True] for name in ("initializer_range", "rtd_lambda", "rtd_temperature")},
    "layer_norm_eps": ["x", 0.0, -1e-7, NAN, INF, None, True, 1],
    **{name: ["gleu", "", "GELU", None, 3, ["gelu"]] for name in ("hidden_act", "pooler_hidden_act", "conv_act")},
    **{
        name: ["yes", 1, 0, None, 2.5, []]
        for name in ("position_biased_input", "relative_attention", "share_att_key", "masked_only", "rtd_special_tokens")
    },
    "pos_att_type": ["c2c", "c2p,p2c", ["c2p", "x"], [1], 5, True, {"c2p": 1}, ("c2p",), "c2p|p2c|q"],
    "norm_rel_ebd": ["rms", "", None, 1, "LayerNorm"],
    "share_layers": ["every", "", None, True],
    "emd_input": ["absolute", "", None, 2],
    "embedding_sharing": ["ges", "", None, 1],
    "generator": [5, "x", [1], {"layers": 2}, {"hidden_size": "a"}, {"hidden_size": 0}, {"num_hidden_layers": 2.5},
                  {"generator": {}}, {"vocab_size": 9}, {3: 4}, {"num_hidden_layers": None}],
    "special_token_ids": [[-1], [10**6], [True], [1.0], 3, "0", [None]],
    "pad_token_id": [-1, 10**6, "0", 2.5, True, [0]],
    "bos_token_id": ["x", 2.5, [0]],
    "eos_token_id": ["x", 2.5, [0.5]],
    "tie_word_embeddings": [False, None, "yes", 0],
    "num_labels": [0, -1, "3", 2.5, True],
    "id2label": [3, "x", [1], {"a": "b"}],
    "label2id": [3, "x", ["a"]],
    "problem_type": ["foo", 3, ""],
    "dtype": ["foo", 5, "int8", torch.int64],
    "output_hidden_states": ["yes", 3],
    "output_attentions": ["yes", 3],
    "hiden_size": [8],
    "top_k": [1],
    "n_heads": [2],
}  # fmt: skip
FIELDS = sorted(WRONG)
# Which torch stores but hardly computes with.
RARE = (torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn)
# Names of one thing in several spellings.
ALSO_NAMED = {"id2label": "num_labels", "num_labels": "id2label"}


def refused(call, *named):
    """The message of the error, which must be one that callers expect and name one of these."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert type(caught.value) in (ValueError, TypeError)
    message = str(caught.value)
    assert any(name in message for name in named), f"{message!r} names none of {named}"
    return message


@cases("wrong field")
def test_one_wrong_field_is_refused_by_its_name(data):
    fields = data.draw(st.one_of(configurations(), joint_fields()), "fields")
    name = data.draw(st.sampled_from(FIELDS), "name")
    value = data.draw(st.sampled_from(WRONG[name]), "value")
    assigned = {*DebertaExtConfig.__dataclass_fields__} - {"id2label", "dtype"}
    if data.draw(st.booleans(), "later") and name in assigned:
        # By assignment: at once, or when the configuration is checked.
        config = DebertaExtConfig(**fields)
        refused(lambda: (setattr(config, name, value), config.validate()), name, repr(value))
        return
    message = refused(lambda: DebertaExtConfig(**(fields | {name: value})), name, ALSO_NAMED.get(name, name))
    if isinstance(value, str | int | float) and value != "" and name not in ("hiden_size", "n_heads", "top_k"):
        assert str(value) in message or repr(value) in message


@cases("wrong fields")
def test_several_wrong_fields_name_one_of_them(data):
    fields = data.draw(configurations(), "fields")
    wrong = {}
    for name in data.draw(st.lists(st.sampled_from(FIELDS), min_size=2, max_size=5, unique=True), "names"):
        wrong[name] = data.draw(st.sampled_from(WRONG[name]), name)
    contradictions = [{}, dict(hidden_size=7, num_attention_heads=2), dict(conv_kernel_size=4), dict(position_buckets=10**6)]
    everything = wrong | data.draw(st.sampled_from(contradictions))
    refused(lambda: DebertaExtConfig(**(fields | everything)), *everything, *map(repr, everything.values()), "num_labels")


def wrong_inputs(head, fields, B, N):
    """(names in the message, changed arguments) of calls that must be refused; for a head that takes [B, N]."""
    ids = torch.ones(B, N, dtype=torch.long)
    V, P = fields["vocab_size"], fields["max_position_embeddings"]
    E, H = fields["embedding_size"] or fields["hidden_size"], fields["num_attention_heads"]
    bare = {}
    found = []

    def add(names, **changes):
        found.append(((names,) if isinstance(names, str) else names, {**bare, **changes}))

    for place in (0, -1):
        for value in (-1, V, V + 7, 10**9):
            changed = ids.clone()
            changed[place, place] = value
            add(("input_ids", str(value)), input_ids=changed)
            add(("input_ids", str(value)), input_ids=changed.int())
    for dtype in ("float32", "float64", "bool", "int8", "int16", "uint8", "complex64", "float16"):
        add(("input_ids", f"torch.{dtype}"), input_ids=ids.to(getattr(torch, dtype)))
    for shape in ((), (N,), (B, N, 1), (1, B, N), (0, N), (B, 0), (0,), (0, 0)):
        add("input_ids", input_ids=torch.zeros(shape, dtype=torch.long))
    for value in (ids.tolist(), ids.numpy(), "text", 3, {"input_ids": ids}, ids.to_sparse()):
        add("input_ids", input_ids=value)
    add("input_ids or inputs_embeds")
    add("input_ids or inputs_embeds", input_ids=ids, inputs_embeds=torch.zeros(B, N, E))
    for shape in ((B, N, E + 1), (B, N), (B, N, 1, E), (E,), (0, N, E), (B, 0, E), (B, N, 0)):
        add("inputs_embeds", inputs_embeds=torch.zeros(shape))
    for dtype in (torch.long, torch.bool, torch.complex64):
        add(("inputs_embeds", str(dtype)), inputs_embeds=torch.zeros(B, N, E, dtype=dtype))
    bare = dict(input_ids=ids)
    if fields["type_vocab_size"]:
        T = fields["type_vocab_size"]
        for value in (-1, T, 10**6):
            add(("token_type_ids", str(value)), token_type_ids=torch.full((B, N), value))
    decodes = fields["position_biased_input"] or (head == "masked-lm" and fields["emd_input"] != "hidden")
    for value in (-1, P, 10**9) if decodes else ():
        add(("position_ids", str(value)), position_ids=torch.full((B, N), value))
    other_shapes = [torch.zeros(shape, dtype=torch.long) for shape in ((B, N + 1), (N,), (B + 1, N), (B, N, 1))]
    for name, x in itertools.product(("token_type_ids", "position_ids"), (*other_shapes, torch.zeros(B, N), [[0] * N] * B)):
        add(name, **{name: x})
    if decodes and P < 80:
        add((str(P), "max_position_embeddings"), input_ids=torch.ones(B, P + 1, dtype=torch.long))
    masks = [(N,), (B, N + 1), (B + 1, N), (B, N, N + 1), (B, 1, N + 1, N), (B, H + 1, N, N), (B, 1, 1, N, N), (B + 1, N, N)]
    for shape in ((), *masks):
        add("attention_mask", attention_mask=torch.ones(shape))
    for value in (2, -1, 0.5, NAN, -10000.0, INF, -INF, 1e-9):
        mask = torch.ones(B, N, dtype=torch.float64 if isinstance(value, float) else torch.long)
        mask[-1, -1] = value
        add(("attention_mask", str(value)), attention_mask=mask)
        if mask.dtype == torch.float64:
            full = mask[:, None, None].expand(B, 1, N, N).clone()
            add(("attention_mask", str(value)), attention_mask=full)
    add("attention_mask", attention_mask=torch.ones(B, N, dtype=torch.complex64))
    for value in ([[1] * N] * B, ids.to_sparse(), 1, "text"):
        add("attention_mask", attention_mask=value)
    add("unexpected keyword argument 'foo'", foo=3)
    values = ("no", 2, [], torch.ones(2), torch.tensor(True))
    for name, value in itertools.product(("output_attentions", "output_hidden_states"), values):
        add(name, **{name: value})
    if head not in ("sequence-classification", "question-answering"):
        one = torch.ones(B, N, dtype=torch.long)
        for x in (-one, one * 0, one.float(), one[:, :-1], one[0], [[1] * N] * B, one[..., None], one.to_sparse()):
            add("document_ids", document_ids=x)
        for dtype in RARE:
            add(("document_ids", str(dtype)), document_ids=one.to(dtype))
        if N > 2:
            torn = one.clone()
            torn[:, 1] = 2
            add("document_ids", document_ids=torn)
        for value, *shape in ((1, B, N + 1), (1, B + 1, N), (3, B, N), (1, B, N, N), (-1, B, N)):
            add("attention_mask", document_ids=one, attention_mask=torch.full(shape, value))
        add(("document_ids", "packed documents"), document_ids=one, output_attentions=True)
    else:
        add("document_ids", document_ids=torch.ones(B, N, dtype=torch.long))
    return found


@cases("wrong input")
def test_wrong_input_is_refused_by_its_name(data):
    head = data.draw(st.sampled_from([head for head in HEADS if head != "multiple-choice"]), "head")
    fields = data.draw(configurations(), "fields")
    batch = data.draw(batches(fields, ("none",)), "batch") | dict(N=data.draw(st.integers(1, 6), "N"))
    model = build(head, fields, dtype=torch.float32)
    model.set_attn_implementation(data.draw(st.sampled_from(["eager", "blocked", None]), "backend"))
    model.set_unpadding(data.draw(st.sampled_from([None, True, False]), "unpadding"))
    calls = wrong_inputs(head, fields, batch["B"], batch["N"])
    for names, arguments in calls:
        refused(partial(model, **arguments), *names)
    return len(calls)


def wrong_labels(head, fields, B, N):
    """(names in the message, changed arguments) of calls that must be refused."""
    found = []

    def add(name, value, *names):
        found.append(((name, *names), {name: value}))

    if head == "question-answering":
        good = torch.zeros(B, dtype=torch.long)
        for name, other in (("start_positions", "end_positions"), ("end_positions", "start_positions")):
            found.append(((name,), {name: good}))
            shapes = [torch.zeros(shape, dtype=torch.long) for shape in ((B + 1,), (B, 2), ())]
            found += [((name,), {other: good, name: x}) for x in (good.float(), *shapes, [0] * B)]
        found.append((("labels",), dict(labels=good)))
        return found
    kind, V, C = TABLE[head].labels, fields["vocab_size"], fields["num_labels"]
    tokens = kind in ("words", "tokens")
    shape = (B, N) if tokens else (B,)
    C = {"words": V, "choice": 2}.get(kind, 2 if head == "replaced-token-detection" else C)
    good = torch.zeros(shape, dtype=torch.long)
    regression = head == "sequence-classification" and C == 1
    if not regression:
        for value in (-1, C, -99, 10**6):
            changed = good.clone()
            changed.view(-1)[-1] = value
            add("labels", changed, str(value))
            add("labels", changed.int(), str(value))
    else:
        add("labels", torch.full((B,), NAN))
        add("labels", torch.full((B, 1), INF))
    if head == "replaced-token-detection":
        for value in (0.5 + 1, NAN, -0.25, INF):
            add("labels", torch.full((B, N), value), str(value))
    elif not regression:
        add("labels", good.float())
        add("labels", good.double() + 0.5)
    for dtype in RARE:
        add("labels", good.to(dtype), *([] if dtype.is_floating_point else [str(dtype)]))
    add("labels", good.to_sparse())
    shapes = [(B + 1,), (B, C + 1), (), (B, 1, 1)]
    if tokens:
        shapes = [(B, N + 1), (B + 1, N), (N + 3, B + 1), (B, N, 2), (B * N + 1,), ()]
    if head == "pretraining":
        shapes.append((B * N,) if B * N > 0 else ())
    for wrong in shapes:
        add("labels", torch.zeros(wrong, dtype=torch.long))
    for value in (good.tolist(), good.numpy(), "x", 1.5):
        add("labels", value)
    if head != "pretraining":
        for count in (-2, NAN, torch.tensor(-1), torch.ones(2), torch.ones(0), [3], {}, "3", True):
            fine = dict(labels=good.float() if regression else good)
            found.append((("num_items_in_batch",), fine | dict(num_items_in_batch=count)))
    if head == "masked-lm":
        found.append((("masked_only",), dict(masked_only=True)))
        found.append((("masked_only",), dict(masked_only="no", labels=good)))
    if head == "sequence-classification" and C > 1:
        for problem in ("multi_label_classification", "regression"):
            rows = torch.zeros(B, C)
            rows[-1, -1] = NAN
            found.append((("labels",), dict(problem=problem, labels=rows)))
            found.append((("labels",), dict(problem=problem, labels=torch.zeros(B, C + 1))))
            if B != C:
                found.append((("labels",), dict(problem=problem, labels=torch.zeros(C, B))))
        found.append((("labels", "5.0"), dict(problem="multi_label_classification", labels=torch.full((B, C), 5.0))))
        found.append((("labels",), dict(problem="single_label_classification", labels=torch.zeros(B, C).long())))
    return found


@cases("wrong labels")
def test_wrong_labels_are_refused_and_change_nothing(data):
    head = data.draw(st.sampled_from([*(head for head in HEADS if head != "base"), "pretraining"]), "head")
    fields = data.draw(joint_fields() if head == "pretraining" else configurations(), "fields")
    batch = data.draw(batches(fields, ("none", "right", "left")), "batch") | dict(embeds=False)
    model = build(head, fields, dtype=torch.float32)
    arguments, real = make_batch(fields, batch, torch.float32)
    B, N = real.shape
    if head == "multiple-choice":
        arguments = {name: torch.stack([x.expand(B, *x.shape[1:])] * 2, 1) for name, x in arguments.items()}
    calls = wrong_labels(head, fields, B, N)
    for names, wrong in calls:
        model.config.problem_type = wrong.pop("problem", None)
        before = model.config.to_dict()
        refused(partial(model, **arguments, **wrong), *names)
        assert model.config.to_dict() == before
    # The right labels are taken as before.
    model.config.problem_type = None
    assert torch.isfinite(model(**arguments, **labels_for(head, fields, batch, real)).loss)
    return len(calls)


@cases("wrong choices")
def test_wrong_inputs_of_multiple_choice_are_refused_by_name(data):
    fields = data.draw(configurations(), "fields")
    model = build("multiple-choice", fields, dtype=torch.float32)
    B, N = data.draw(st.integers(1, 3), "B"), data.draw(st.integers(1, min(5, fields["max_position_embeddings"])), "N")
    ids = torch.ones(B, 2, N, dtype=torch.long)
    E = fields["embedding_size"] or fields["hidden_size"]
    calls = [
        ("input_ids", ids[:, 0]), ("input_ids", ids[None]), ("input_ids", ids[:, :0]), ("input_ids", ids[..., :0]),
        ("input_ids", ids.float()), ("input_ids", -ids), ("input_ids", ids * 10**6), ("input_ids", ids.tolist()),
        ("input_ids", None), ("inputs_embeds", torch.zeros(B, N, E)), ("inputs_embeds", torch.zeros(B, 2, N, E + 1)),
        ("inputs_embeds", torch.zeros(B, 2, 1, N, E)), ("attention_mask", ids[:, 0]), ("attention_mask", ids * 2),
        ("attention_mask", ids[0, 0]), ("attention_mask", ids.tolist()), ("attention_mask", -ids),
        ("attention_mask", torch.ones(B, 3, N)), ("position_ids", ids[0, :1]), ("position_ids", ids.float()),
        ("position_ids", ids.tolist()), ("labels", ids), ("foo", 3), ("output_attentions", "x"),
    ]  # fmt: skip
    for name, value in calls:
        arguments = {"input_ids": ids} | {name: value}
        if name == "inputs_embeds":
            del arguments["input_ids"]
        refused(partial(model, **arguments), name)
    return len(calls)
