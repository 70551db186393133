# SPDX-License-Identifier: Apache-2.0
"""Families of transformers' own DeBERTa models, as tiny models with a relative table of at most 64 positions."""

from transformers import AutoModel

FAMILIES = {
    "v1": ("v1", {}),
    "v1, c2p alone": ("v1", dict(pos_att_type=["c2p"])),
    "v1, p2c alone": ("v1", dict(pos_att_type=["p2c"])),
    "v1, no relative attention": ("v1", dict(relative_attention=False)),
    "v2, conv": ("v2", {}),
    "v3": ("v3", {}),
    "v3, p2c alone": ("v3", dict(pos_att_type=["p2c"])),
    "separate projections": ("v3", dict(share_att_key=False)),
    "separate, c2p alone": ("v3", dict(share_att_key=False, pos_att_type=["c2p"])),
    "no buckets": ("v3", dict(position_buckets=-1, norm_rel_ebd="none")),
    "odd buckets": ("v3", dict(position_buckets=15)),
    "tiny table": ("v3", dict(position_buckets=8, max_relative_positions=12)),
    "no relative attention": ("v3", dict(relative_attention=False)),
}


def stock_model(family, stock_config, auto_class=AutoModel, **overrides):
    """Return the model of a family, with heads wide enough for the backend "native"; `stock_config` is the fixture."""
    kind, changes = FAMILIES[family]
    return auto_class.from_config(stock_config(kind, **(dict(num_attention_heads=2) | changes | overrides)))
