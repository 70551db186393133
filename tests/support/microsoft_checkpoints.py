# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints with the key names and shapes that Microsoft published: v1, v2, v3, and a v3 pair with a generator."""

import json

import torch
from safetensors.torch import save_file

WORDS, POSITIONS = "deberta.embeddings.word_embeddings", "deberta.embeddings.position_embeddings"
SIZES = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=64,
)  # fmt: skip
CONFIGS = {
    "v1": dict(SIZES, model_type="deberta", relative_attention=True, position_biased_input=False, pos_att_type="c2p|p2c",
               max_relative_positions=-1, type_vocab_size=0),
    "v3": dict(SIZES, model_type="deberta-v2", relative_attention=True, position_biased_input=False, pos_att_type="p2c|c2p",
               position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True, max_relative_positions=-1),
}  # fmt: skip
CONFIGS["v2"] = CONFIGS["v3"] | dict(conv_kernel_size=3, conv_act="gelu")


def linear(name, out, size, bias=True):
    return {f"{name}.weight": (out, size)} | ({f"{name}.bias": (out,)} if bias else {})


def norm(name):
    return {f"{name}.weight": (32,), f"{name}.bias": (32,)}


def microsoft(kind, heads=("lm", "rtd"), seed=0):
    """Return a checkpoint with exactly the published key names and shapes, filled with noise."""
    shapes = {"deberta.embeddings.word_embeddings.weight": (64, 32)}
    shapes |= {"deberta.embeddings.position_embeddings.weight": (64, 32)}
    shapes |= norm("deberta.embeddings.LayerNorm")
    shapes |= {"deberta.encoder.rel_embeddings.weight": (128 if kind == "v1" else 32, 32)}
    if kind != "v1":
        shapes |= norm("deberta.encoder.LayerNorm")
    if kind == "v2":
        shapes |= {"deberta.encoder.conv.conv.weight": (32, 32, 3), "deberta.encoder.conv.conv.bias": (32,)}
        shapes |= norm("deberta.encoder.conv.LayerNorm")
    for i in range(2):
        layer = f"deberta.encoder.layer.{i}"
        attention = f"{layer}.attention.self"
        if kind == "v1":
            shapes |= linear(f"{attention}.in_proj", 96, 32, bias=False)
            shapes |= {f"{attention}.q_bias": (32,), f"{attention}.v_bias": (32,)}
            shapes |= linear(f"{attention}.pos_proj", 32, 32, bias=False) | linear(f"{attention}.pos_q_proj", 32, 32)
        else:
            for name in ("query_proj", "key_proj", "value_proj"):
                shapes |= linear(f"{attention}.{name}", 32, 32)
        shapes |= linear(f"{layer}.attention.output.dense", 32, 32) | norm(f"{layer}.attention.output.LayerNorm")
        shapes |= linear(f"{layer}.intermediate.dense", 48, 32) | linear(f"{layer}.output.dense", 32, 48)
        shapes |= norm(f"{layer}.output.LayerNorm")
    if "lm" in heads:
        shapes |= linear("lm_predictions.lm_head.dense", 32, 32) | norm("lm_predictions.lm_head.LayerNorm")
        shapes |= {"lm_predictions.lm_head.bias": (64,)}
    if "rtd" in heads:
        shapes |= linear("mask_predictions.dense", 32, 32) | norm("mask_predictions.LayerNorm")
        shapes |= linear("mask_predictions.classifier", 1, 32)
    if "classifier" in heads:
        shapes |= linear("pooler.dense", 32, 32) | linear("classifier", 3, 32)
    if "ner" in heads:
        shapes |= linear("proj", 32, 32) | linear("classifier", 5, 32)
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator) * 0.2 for key, shape in shapes.items()}


def write(folder, kind, state_dict, file="pytorch_model.bin", **config):
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | config))
    save_file(state_dict, folder / file) if file.endswith("safetensors") else torch.save(state_dict, folder / file)
    return folder


def truncate(folder):
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:3000])


def trainer_folder(folder, kind, state_dict, *, absent=(), **config):
    """Save a folder as Microsoft's trainer does: no model_type, and no fields in `absent`, which have defaults."""
    config = {name: value for name, value in (CONFIGS[kind] | config).items() if name not in ("model_type", *absent)}
    (folder / "model_config.json").write_text(json.dumps(config))
    torch.save(state_dict, folder / "pytorch.model-001000.bin")
    return folder


def official_pair(folder, deltas=True, whole_table=True, config=True):
    """Save a v3 repository: a discriminator of two layers and a generator of one, each with its published keys."""
    folder.mkdir(exist_ok=True)
    generator = {name: x for name, x in microsoft("v3", heads=("lm",), seed=1).items() if ".layer.1." not in name}
    discriminator = microsoft("v3", heads=("lm", "rtd"), seed=2)
    if deltas:
        for table in (WORDS, POSITIONS):
            discriminator[f"{table}._weight"] = discriminator[f"{table}.weight"] - generator[f"{table}.weight"]
    if not whole_table:
        for table in (WORDS, POSITIONS):
            del discriminator[f"{table}.weight"]
    write(folder, "v3", discriminator)
    torch.save(generator, folder / "pytorch_model.generator.bin")
    if config:
        text = json.dumps(CONFIGS["v3"] | dict(num_hidden_layers=1))
        (folder / "generator_config.json").write_text(text)
    return folder, generator, discriminator
