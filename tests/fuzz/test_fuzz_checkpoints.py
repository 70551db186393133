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
)
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2

pytestmark = pytest.mark.fuzz

FIELDS = dict(
    vocab_size=24, hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=5, position_buckets=8,
    max_position_embeddings=16,
)  # fmt: skip
KINDS = ("ours", "ours .bin", "ours, shards", "v1", "v1 .bin", "v2", "v2 .bin", "v2, shards", "joint")
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
        torch.save(load_file(root / kind / SAFE), root / f"{kind} .bin" / "pytorch_model.bin")
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


def spoil(data, content: bytes) -> bytes:
    """Cut off, empty, or with bytes changed where that cannot stay unnoticed."""
    damage = data.draw(st.sampled_from(["cut", "empty", "text", "longer"]), "how")
    if damage == "cut":
        return content[: data.draw(st.integers(0, len(content) - 1), "length")]
    return {"empty": b"", "text": b"<html>404 not found</html>", "longer": content[:8] + content}[damage]


class Malicious:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@cases("damaged files")
def test_damaged_weights_are_refused_and_run_nothing(data, copy_of):
    kind = data.draw(st.sampled_from(KINDS), "kind")
    folder = copy_of(kind)
    file = data.draw(st.sampled_from(sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])), "file")
    marker = folder / "marker"
    damage = "spoiled"
    if file.suffix == ".bin":
        damage = data.draw(st.sampled_from(["spoiled", "code", "bare pickle", "old format", "code among tensors"]), "damage")
    if damage == "spoiled":
        file.write_bytes(spoil(data, file.read_bytes()))
    elif damage == "bare pickle":
        file.write_bytes(pickle.dumps(Malicious(str(marker)), protocol=data.draw(st.integers(0, 5), "protocol")))
    else:
        tensors = torch.load(file, weights_only=True) if damage == "code among tensors" else {}
        content = tensors | dict(last=Malicious(str(marker)))
        torch.save(content, file, _use_new_zipfile_serialization=damage != "old format")
    # A .bin file of ours that is cut off is a RuntimeError or OSError of torch.
    with pytest.raises((ValueError, RuntimeError, OSError) if damage == "spoiled" else ValueError):
        model_of(kind).from_pretrained(folder)
    assert not marker.exists()


def test_the_malicious_pickle_would_run_without_the_protection(tmp_path):
    """Otherwise its test would show nothing."""
    marker = tmp_path / "marker"
    pickle.load(io.BytesIO(pickle.dumps(Malicious(os.fspath(marker))))).close()
    assert marker.exists()


WRONG = {
    "hidden_size": ["8", None, 0, 2.5, [8], 7], "num_attention_heads": ["2", None, 0, -1, 3, {}],
    "num_hidden_layers": ["2", 0, None], "vocab_size": ["x", 0, -3], "pos_att_type": ["c2c"],
    "position_buckets": ["x", 2.5, [1]], "max_relative_positions": ["x", 2.5], "norm_rel_ebd": [5, ["a"]],
    "hidden_act": ["gleu", 3], "hidden_dropout_prob": ["x", 2, -1], "layer_norm_eps": ["x", -1.0, 0.0],
    "relative_attention": ["x", 3], "position_biased_input": ["x", 3], "pad_token_id": [-5, "x", 1000],
    "conv_kernel_size": [2, -1, "x"], "max_position_embeddings": [0, "x"], "type_vocab_size": [-1, "x"],
}  # fmt: skip


@cases("damaged config")
def test_a_damaged_configuration_is_named(data, copy_of):
    kind = data.draw(st.sampled_from(["ours", "v1", "v2", "joint", "ours .bin"]), "kind")
    folder = copy_of(kind)
    file = folder / "config.json"
    text = file.read_text().rstrip()
    damage = data.draw(st.sampled_from(["cut", "field", "field", "gone"]), "how")
    if damage == "field":
        name = data.draw(st.sampled_from(sorted(WRONG)), "name")
        value = data.draw(st.sampled_from(WRONG[name]), "value")
        file.write_text(json.dumps(json.loads(text) | {name: value}))
        with pytest.raises(ValueError, match=name) as error:
            model_of(kind).from_pretrained(folder)
        assert str(folder) in str(error.value)
        return
    if damage == "cut":
        file.write_text(text[: data.draw(st.integers(0, len(text) - 1), "length")])
    else:
        file.unlink()
    with pytest.raises(OSError, match=str(folder)):
        model_of(kind).from_pretrained(folder)


def edit(folder, change):
    """Applies `change` to the tensors of one weight file."""
    file = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])[0]
    pickled = file.suffix == ".bin"
    tensors = torch.load(file, weights_only=True) if pickled else load_file(file)
    change(tensors)
    torch.save(tensors, file) if pickled else save_file(tensors, file, metadata={"format": "pt"})


@cases("damaged keys")
def test_missing_tensors_are_reported_and_other_sizes_refused(data, copy_of, caplog):
    kind = data.draw(st.sampled_from(KINDS), "kind")
    folder = copy_of(kind)
    damage = data.draw(st.sampled_from(["missing", "extra", "shape", "nothing", "shard"]), "how")
    chooser = random.Random(data.draw(st.integers(0, 99), "seed"))
    touched = []
    if damage == "shard":
        folder = copy_of(data.draw(st.sampled_from(["ours, shards", "v2, shards"]), "shards"))
        removed = sorted(folder.glob("model-*"))[0]
        removed.unlink()
        with pytest.raises(OSError, match=removed.name):
            DebertaExtForMaskedLM.from_pretrained(folder)
        return

    def change(tensors):
        names = sorted(tensors)
        if damage == "missing":
            touched.extend(chooser.sample(names, min(len(names) - 1, chooser.randint(1, 4))))
            for name in touched:
                del tensors[name]
        elif damage == "extra":
            tensors["deberta.encoder.nonsense.weight"] = torch.ones(3)
        elif damage == "nothing":
            tensors.clear()
            tensors["nonsense.weight"] = torch.ones(3)
        else:
            tensors[names[-1]] = torch.cat([tensors[names[-1]]] * 2)

    edit(folder, change)
    if damage == "shape" or (damage == "nothing" and "shards" not in kind):
        with pytest.raises((ValueError, RuntimeError)):
            model_of(kind).from_pretrained(folder)
        return
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        model, drawn = load(model_of(kind), folder)
    names = {name for name, _ in model.named_parameters()}
    assert set(model.loading_report.initialised) >= drawn & names
    if damage == "missing" and touched:
        # v1's fused tensors become several; each name that stayed as it is must be told.
        assert {name for name in touched if name in names} <= drawn and drawn and "MISSING" in caplog.text
    if damage == "extra":
        assert "deberta.encoder.nonsense.weight" in model.loading_report.unused


def test_a_head_of_another_kind_loads_the_encoder_and_reports_the_rest(originals):
    model, drawn = load(DebertaExtForSequenceClassification, originals / "ours")
    assert {name for name, _ in model.named_parameters() if not name.startswith("deberta.")} == drawn
