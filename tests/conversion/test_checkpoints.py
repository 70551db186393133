# SPDX-License-Identifier: Apache-2.0
"""Test models of this package saved as transformers' deberta-v2."""

import json

import pytest
import torch
import transformers
from every_head import CLASSES

from hf_deberta_ext.conversion.convert import convert
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2, to_deberta_v2_config

PLAIN_LM = dict(emd_layers=1, emd_input="hidden")
CASES = {
    "v1 shape": ("base", "v1", {}),
    "v1 c2p": ("base", "v1", dict(pos_att_type="c2p")),
    "v2": ("base", "v2", dict(type_vocab_size=2, embedding_size=16)),
    "without terms": ("base", "v3", dict(pos_att_type=[])),
    "biased input": ("base", "v3", dict(position_biased_input=True)),
    "all layers shared": ("base", "v3", dict(share_layers="all")),
    "ffn shared": ("sequence-classification", "v2", dict(share_layers="ffn", num_labels=3)),
    "attention shared": ("token-classification", "v1", dict(share_layers="attention", num_labels=3)),
    "masked LM without EMD": ("masked-lm", "v3", PLAIN_LM),
    "masked LM of v1 shape": ("masked-lm", "v1", PLAIN_LM),
    "sequence": ("sequence-classification", "v1", dict(num_labels=3)),
    "token": ("token-classification", "v3", dict(num_labels=3)),
    "question": ("question-answering", "v2", dict(num_labels=5)),
    "choice": ("multiple-choice", "v1", {}),
}


def stock_class_of(head):
    return getattr(transformers, CLASSES[head].__name__.replace("DebertaExt", "DebertaV2"))


@pytest.mark.parametrize("name", CASES)
def test_plain_transformers_loads_the_folder_with_the_same_outputs(
    name, tiny_config, shake, batch, tmp_path, relative_error
):
    head, kind, overrides = CASES[name]
    model = shake(CLASSES[head](tiny_config(kind, **overrides)))
    notes = save_as_deberta_v2(model, tmp_path)
    assert [note.partition(" = ")[0] for note in notes] == (["share_layers"] if "share_layers" in overrides else [])
    assert not list(tmp_path.glob("*.py"))
    try:
        stock, info = stock_class_of(head).from_pretrained(tmp_path, output_loading_info=True)
    except AttributeError as error:
        assert head == "masked-lm"
        pytest.skip(f"this transformers cannot load its own masked LM with legacy=False: {error}")
    assert not info["missing_keys"] and not info["mismatched_keys"]
    ids, mask = batch(2, 20, [20, 11])
    valid = mask.bool()
    if head == "multiple-choice":
        ids, mask = ids.view(1, 2, 20), mask.view(1, 2, 20)
    with torch.no_grad():
        ours, theirs = model(ids, attention_mask=mask), stock(ids, attention_mask=mask)
    for key in ours:
        a, b = ours[key], theirs[key]
        if a.shape[:2] == (2, 20):
            a, b = a[valid].view(-1, *a.shape[2:]), b[valid].view(-1, *b.shape[2:])
        a, b = (a[None], b[None]) if a.dim() == 1 else (a, b)
        assert relative_error("written as deberta-v2", a, b) < 1e-5


@pytest.mark.parametrize("num_labels", [1, 2, 3])
@pytest.mark.parametrize("head", ["sequence-classification", "token-classification"])
def test_every_folder_of_a_classifier_names_its_labels(head, num_labels, tiny_config, tmp_path):
    """transformers does not save two labels with default names, and text-embeddings-inference rejects such a classifier."""
    model = CLASSES[head](tiny_config(num_labels=num_labels))
    model.save_pretrained(tmp_path / "ours")
    save_as_deberta_v2(model, tmp_path / "stock")
    with pytest.raises(FileExistsError, match=r"already contains a checkpoint.*overwrite=True"):
        save_as_deberta_v2(model, tmp_path / "stock")
    save_as_deberta_v2(model, tmp_path / "stock", overwrite=True)
    convert(str(tmp_path / "ours"), str(tmp_path / "converted"), to="deberta-v2", tokenizer="none")
    stock = stock_class_of(head).from_pretrained(tmp_path / "stock")
    for folder in ("ours", "stock", "converted"):
        fields = json.loads((tmp_path / folder / "config.json").read_text(encoding="utf-8"))
        assert fields["id2label"] == {str(label): f"LABEL_{label}" for label in range(num_labels)}
        assert fields["label2id"] == {f"LABEL_{label}": label for label in range(num_labels)}
    for config in (stock.config, CLASSES[head].from_pretrained(tmp_path / "ours").config):
        assert config.num_labels == num_labels and config.id2label == model.config.id2label


@pytest.mark.parametrize(
    ("head", "overrides", "message"),
    [
        ("base", dict(pos_att_type="c2p|p2p"), "does not support p2p attention"),
        ("masked-lm", {}, r"does not support the Enhanced Mask Decoder .* pass lossy=True"),
        ("masked-lm", dict(embedding_size=16), "embedding_size = hidden_size, got 16 and 32"),
    ],
)
def test_features_without_a_place_are_named(head, overrides, message, tiny_config, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_as_deberta_v2(CLASSES[head](tiny_config(**overrides)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_rate_of_zero_is_written_as_a_float(tiny_config):
    """Write 0.0, because transformers 5.4 rejects `hidden_dropout_prob` = 0."""
    config = to_deberta_v2_config(tiny_config(hidden_dropout_prob=0, attention_probs_dropout_prob=0, cls_dropout=0))
    rates = (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.cls_dropout)
    assert rates == (0, 0, 0) and all(isinstance(rate, float) for rate in rates)
