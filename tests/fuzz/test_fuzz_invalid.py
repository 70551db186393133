# SPDX-License-Identifier: Apache-2.0
"""Random invalid configurations, masks and labels: each gives an error that names the cause, and changes nothing."""

import itertools

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import strategies as st
from strategies import HEADS, batches, build, cases, configurations, joint_fields, labels_for, make_batch

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.heads import HEADS as TABLE

pytestmark = pytest.mark.fuzz

NAN = float("nan")
SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
    "conv_groups", "emd_layers",
)  # fmt: skip
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout")
SWITCHES = ("position_biased_input", "relative_attention", "share_att_key", "masked_only", "rtd_special_tokens")
# Invalid for all values of the other fields.
WRONG = {
    **dict.fromkeys(SIZES, ("3", 2.5, None, [4], {}, 0, -1, -100)),
    "embedding_size": [0, -1, "8", 2.5, [8]],
    **dict.fromkeys(("type_vocab_size", "conv_kernel_size"), ("3", 2.5, None, -1, -100)),
    **dict.fromkeys(("position_buckets", "max_relative_positions"), ("3", 2.5, None, 0, 1, -2)),
    **dict.fromkeys(DROPOUT, ("0.1", 1, 1.0, -0.1, 7, NAN, [0.1])),
    **dict.fromkeys(("initializer_range", "rtd_lambda", "rtd_temperature"), ("x", 0, -1.0, NAN, None)),
    "layer_norm_eps": ["x", 0.0, -1e-7, NAN, None],
    **dict.fromkeys(("hidden_act", "pooler_hidden_act", "conv_act"), ("gleu", "", 3, None)),
    **dict.fromkeys(SWITCHES, ("yes", 1, 0, None, 2.5, [])),
    "pos_att_type": ["c2c", "c2p,p2c", ["c2p", "x"], 5, {"c2p": 1}, "c2p|p2c|q"],
    "norm_rel_ebd": ["rms", "", None, 1, "LayerNorm"],
    "share_layers": ["every", "", None, True],
    "emd_input": ["absolute", "", None, 2],
    "embedding_sharing": ["ges", "", None, 1],
    "generator": [5, "x", [1], {"layers": 2}, {"hidden_size": "a"}, {"hidden_size": 0}, {"generator": {}}],
    "special_token_ids": [[-1], [10**6], 3, "0", [None]],
    "pad_token_id": [-1, 10**6, "0", 2.5, [0]],
    "tie_word_embeddings": [False, None, "yes", 0],
}


@cases("wrong field")
def test_one_wrong_field_is_refused_by_its_name(data):
    fields = data.draw(st.one_of(configurations(), joint_fields()), "fields")
    name = data.draw(st.sampled_from(sorted(WRONG)), "name")
    value = data.draw(st.sampled_from(WRONG[name]), "value")
    if data.draw(st.booleans(), "later"):
        # An assignment raises at once, or when the configuration is checked.
        config = DebertaExtConfig(**fields)
        with pytest.raises((StrictDataclassError, ValueError), match=name):
            setattr(config, name, value)
            config.validate()
        return
    with pytest.raises(ValueError, match=name):
        DebertaExtConfig.from_dict(fields | {name: value})


def wrong_masks(B, N):
    """Return changed arguments of a head that takes [B, N]."""
    ones = torch.ones(B, N, dtype=torch.long)
    for shape in ((), (N,), (B, N + 1), (B + 1, N), (B, N, N + 1), (B, 1, N + 1, N), (B, 1, 1, N, N), (B + 1, N, N)):
        yield "attention_mask", dict(attention_mask=torch.ones(shape))
    for value in (2, -1, 0.5, NAN, -10000.0, 1e-9):
        mask = torch.ones(B, N, dtype=torch.float64 if isinstance(value, float) else torch.long)
        mask[-1, -1] = value
        yield "attention_mask", dict(attention_mask=mask)
        yield "attention_mask", dict(attention_mask=mask[:, None, None].expand(B, 1, N, N).clone())
    yield "input_ids or inputs_embeds", dict(input_ids=None)
    yield "input_ids or inputs_embeds", dict(input_ids=ones, inputs_embeds=torch.ones(B, N, 4))


