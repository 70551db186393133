# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints, official ones and ours: an error that names the file, or a report of what is missing; never code."""

import io
import json
import logging
import os
import pickle
import random
import shutil

import pytest
import torch
from hypothesis import strategies as st
from microsoft_checkpoints import microsoft, write
from safetensors.torch import load_file, save_file
from strategies import build, cases

from hf_deberta_ext import (
    DebertaExtForMaskedLM,
    DebertaExtForPreTraining,
    DebertaExtForSequenceClassification,
    DebertaExtModel,
)
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2

pytestmark = pytest.mark.fuzz

FIELDS = dict(
    vocab_size=24, hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=5, position_buckets=8,
    max_position_embeddings=16,
)  # fmt: skip
KINDS = ("ours", "ours .bin", "ours, shards", "v1", "v1 .bin", "v2", "v2 .bin", "v2, shards", "joint")
BIN = "pytorch_model.bin"
SAFE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def model_of(kind):
    return DebertaExtForPreTraining if kind == "joint" else DebertaExtForMaskedLM


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A whole folder of every kind."""
    root = tmp_path_factory.mktemp("originals")
    model = build("masked-lm", FIELDS, dtype=torch.float32)
    model.save_pretrained(root / "ours")
    model.save_pretrained(root / "ours, shards", max_shard_size=2000)
    build("pretraining", FIELDS | dict(generator={}), dtype=torch.float32).save_pretrained(root / "joint")
    save_as_deberta_v2(model, root / "v2", lossy=True)
    (root / "v1").mkdir()
    write(root / "v1", "v1", microsoft("v1", heads=("lm",)), SAFE)
    shutil.copytree(root / "v2", root / "v2, shards")
    tensors = load_file(root / "v2, shards" / SAFE)
    (root / "v2, shards" / SAFE).unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, root / "v2, shards" / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (root / "v2, shards" / INDEX).write_text(json.dumps(dict(metadata={"total_size": 1}, weight_map=weight_map)))
    for kind in ("ours", "v1", "v2"):
        shutil.copytree(root / kind, root / f"{kind} .bin")
        torch.save(load_file(root / kind / SAFE), root / f"{kind} .bin" / BIN)
        (root / f"{kind} .bin" / SAFE).unlink()
    for kind in KINDS:
        assert load(model_of(kind), root / kind)[1] == set()
        # Copies of the code would only cost time.
        for file in (root / kind).glob("*.py"):
            file.unlink()
    return root


def load(model_class, folder):
    """The model, and the names of its parameters that did not come from the file."""
    model, info = model_class.from_pretrained(folder, output_loading_info=True)
    return model, {*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])}


@pytest.fixture
def copy_of(originals, tmp_path):
    def copy(kind):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(originals / kind, tmp_path / "copy")
        return tmp_path / "copy"

    return copy


def refused(model_class, folder, *named):
    """Loading raises an error that callers expect, and it names the folder."""
    with pytest.raises((OSError, ValueError)) as caught:
        model_class.from_pretrained(folder)
    message = str(caught.value)
    assert str(folder) in message, message
    assert not named or any(name in message for name in named), f"{message!r} names none of {named}"
    return message


def spoil(data, content: bytes) -> bytes:
    """Cut off, empty, or with bytes changed where that cannot stay unnoticed."""
    damage = data.draw(st.sampled_from(["cut", "empty", "head", "text", "longer"]), "how")
    if damage == "cut":
        return content[: data.draw(st.integers(0, len(content) - 1), "length")]
    if damage == "head":
        garbage = data.draw(st.binary(min_size=16, max_size=16), "garbage")
        return garbage + content[16:] if garbage != content[:16] else b""
    return {"empty": b"", "text": b"<html>404 not found</html>", "longer": content[:8] + content}[damage]


@cases("damaged safetensors")
def test_a_damaged_safetensors_file_is_named(data, copy_of):
    kind = data.draw(st.sampled_from(["ours", "ours, shards", "v1", "v2", "v2, shards", "joint"]), "kind")
    folder = copy_of(kind)
    file = data.draw(st.sampled_from(sorted(folder.glob("*.safetensors"))), "file")
    file.write_bytes(spoil(data, file.read_bytes()))
    refused(model_of(kind), folder, file.name)


class Malicious:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@cases("damaged bin")
def test_a_damaged_bin_file_is_named_and_runs_nothing(data, copy_of):
    kind = data.draw(st.sampled_from(["ours .bin", "v1 .bin", "v2 .bin"]), "kind")
    folder = copy_of(kind)
    file, marker = folder / BIN, folder / "marker"
    tensors = torch.load(file, weights_only=True)
    kinds = ["spoiled", "code", "bare pickle", "old format", "other object", "code among tensors"]
    damage = data.draw(st.sampled_from(kinds), "how")
    if damage == "spoiled":
        file.write_bytes(spoil(data, file.read_bytes()))
    elif damage in ("code", "code among tensors", "old format"):
        content = (tensors if damage == "code among tensors" else {}) | dict(last=Malicious(str(marker)))
        torch.save(content, file, _use_new_zipfile_serialization=damage != "old format")
    elif damage == "bare pickle":
        file.write_bytes(pickle.dumps(Malicious(str(marker)), protocol=data.draw(st.integers(0, 5), "protocol")))
    else:
        torch.save(data.draw(st.sampled_from([[1], None, "x", 3, {1: 2}, {}, {"a": "b"}, [torch.ones(2)]]), "object"), file)
    refused(model_of(kind), folder)
    assert not marker.exists()


CONFIGS = ["", "{", "[]", "[1]", "3", "null", '"x"', "{}", "\x00", "{'a': 1}", '{"hidden_size": 8', "NaN", "true"]
FOREIGN = ["bert", "deberta-v3", 5, ["a"], None, "", {"a": 1}, "llama"]
WRONG = {
    "hidden_size": ["8", None, 0, 2.5, [8], 7],
    "num_attention_heads": ["2", None, 0, -1, 3, {}],
    "num_hidden_layers": ["2", 0, None],
    "vocab_size": ["x", 0, -3],
    "pos_att_type": ["c2c", 5, [1]],
    "position_buckets": ["x", 2.5, [1]],
    "max_relative_positions": ["x", 2.5],
    "norm_rel_ebd": [5, ["a"]],
    "hidden_act": ["gleu", 3],
    "hidden_dropout_prob": ["x", 2, -1],
    "layer_norm_eps": ["x", -1.0, 0.0],
    "relative_attention": ["x", 3],
    "position_biased_input": ["x", 3],
    "num_labels": [0, "x"],
    "id2label": [[1], 3],
    "dtype": ["foo", 5],
    "architectures": ["x", 5, [1]],
    "problem_type": ["foo"],
    "pad_token_id": [-5, "x", 1000],
    "conv_kernel_size": [2, -1, "x"],
    "max_position_embeddings": [0, "x"],
    "type_vocab_size": [-1, "x"],
}


@cases("damaged config")
def test_a_damaged_configuration_is_named(data, copy_of):
    kind = data.draw(st.sampled_from(["ours", "v1", "v2", "joint", "ours .bin"]), "kind")
    folder = copy_of(kind)
    file = folder / "config.json"
    kinds = ["text", "cut", "foreign", "field", "field", "field", "sizes", "bytes", "gone"]
    damage = data.draw(st.sampled_from(kinds), "how")
    config = json.loads(file.read_text())
    named = ()
    if damage == "text":
        file.write_text(data.draw(st.sampled_from(CONFIGS), "text"))
    elif damage == "cut":
        text = file.read_text().rstrip()
        file.write_text(text[: data.draw(st.integers(0, len(text) - 1), "length")])
    elif damage == "foreign":
        file.write_text(json.dumps(config | dict(model_type=data.draw(st.sampled_from(FOREIGN), "type"))))
        named = ("model_type",)
    elif damage == "field":
        name = data.draw(st.sampled_from(sorted(WRONG)), "name")
        value = data.draw(st.sampled_from(WRONG[name]), "value")
        file.write_text(json.dumps(config | {name: value}))
        named = (name,)
    elif damage == "sizes":
        name, value = data.draw(st.sampled_from([("hidden_size", 16), ("intermediate_size", 6), ("vocab_size", 30)]), "size")
        file.write_text(json.dumps(config | {name: value}))
    elif damage == "bytes":
        file.write_bytes(b'{"a": "\xff\xfe"}')
    else:
        file.unlink()
    refused(model_of(kind), folder, *named)


INDEXES = ["", "{", "[]", "{}", "3", *(f'{{"weight_map": {text}}}' for text in ("5", "{}", '{"a": 5}', "null"))]


def edit(folder, change):
    """Applies `change` to the tensors of one weight file."""
    file = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])[0]
    pickled = file.suffix == ".bin"
    tensors = torch.load(file, weights_only=True) if pickled else load_file(file)
    change(tensors)
    torch.save(tensors, file) if pickled else save_file(tensors, file, metadata={"format": "pt"})


@cases("damaged keys")
def test_missing_tensors_are_reported_and_other_sizes_and_indexes_refused(data, copy_of, caplog):
    kind = data.draw(st.sampled_from(KINDS), "kind")
    folder = copy_of(kind)
    damage = data.draw(st.sampled_from(["missing", "extra", "shape", "nothing", "index", "shard"]), "how")
    chooser = random.Random(data.draw(st.integers(0, 99), "seed"))
    touched = []
    if damage in ("index", "shard"):
        folder = copy_of(data.draw(st.sampled_from(["ours, shards", "v2, shards"]), "shards"))
        index = folder / INDEX
        if damage == "index":
            place = data.draw(st.sampled_from(["../copy/x", "x/y"]), "outside")
            outside = json.dumps(dict(metadata={}, weight_map={"a": place}))
            index.write_text(data.draw(st.sampled_from([*INDEXES, outside]), "text"))
            refused(DebertaExtForMaskedLM, folder, INDEX)
        else:
            removed = sorted(folder.glob("model-*"))[0]
            removed.unlink()
            refused(DebertaExtForMaskedLM, folder, removed.name)
        return

    def change(tensors):
        names = sorted(tensors)
        chosen = chooser.sample(names, min(len(names), chooser.randint(1, 4)))
        if damage == "missing":
            for name in chosen if len(chosen) < len(names) else chosen[1:]:
                del tensors[name]
                touched.append(name)
        elif damage == "extra":
            tensors["deberta.encoder.nonsense.weight"] = torch.ones(3)
        elif damage == "nothing":
            tensors.clear()
            tensors["nonsense.weight"] = torch.ones(3)
        else:
            name = names[-1]
            tensors[name] = torch.cat([tensors[name]] * 2)
            touched.append(name)

    edit(folder, change)
    if damage == "shape" or (damage == "nothing" and "shards" not in kind):
        refused(model_of(kind), folder, *touched)
        return
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        model, drawn = load(model_of(kind), folder)
    names = {name for name, _ in model.named_parameters()}
    if damage == "missing":
        # v1's fused tensors become several; each name that stayed as it is must be told.
        assert {name for name in touched if name in names} <= drawn and drawn
        if kind.startswith("v"):
            assert set(model.loading_report.initialised) >= drawn & names and "newly initialised" in caplog.text
    if damage == "extra" and kind.startswith("v"):
        assert "deberta.encoder.nonsense.weight" in model.loading_report.unused


@cases("not numbers")
def test_weights_that_are_no_numbers_are_warned_about_by_name(data, copy_of, caplog):
    kind = data.draw(st.sampled_from(KINDS), "kind")
    folder = copy_of(kind)
    value = data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]), "value")
    place = data.draw(st.integers(0, 10**6), "place")
    touched = []

    def change(tensors):
        encoder = sorted(name for name in tensors if "deberta.encoder" in name)
        name = encoder[place % len(encoder)]
        tensors[name].view(-1)[place % tensors[name].numel()] = value
        touched.append(name)

    edit(folder, change)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        load(model_of(kind), folder)
    assert "NaN or infinity" in caplog.text and str(folder) in caplog.text
    # v1's projections have other names here.
    assert touched[0] in caplog.text or "attention.self" in touched[0]


def test_large_finite_weights_are_no_reason_for_a_warning(tmp_path, caplog):
    """Their sum passes what float32 holds."""
    model = build("base", FIELDS, dtype=torch.float32)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.fill_(3e38)
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        DebertaExtModel.from_pretrained(tmp_path)
    assert "NaN" not in caplog.text


def test_a_head_of_another_kind_loads_the_encoder_and_reports_the_rest(originals):
    model, drawn = load(DebertaExtForSequenceClassification, originals / "ours")
    assert {name for name, _ in model.named_parameters() if not name.startswith("deberta.")} == drawn


def test_the_malicious_pickle_would_run_without_the_protection(tmp_path):
    """Otherwise its test would show nothing."""
    marker = tmp_path / "marker"
    pickle.load(io.BytesIO(pickle.dumps(Malicious(os.fspath(marker))))).close()
    assert marker.exists()
