# SPDX-License-Identifier: Apache-2.0
"""Write models of this package as stock deberta-v2 checkpoints; `from_pretrained` of any model reads them back."""

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

STOCK_CLASSES = {head.model_class: head.stock_class for head in HEADS.values() if head.stock_class}
# Fields that mean the same in both configurations.
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
    """Write `model` as a folder that plain transformers loads as DebertaV2, with the same outputs; return notes on what the
    folder does not hold in full.

    Models of v1 shape become deberta-v2 folders too. The tables and heads that the stock classes ignore (absolute positions
    of EMD, `mask_predictions`) are also written, so that this package loads the folder as the same model.

    Args:
        lossy (`bool`): Also write what the stock classes compute differently: a masked-language model with EMD.
        overwrite (`bool`): Replace a checkpoint that is in the folder.

    Raises:
        ValueError: The model has a feature that deberta-v2 cannot hold.
        FileExistsError: The folder already holds a checkpoint.
    """
    folder = Path(folder)
    if (folder / "config.json").exists() and not overwrite:
        raise FileExistsError(f"{folder} already holds a checkpoint; choose another folder or pass overwrite=True")
    notes = _losses(model, lossy)
    config = to_deberta_v2_config(model.config)
    stock_class = STOCK_CLASSES[type(model).__name__]
    config.architectures, config.dtype = [stock_class], model.dtype
    if isinstance(model, DebertaExtForQuestionAnswering):
        # The stock head has num_labels outputs and needs the two of start and end.
        config.num_labels = 2
    state_dict = to_deberta_v2_state_dict(model)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    if stock_class.endswith("Classification"):
        # transformers leaves out two labels with default names, and text-embeddings-inference refuses such a classifier.
        fields = read_json(folder / "config.json") | {"id2label": config.id2label, "label2id": config.label2id}
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    save_torch_state_dict(state_dict, folder, filename_pattern="model{suffix}.safetensors")
    for note in notes:
        logger.warning(f"{folder}: {note}")
    return notes


def to_deberta_v2_config(config: DebertaExtConfig) -> DebertaV2Config:
    """Return the stock configuration of the same encoder. `legacy=False` makes transformers read `lm_predictions`."""
    same = {name: getattr(config, name) for name in SAME_FIELDS}
    for name in FLOAT_FIELDS:
        if same[name] is not None:
            # transformers 5.4 refuses 0 where it expects 0.0.
            same[name] = float(same[name])
    if not config.relative_table_size:
        # The stock encoder would build a LayerNorm for the table that is not there.
        same["norm_rel_ebd"] = "none"
    labels = dict(id2label=config.id2label, label2id=config.label2id, problem_type=config.problem_type)
    return DebertaV2Config(**same, **labels, relative_attention=bool(config.relative_table_size), legacy=False)


def to_deberta_v2_state_dict(model: DebertaExtPreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights under stock names: tied copies left out, shared layers repeated."""
    state_dict = {key: value for key, value in model.state_dict().items() if key not in model.all_tied_weights_keys}
    for key in list(state_dict):
        before, first, parameter = key.partition("encoder.layer.0.")
        for index in range(1, model.config.num_hidden_layers):
            copy = f"{before}encoder.layer.{index}.{parameter}"
            if first and copy not in state_dict:
                state_dict[copy] = state_dict[key].clone()
    return state_dict


def _losses(model: DebertaExtPreTrainedModel, lossy: bool) -> list[str]:
    """Return notes on the features that a stock folder does not hold."""
    config = model.config
    if type(model).__name__ not in STOCK_CLASSES:
        raise ValueError(f"{type(model).__name__} has no counterpart in transformers; write one of its parts instead")
    if "p2p" in config.pos_att_type:
        raise ValueError("deberta-v2 has no p2p attention term (pos_att_type); such a model cannot be written as one")
    if getattr(model, "proj", None) is not None:
        raise ValueError("deberta-v2 has no dense layer before the classifier (classifier_act); such a model is not written")
    notes = []
    if config.share_layers != "none":
        notes.append(f"share_layers = {config.share_layers!r}: each layer has a copy, no longer kept equal by training")
    if isinstance(model, DebertaExtForReplacedTokenDetection):
        notes.append("mask_predictions: the replaced token detection head is in the file, but no stock class reads it")
    if not isinstance(model, DebertaExtForMaskedLM):
        return notes
    if config.embedding_size != config.hidden_size:
        raise ValueError(
            f"the stock masked-language-model head needs embedding_size = hidden_size, got {config.embedding_size} and "
            f"{config.hidden_size}; write model.deberta without the head instead"
        )
    if config.has_mask_decoder and (config.emd_layers, config.emd_input) != (1, "hidden"):
        note = f"the Enhanced Mask Decoder (emd_layers = {config.emd_layers}, emd_input = {config.emd_input!r})"
        if not lossy:
            raise ValueError(f"deberta-v2 has no place for {note}; pass lossy=True (--lossy) to write the weights")
        notes.append(f"{note}: the stock class decodes the plain last layer, its predictions differ")
    return notes
