# SPDX-License-Identifier: Apache-2.0
"""Entry points of the vLLM plugin. vLLM calls them in each of its processes, possibly twice, so they only register names."""

__all__ = ["pair_processor", "register"]

FAMILIES = ("Deberta", "DebertaV2", "DebertaExt")
# Ending of the architecture in config.json -> class in vllm_models.
MODELS = {
    "Model": "DebertaEmbedder",
    "ForSequenceClassification": "DebertaSequenceClassifier",
    "ForTokenClassification": "DebertaTokenClassifier",
}


def register():
    """Register the models of this package with vLLM, and the model type "deberta-ext" with transformers' Auto classes."""
    from vllm import ModelRegistry

    import hf_deberta_ext  # noqa: F401

    for family in FAMILIES:
        for ending, name in MODELS.items():
            ModelRegistry.register_model(family + ending, f"hf_deberta_ext.serving.vllm_models:{name}")


def pair_processor() -> str:
    """Return the name of the class that serves `--io-processor-plugin deberta_pairs`."""
    return "hf_deberta_ext.serving.pairs.PairProcessor"
