# SPDX-License-Identifier: Apache-2.0
"""Save models of this package as deberta-v2 checkpoints of transformers, which this package can also load."""

import json
import os
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from transformers import DebertaV2Config
from transformers.utils import logging

from ..checkpoints.files import read_json
from ..heads import HEADS
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM, DebertaExtForQuestionAnswering, DebertaExtPreTrainedModel
from ..model.replaced_tokens_deberta_ext import DebertaExtForReplacedTokenDetection

logger = logging.get_logger(__name__)

__all__ = ["save_as_deberta_v2", "to_deberta_v2_config", "to_deberta_v2_state_dict"]

TRANSFORMERS_CLASSES = {head.model_class: head.stock_class for head in HEADS.values() if head.stock_class}
# Fields with the same meaning in both configurations.
SAME_FIELDS = """
    vocab_size embedding_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
    hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size position_biased_input
    pos_att_type max_relative_positions position_buckets norm_rel_ebd share_att_key conv_kernel_size conv_act conv_groups
    pooler_dropout pooler_hidden_act cls_dropout initializer_range layer_norm_eps pad_token_id bos_token_id eos_token_id
""".split()
FLOAT_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout", "initializer_range")


def save_as_deberta_v2(
    model: DebertaExtPreTrainedModel, folder: str | os.PathLike, *, lossy: bool = False, overwrite: bool = False
) -> list[str]:
    """Save `model` in a folder that transformers loads as DebertaV2 with the same outputs.

    Models with the options of DeBERTa v1 are saved as deberta-v2, too. transformers ignores the absolute positions of the
    Enhanced Mask Decoder (EMD) and the head `mask_predictions`. Both are still saved: this package loads the same model.

    Args:
        lossy (`bool`, default False): Allow masked language models with EMD, although transformers runs them without EMD.
        overwrite (`bool`, default False): Replace a checkpoint in the folder.
    Returns:
        `list[str]`: A note for each feature that transformers does not support or computes differently.
    Raises:
        ValueError: If the model has a feature that deberta-v2 does not support.
        FileExistsError: If the folder already contains a checkpoint.
    """
    folder = Path(folder)
    if (folder / "config.json").exists() and not overwrite:
        raise FileExistsError(f"{folder} already contains a checkpoint; choose another folder or pass overwrite=True")
    notes = _losses(model, lossy)
    config = to_deberta_v2_config(model.config)
    class_name = TRANSFORMERS_CLASSES[type(model).__name__]
    config.architectures, config.dtype = [class_name], model.dtype
    if isinstance(model, DebertaExtForQuestionAnswering):
        # transformers' head has num_labels outputs; question answering needs two, start and end.
        config.num_labels = 2
    state_dict = to_deberta_v2_state_dict(model)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    if class_name.endswith("Classification"):
        # transformers does not save two labels with default names; text-embeddings-inference rejects such a classifier.
        fields = read_json(folder / "config.json") | {"id2label": config.id2label, "label2id": config.label2id}
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    save_torch_state_dict(state_dict, folder, filename_pattern="model{suffix}.safetensors")
    for note in notes:
        logger.warning(f"{folder}: {note}")
    return notes


def to_deberta_v2_config(config: DebertaExtConfig) -> DebertaV2Config:
    """Return a `DebertaV2Config` for the same encoder; `legacy=False` lets transformers load the head `lm_predictions`."""
    same = {name: getattr(config, name) for name in SAME_FIELDS}
    for name in FLOAT_FIELDS:
        if same[name] is not None:
            # transformers 5.4 rejects 0 where it expects 0.0.
            same[name] = float(same[name])
    if not config.relative_table_size:
        # transformers' encoder would create a LayerNorm for the missing table.
        same["norm_rel_ebd"] = "none"
    labels = dict(id2label=config.id2label, label2id=config.label2id, problem_type=config.problem_type)
    return DebertaV2Config(**same, **labels, relative_attention=bool(config.relative_table_size), legacy=False)


def to_deberta_v2_state_dict(model: DebertaExtPreTrainedModel) -> dict[str, torch.Tensor]:
    """Return {transformers' name: weight}. Tied weights appear once, weights of shared layers once for each layer."""
    state_dict = {key: value for key, value in model.state_dict().items() if key not in model.all_tied_weights_keys}
    for key in list(state_dict):
        before, first, parameter = key.partition("encoder.layer.0.")
        for index in range(1, model.config.num_hidden_layers):
            copy = f"{before}encoder.layer.{index}.{parameter}"
            if first and copy not in state_dict:
                state_dict[copy] = state_dict[key].clone()
    return state_dict


def _losses(model: DebertaExtPreTrainedModel, lossy: bool) -> list[str]:
    """Return a note for each feature of the model that transformers' deberta-v2 does not support.

    Raise a ValueError if the model cannot be saved without such a feature, or if it would lose EMD and `lossy` is False."""
    config = model.config
    if type(model).__name__ not in TRANSFORMERS_CLASSES:
        raise ValueError(f"{type(model).__name__} has no equivalent class in transformers; save its encoder or its parts")
    if getattr(model, "is_quantized", False):
        raise ValueError("deberta-v2 has no int8 form: save the float32 model that this model was converted from")
    if "p2p" in config.pos_att_type:
        raise ValueError("deberta-v2 does not support p2p attention (pos_att_type): the model cannot be saved")
    if getattr(model, "proj", None) is not None:
        raise ValueError("deberta-v2 has no dense layer before the classifier (classifier_act): use save_pretrained instead")
    notes = []
    if config.share_layers != "none":
        notes.append(f"share_layers = {config.share_layers!r}: the saved layers are copies, which training does not tie")
    if isinstance(model, DebertaExtForReplacedTokenDetection):
        notes.append("mask_predictions: the replaced token detection head is saved, but no class of transformers loads it")
    if not isinstance(model, DebertaExtForMaskedLM):
        return notes
    if config.embedding_size != config.hidden_size:
        raise ValueError(
            f"transformers' masked-language-model head needs embedding_size = hidden_size, got {config.embedding_size} and "
            f"{config.hidden_size}; save model.deberta without the head instead"
        )
    if config.has_mask_decoder and (config.emd_layers, config.emd_input) != (1, "hidden"):
        note = f"the Enhanced Mask Decoder (emd_layers = {config.emd_layers}, emd_input = {config.emd_input!r})"
        if not lossy:
            raise ValueError(f"deberta-v2 does not support {note}; pass lossy=True (--lossy) to save the weights anyway")
        notes.append(f"{note}: transformers decodes the last layer without it, so its predictions differ")
    return notes
