# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints, official ones and ours: an error, or a report of what is missing."""

import json
import logging
import random
import shutil

import pytest
import torch
from hypothesis import strategies as st
from microsoft_checkpoints import microsoft, write
from safetensors.torch import load_file, save_file
from strategies import build, cases

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining
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


@cases("damaged files")
def test_damaged_weights_are_refused(data, copy_of):
    kind = data.draw(st.sampled_from(KINDS), "kind")
    folder = copy_of(kind)
    file = data.draw(st.sampled_from(sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])), "file")
    file.write_bytes(spoil(data, file.read_bytes()))
    # A .bin file of ours that is cut off is a RuntimeError or OSError of torch.
    with pytest.raises((ValueError, RuntimeError, OSError)):
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
