# SPDX-License-Identifier: Apache-2.0
"""Read configurations of Microsoft's code and of transformers' DeBERTa classes, and convert them to `DebertaExtConfig`."""

import os
from pathlib import Path
from typing import Any

import transformers

__all__ = ["MICROSOFT", "OFFICIAL_TYPES", "absent_fields", "configuration_file", "from_official", "stored_configuration"]

# model_type that this package assigns to configurations of Microsoft's code, which have no model_type.
MICROSOFT = "microsoft"
MICROSOFT_CONFIG = "model_config.json"

# Default values of fields that a config.json of transformers or Microsoft omits, if they differ from DebertaExtConfig's.
_COMMON = dict(
    relative_attention=False,
    position_biased_input=True,
    pos_att_type=[],
    position_buckets=-1,
    norm_rel_ebd="none",
    share_att_key=False,
    conv_act="tanh",
    hidden_size=768,
    num_attention_heads=12,
)
_V2_SIZES = dict(hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144)
STOCK_DEFAULTS: dict[str, dict[str, Any]] = {
    "deberta": _COMMON | dict(vocab_size=50265),
    "deberta-v2": _COMMON | _V2_SIZES,
    MICROSOFT: _COMMON | dict(pos_att_type="c2p", hidden_act="gelu"),
}
# Keys that do not apply to DebertaExt models: heads, code paths and tokenizers that do not exist here.
STOCK_IGNORED = {"legacy", "z_steps", "vocab_type", "do_lower_case", "use_cache", "is_decoder", "add_cross_attention"}
OFFICIAL_TYPES = tuple(STOCK_DEFAULTS)


def configuration_file(folder: str | os.PathLike | None, subfolder: str | None = None) -> str | None:
    """Return the path of the file model_config.json of Microsoft's trainer in `folder`; None if it does not exist."""
    if folder is None:
        return None
    file = Path(folder, subfolder or "", MICROSOFT_CONFIG)
    if not file.is_file():
        return None
    if file.with_name("config.json").is_file():
        raise ValueError(f"{folder} must not have both config.json and {MICROSOFT_CONFIG}; remove the wrong one")
    return str(file.absolute())


def absent_fields(stock: dict[str, Any]) -> dict[str, Any]:
    """Return {name: default value in Microsoft's code} for each field that the configuration `stock` omits."""
    absent = {name: value for name, value in STOCK_DEFAULTS[MICROSOFT].items() if name not in stock}
    return {name: value for name, value in absent.items() if name != "conv_act" or stock.get("conv_kernel_size")}


def from_official(stock: dict[str, Any]) -> dict[str, Any]:
    """Translate an official configuration to fields of `DebertaExtConfig`, without `model_type`."""
    is_microsoft = stock["model_type"] == MICROSOFT
    config = STOCK_DEFAULTS[stock["model_type"]] | stock
    # An auto_map refers to another class.
    for name in ("model_type", "auto_map", *STOCK_IGNORED):
        config.pop(name, None)
    for name in ("position_buckets", "max_relative_positions"):
        config.setdefault(name, -1)
    for name in ("hidden_size", "num_attention_heads", "position_buckets", "max_relative_positions"):
        # Needed for the arithmetic below; DebertaExtConfig checks the other fields.
        if not isinstance(config[name], int):
            raise ValueError(f"{name} must be an integer, got {config[name]!r}")
    hidden_size = config["hidden_size"]
    head_size = hidden_size // max(1, config["num_attention_heads"])
    pooling = config.pop("pooling", None) or {}
    if is_microsoft:
        if "vocab_size" not in stock:
            raise ValueError("vocab_size is missing; set it to the number of rows of the word embeddings")
        # Microsoft's pooler reads the fields of the model if `pooling` is missing.
        pooling = pooling or dict(hidden_act=config["hidden_act"], dropout=config.pop("dropout", 0))
    for name in ("dropout", "hidden_act"):
        if name in pooling:
            config[f"pooler_{name}"] = pooling[name]
    if "padding_idx" in config:
        config["pad_token_id"] = config.pop("padding_idx")
    supported = dict(
        pooler_hidden_size=(config.pop("pooler_hidden_size", pooling.get("hidden_size", hidden_size)), hidden_size),
        attention_head_size=(config.pop("attention_head_size", None) or head_size, head_size),
        talking_head=(config.pop("talking_head", False), False),
    )
    for name, (value, only) in supported.items():
        if value != only:
            raise ValueError(f"{name} must be {only!r}, as in all released checkpoints, got {value!r}")
    # The value may list several norms, such as "layer_norm|...".
    norm = config["norm_rel_ebd"] or "none"
    if isinstance(norm, str):
        config["norm_rel_ebd"] = "layer_norm" if "layer_norm" in norm.lower() else "none"
    for name in ("position_buckets", "max_relative_positions"):
        if config[name] < 1:
            config[name] = -1
    if not config.get("conv_kernel_size"):
        config.pop("conv_act")
    if config["position_biased_input"]:
        config["emd_layers"] = 1
        config["emd_input"] = "hidden"
    return config


def stored_configuration(source: str | os.PathLike | None, **download) -> dict[str, Any]:
    """Read config.json of a folder or repository, or model_config.json of Microsoft's trainer; {} if both are missing."""
    if source is None:
        return {}
    file = configuration_file(source, download.get("subfolder"))
    try:
        config, _ = transformers.PreTrainedConfig.get_config_dict(file or source, **download)
    except OSError:
        # Without the file, transformers uses the configuration that the user passes, or raises an error.
        return {}
    if set(config) - {"_commit_hash"}:
        config.setdefault("model_type", MICROSOFT)
    return config
