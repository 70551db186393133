# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Reading the configurations of Microsoft's code and of transformers' own DeBERTa classes."""

import os
from typing import Any

__all__ = ["MICROSOFT", "OFFICIAL_TYPES", "absent_fields", "configuration_file", "from_official", "json_object"]

# Of files without a model_type: Microsoft's code, which knows none.
MICROSOFT = "microsoft"
MICROSOFT_CONFIG = "model_config.json"

# Values of fields that a stock config.json leaves out, where they differ from ours (FACTS of the official code).
STOCK_DEFAULTS: dict[str, dict[str, Any]] = {
    model_type: dict(
        relative_attention=False,
        position_biased_input=True,
        pos_att_type=[],
        position_buckets=-1,
        norm_rel_ebd="none",
        share_att_key=False,
        conv_act="tanh",
    )
    | others
    for model_type, others in {
        "deberta": dict(vocab_size=50265, hidden_size=768, num_attention_heads=12),
        "deberta-v2": dict(hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144),
        MICROSOFT: dict(hidden_size=768, num_attention_heads=12, pos_att_type="c2p", hidden_act="gelu"),
    }.items()
}
# Stock keys that say nothing about our model: heads, code paths and tokenizers that do not exist here.
STOCK_IGNORED = {"legacy", "z_steps", "vocab_type", "do_lower_case", "use_cache", "is_decoder", "add_cross_attention"}
OFFICIAL_TYPES = tuple(STOCK_DEFAULTS)


def configuration_file(folder: str | os.PathLike, subfolder: str = "") -> dict[str, str]:
    """The argument with which transformers reads the model_config.json of a folder of Microsoft's trainer; {} elsewhere.

    Raises:
        ValueError: a config.json is beside it.
    """
    names = [name for name in ("config.json", MICROSOFT_CONFIG) if os.path.isfile(os.path.join(folder, subfolder, name))]
    if len(names) > 1:
        raise ValueError(f"{folder} holds {' and '.join(names)}: take away the one that is not of this model")
    return {"_configuration_file": MICROSOFT_CONFIG} if names == [MICROSOFT_CONFIG] else {}


def absent_fields(stock: dict[str, Any]) -> dict[str, Any]:
    """Fields that a configuration of Microsoft's code leaves out, with the values that its code takes, as ours."""
    absent = {name: value for name, value in STOCK_DEFAULTS[MICROSOFT].items() if name not in stock}
    return {name: value for name, value in absent.items() if name != "conv_act" or stock.get("conv_kernel_size")}


def from_official(stock: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a `deberta`, `deberta-v2` or Microsoft's checkpoint in our fields, without a `model_type`.

    Raises:
        ValueError: a value of another type than can be computed with, or the checkpoint uses something that no released
            model has (talking heads, a head size of its own).
    """
    config = STOCK_DEFAULTS[stock["model_type"]] | {k: v for k, v in stock.items() if k not in STOCK_IGNORED}
    # What is computed with here; the rest is checked as fields of ours.
    for name in ("hidden_size", "num_attention_heads", "position_buckets", "max_relative_positions"):
        value, is_size = config.get(name, -1), name in ("hidden_size", "num_attention_heads")
        if not isinstance(value, int) or isinstance(value, bool) or (is_size and value < 1):
            raise ValueError(f"{name} = {value!r} must be an integer{' of at least 1' if is_size else ''}")
    for name, kind in (("norm_rel_ebd", str), ("pooling", dict)):
        value = config.get(name)
        if not (value is None or isinstance(value, kind)):
            raise ValueError(f"{name} = {value!r} must be a {kind.__name__}")
    del config["model_type"]
    # The code map of a stock repo would be that of somebody else's class.
    config.pop("auto_map", None)
    hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
    pooling = config.pop("pooling", None) or {}
    if stock["model_type"] == MICROSOFT:
        if "vocab_size" not in stock:
            raise ValueError("vocab_size is missing; it is the number of rows of the word embeddings")
        # Its pooler reads the fields of the model where there are none of its own.
        pooling = pooling or dict(hidden_act=config["hidden_act"], dropout=config.pop("dropout", 0))
    for name, stock_name in {"pooler_dropout": "dropout", "pooler_hidden_act": "hidden_act"}.items():
        if stock_name in pooling:
            config[name] = pooling[stock_name]
    if "padding_idx" in config:
        config["pad_token_id"] = config.pop("padding_idx")
    pooler_size = config.pop("pooler_hidden_size", pooling.get("hidden_size", hidden_size))
    head_size = config.pop("attention_head_size", None) or hidden_size // heads
    for name, value, supported in [
        ("pooler_hidden_size", pooler_size, hidden_size),
        ("attention_head_size", head_size, hidden_size // heads),
        ("talking_head", config.pop("talking_head", False), False),
    ]:
        if value != supported:
            raise ValueError(f"{name} = {value!r} is not supported, only {supported!r}; no released checkpoint has it")
    norms = (config["norm_rel_ebd"] or "none").lower().split("|")
    config["norm_rel_ebd"] = "layer_norm" if "layer_norm" in (norm.strip() for norm in norms) else "none"
    for name in ("position_buckets", "max_relative_positions"):
        if config.get(name, -1) < 1:
            config[name] = -1
    if not config.get("conv_kernel_size"):
        config.pop("conv_act")
    if config["position_biased_input"]:
        config["emd_layers"], config["emd_input"] = 1, "hidden"
    return config


def json_object(source, read, **kwargs) -> tuple[dict[str, Any], dict[str, Any]]:
    """`read(source, **kwargs)`, a `get_config_dict` of transformers, which trips over a config.json that holds no object.

    One without a `model_type` is Microsoft's.

    Raises:
        ValueError: it holds something else, or there are two.
    """
    file = {} if source is None else configuration_file(source, kwargs.get("subfolder") or "")
    wrong = f"the {file.get('_configuration_file', 'config.json')} of {source} holds no JSON object, {{...}}"
    try:
        config, unused = read(source, **kwargs, **file)
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{wrong} ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{wrong}, but a {type(config).__name__}")
    if {*config} - {"_commit_hash"}:
        config.setdefault("model_type", MICROSOFT)
    return config, unused