def wrong_documents(B, N):
    one = torch.ones(B, N, dtype=torch.long)
    for ids in (-one, one * 0, one.float(), one[:, :-1], one[0], one[..., None]):
        yield "document_ids", dict(document_ids=ids)
    if N > 2:
        torn = one.clone()
        torn[:, 1] = 2
        yield "document_ids", dict(document_ids=torn)
    yield "attention_mask", dict(document_ids=one, attention_mask=torch.ones(B, N, N))
    yield "document_ids support neither", dict(document_ids=one, output_attentions=True)


def wrong_labels(head, fields, B, N):
    C = fields["num_labels"]
    if head == "question-answering":
        good = torch.zeros(B, dtype=torch.long)
        for name, other in (("start_positions", "end_positions"), ("end_positions", "start_positions")):
            yield name, {name: good}
            for wrong in (good.float(), *(torch.zeros(shape, dtype=torch.long) for shape in ((B + 1,), (B, 2), ()))):
                yield name, {other: good, name: wrong}
        return
    shapes = [(B + 1,), (B, 3), (), (B, 1, 1)]
    if TABLE[head].labels in ("words", "tokens"):
        shapes = [(B, N + 1), (B + 1, N), (N + 3, B + 1), (B, N, 2), (B * N + 1,), ()]
    for shape in shapes:
        if not (head == "sequence-classification" and shape == (B, C)):
            yield "labels", dict(labels=torch.zeros(shape, dtype=torch.long))
    if head == "replaced-token-detection":
        for value in (1.5, NAN, -0.25):
            yield "labels", dict(labels=torch.full((B, N), value))
    elif head != "sequence-classification":
        yield "labels", dict(labels=torch.zeros((B,) if head == "multiple-choice" else (B, N)))
    if head == "masked-lm":
        yield "masked_only", dict(masked_only=True)
    if head == "sequence-classification" and C > 1:
        single, several = "single_label_classification", "multi_label_classification"
        yield "labels", dict(problem=single, labels=torch.zeros(B))
        yield "labels", dict(problem=single, labels=torch.zeros(B, C).long())
        yield "labels", dict(problem=several, labels=torch.full((B, C), 5.0))
        for problem in (several, "regression"):
            yield "labels", dict(problem=problem, labels=torch.zeros(B, C + 1))


@cases("wrong inputs")
def test_wrong_masks_and_labels_are_refused_and_change_nothing(data):
    head = data.draw(st.sampled_from([*HEADS, "pretraining"]), "head")
    fields = data.draw(joint_fields() if head == "pretraining" else configurations(), "fields")
    batch = data.draw(batches(fields, ("none",)), "batch") | dict(embeds=False)
    model = build(head, fields, dtype=torch.float32)
    model.set_unpadding(data.draw(st.sampled_from([None, True, False]), "unpadding"))
    arguments, real = make_batch(fields, batch, torch.float32)
    B, N = real.shape
    calls = []
    if head != "base":
        calls += wrong_labels(head, fields, B, N)
    if head == "multiple-choice":
        arguments = {name: torch.stack([x.expand(B, *x.shape[1:])] * 2, 1) for name, x in arguments.items()}
    elif head != "pretraining":
        masks = wrong_masks(B, N)
        if head not in ("sequence-classification", "question-answering"):
            masks = itertools.chain(masks, wrong_documents(B, N))
        calls += masks
    for name, wrong in calls:
        model.config.problem_type = wrong.pop("problem", None)
        before = model.config.to_dict()
        with pytest.raises(ValueError, match=name):
            model(**(arguments | wrong))
        assert model.config.to_dict() == before
    # The correct labels still work.
    model.config.problem_type = None
    if head != "base":
        assert torch.isfinite(model(**arguments, **labels_for(head, fields, batch, real)).loss)
