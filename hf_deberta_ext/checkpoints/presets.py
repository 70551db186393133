# SPDX-License-Identifier: Apache-2.0
"""`PRESETS`: for each published model, the fields of `DebertaExtConfig` that differ from the defaults."""

from typing import Any

__all__ = ["PRESETS"]

# The defaults of DebertaExtConfig are those of v3-base; v1 differs in these fields.
_V1 = dict(vocab_size=50265, position_buckets=-1, norm_rel_ebd="none", share_att_key=False)
_V2 = dict(conv_kernel_size=3, conv_act="gelu", intermediate_size=6144, hidden_size=1536, num_attention_heads=24)
_LARGE = dict(hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
PRESETS: dict[str, dict[str, Any]] = {
    "base": _V1,
    "large": _V1 | _LARGE | dict(num_hidden_layers=24),
    "xlarge": _V1 | _LARGE | dict(num_hidden_layers=48),
    "v2-xlarge": _V2 | dict(num_hidden_layers=24),
    "v2-xxlarge": _V2 | dict(num_hidden_layers=48),
    "v3-xsmall": dict(hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "v3-small": dict(num_hidden_layers=6),
    "v3-base": {},
    "v3-large": _LARGE | dict(num_hidden_layers=24),
    "mdeberta-v3-base": dict(vocab_size=251000),
    # Sizes (Clark et al. 2020, table 6) and vocabulary of ELECTRA with the attention of DeBERTa-v3.
    "electra-small": dict(
        vocab_size=30522, embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    ),
    "electra-base": dict(vocab_size=30522),
    "electra-large": _LARGE | dict(vocab_size=30522, num_hidden_layers=24),
}
