# SPDX-License-Identifier: Apache-2.0
"""`DebertaExtConfig`: one configuration for DeBERTa v1, v2, v3 and mDeBERTa.

This file, attention_deberta_ext.py, modeling_deberta_ext.py and replaced_tokens_deberta_ext.py are the complete model. The
package hf_deberta_ext imports them, and every saved checkpoint contains a copy for `trust_remote_code=True`.
"""

import contextlib
import copy
import importlib
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal

import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.dataclasses import strict

TOO_OLD = (
    f"this model's code requires transformers 5.4 or newer, got {transformers.__version__}. To use the model with an older "
    "version, convert it to deberta-v2 in an environment with hf_deberta_ext and a newer transformers: "
    "deberta-ext convert MODEL FOLDER --to deberta-v2"
)
try:
    from transformers import PreTrainedConfig
except ImportError as error:
    raise ImportError(TOO_OLD) from error
if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 4):
    raise ImportError(TOO_OLD)

CODE_FILES = (
    "configuration_deberta_ext.py", "attention_deberta_ext.py", "modeling_deberta_ext.py", "replaced_tokens_deberta_ext.py",
)  # fmt: skip
# Auto class -> class of these files, for loading with trust_remote_code.
AUTO_MAP = {
    "AutoConfig": "configuration_deberta_ext.DebertaExtConfig",
    "AutoModel": "modeling_deberta_ext.DebertaExtModel",
    "AutoModelForMaskedLM": "modeling_deberta_ext.DebertaExtForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_deberta_ext.DebertaExtForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_deberta_ext.DebertaExtForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_deberta_ext.DebertaExtForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_deberta_ext.DebertaExtForMultipleChoice",
    "AutoModelForPreTraining": "replaced_tokens_deberta_ext.DebertaExtForPreTraining",
}
POSITION_TERMS = ("c2p", "p2c", "p2p")
# Fields that only a joint model of generator and discriminator has.
JOINT_FIELDS = (
    "generator", "embedding_sharing", "rtd_lambda", "rtd_temperature", "rtd_special_tokens", "special_token_ids",
)  # fmt: skip


def installed_module(name: str) -> Any:
    """Import and return `hf_deberta_ext.{name}`, also from remote code; return None if hf_deberta_ext is not installed."""
    try:
        return importlib.import_module(f"hf_deberta_ext.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "hf_deberta_ext":
            raise
        return None


def package_mixin(module: str, name: str) -> type:
    """Return a base class with features that only the package has: validation, presets, official checkpoints, adapters,
    publishing. In remote code, return an empty class."""
    if not __name__.startswith("hf_deberta_ext."):
        return type(name, (), {})
    return getattr(importlib.import_module(f"hf_deberta_ext.{module}"), name)


@strict
class DebertaExtConfig(package_mixin("checkpoints.configuration", "OfficialConfigMixin"), PreTrainedConfig):
    """Configuration of all `DebertaExt` models. The defaults are DeBERTa-v3-base.

    With the package installed, `DebertaExtConfig.from_preset(name)` creates the published sizes, and `from_pretrained` also
    reads official `deberta` and `deberta-v2` checkpoints.

    Args:
        vocab_size (`int`): rows of the word embeddings. May exceed the tokenizer's size (128100 rows for 128001 tokens).
        embedding_size (`int`, *optional*): E, width of the embedding tables; None = `hidden_size`. If it differs from
            `hidden_size`, `embed_proj` (Linear E -> hidden, no bias) precedes the embeddings' LayerNorm (as in ALBERT).
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size (`int`): sizes of the encoder.
        hidden_act (`str`): activation of the feed-forward layers and of the heads' transforms.
        hidden_dropout_prob, attention_probs_dropout_prob (`float`): dropout rates, in [0, 1).
        max_position_embeddings (`int`): rows of the absolute position table (for input or Enhanced Mask Decoder, EMD).
        type_vocab_size (`int`): number of token types; 0 = `token_type_ids` are ignored.
        position_biased_input (`bool`): add absolute positions to the input; there is then no EMD (as published).
        relative_attention (`bool`): use relative positions.
        pos_att_type (`list[str]` or `str`): any subset of c2p, p2c, p2p; also "c2p|p2c". p2p is an extension; no published
            checkpoint uses it.
        max_relative_positions (`int`): M, limit to which relative distances are clamped; -1 = `max_position_embeddings`.
        position_buckets (`int`): b, number of log buckets (table of 2b rows); -1 = no buckets (table of 2M rows).
        norm_rel_ebd (`str`): "layer_norm" normalises the relative table (v2, v3); "none" does not (v1).
        share_att_key (`bool`): project the relative table with the content's key and query projections (v2, v3).
        conv_kernel_size, conv_act, conv_groups: convolution parallel to the first layer (v2); odd size, or 0 = none.
        share_layers (`str`): weights that all layers share, as in ALBERT: "none", "all", "ffn" or "attention"; stored once.
        emd_layers (`int`): how many times the Enhanced Mask Decoder runs the last layer.
        emd_input (`str`): first query of the Enhanced Mask Decoder: "position+hidden" (published), "position" or "hidden".
            "hidden" with `emd_layers` = 1 is BERT's decoder.
        masked_only (`bool`): in training mode and with labels, `DebertaExtForMaskedLM` only computes queries, logits and
            loss at labelled positions; logits are [number of labelled tokens, vocab_size]. Evaluation returns all logits.
        pooler_dropout (`float`), pooler_hidden_act (`str`): dropout and activation of the pooler on [CLS].
        cls_dropout (`float`, *optional*): dropout before the classifier; None = `hidden_dropout_prob`.
        classifier_act (`str`, *optional*): activation of a dense layer before the classifier in token classification, as in
            Microsoft's NER models (gelu); None = no such layer.
        generator (`dict`, *optional*): fields in which the generator of `DebertaExtForPreTraining` differs from the
            discriminator, which this configuration describes. By default: half the layers and, if `hidden_size` differs,
            heads of the same size and a proportional `intermediate_size`. The next five fields are also for this model.
        embedding_sharing (`str`): how the discriminator's table E_D depends on the generator's table E_G. "gdes": E_D =
            stop_gradient(E_G) + E_delta (DeBERTaV3); "es": E_D = E_G, trained by both losses (ELECTRA); "nes": two tables;
            "all": generator and discriminator, of equal size, share the whole encoder (ELECTRA).
        rtd_lambda (`float`): weight of the discriminator's loss; 50 as published (default of the official script: 10).
        rtd_temperature (`float`): softmax temperature for sampling replacements.
        rtd_special_tokens (`bool`): include [CLS] and [SEP] in the discriminator's loss, as the official code does.
        special_token_ids (`list[int]`, *optional*): ids that are never drawn as replacements: special tokens, and ids
            without a token in the tokenizer. Required for training; [] = any id may be drawn.
        initializer_range, layer_norm_eps (`float`): standard deviation of new weights, epsilon of LayerNorm.

    Raises:
        StrictDataclassError: a value has the wrong type or, with the package installed, is out of range or contradicts
            another field. In the package, `from_pretrained`, `from_dict` and `from_preset` raise a ValueError instead.
    """

    model_type: ClassVar[str] = "deberta-ext"

    vocab_size: int = 128100
    embedding_size: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 0
    position_biased_input: bool = False
    relative_attention: bool = True
    pos_att_type: str | list[str] | None = "c2p|p2c"
    max_relative_positions: int = -1
    position_buckets: int = 256
    norm_rel_ebd: Literal["none", "layer_norm"] = "layer_norm"
    share_att_key: bool = True
    conv_kernel_size: int = 0
    conv_act: str = "gelu"
    conv_groups: int = 1
    share_layers: Literal["none", "all", "ffn", "attention"] = "none"
    emd_layers: int = 2
    emd_input: Literal["position+hidden", "position", "hidden"] = "position+hidden"
    masked_only: bool = False
    pooler_dropout: float | int = 0.0
    pooler_hidden_act: str = "gelu"
    cls_dropout: float | int | None = None
    classifier_act: str | None = None
    generator: dict[str, Any] | None = None
    embedding_sharing: Literal["gdes", "es", "nes", "all"] = "gdes"
    rtd_lambda: float | int = 50.0
    rtd_temperature: float | int = 1.0
    rtd_special_tokens: bool = True
    special_token_ids: list[int] | None = None
    initializer_range: float | int = 0.02
    layer_norm_eps: float = 1e-7
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        # A loaded "model_type" would shadow the class attribute.
        kwargs.pop("model_type", None)
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        super().__post_init__(**kwargs)

    def __setattr__(self, key, value):
        if key == "pos_att_type":
            value = _position_terms(value)
        super().__setattr__(key, value)

    def get_text_config(self, decoder=None, encoder=None) -> "DebertaExtConfig":
        """Return `self`; the `generator` field would otherwise be mistaken for a sub-configuration."""
        return self

    @property
    def relative_distance(self) -> int:
        """Distance M to which relative positions are clamped."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def relative_table_size(self) -> int:
        """Number of rows of the relative table: 2 * position_buckets (2M without buckets); 0 if no position term is used."""
        if not (self.relative_attention and self.pos_att_type):
            return 0
        return 2 * (self.position_buckets if self.position_buckets > 0 else self.relative_distance)

    @property
    def has_mask_decoder(self) -> bool:
        """True if masked-language modelling runs the Enhanced Mask Decoder, because the input has no absolute positions."""
        return not self.position_biased_input

    @property
    def has_absolute_positions(self) -> bool:
        """True if there is an absolute position table, for the input or for the Enhanced Mask Decoder."""
        return self.position_biased_input or self.emd_input != "hidden"

    @property
    def is_joint(self) -> bool:
        """True if this configures a joint model of generator and discriminator."""
        return self.generator is not None

    def discriminator_config(self) -> "DebertaExtConfig":
        """Return the configuration of the discriminator of a joint model."""
        config = copy.deepcopy(self)
        for name in JOINT_FIELDS:
            setattr(config, name, getattr(type(self), name))
        config.architectures = None
        return config

    def generator_config(self) -> "DebertaExtConfig":
        """Return the configuration of the generator of a joint model."""
        config = self.discriminator_config()
        for name, value in (self.derived_fields() | (self.generator or {})).items():
            setattr(config, name, value)
        return config

    def derived_fields(self) -> dict[str, int]:
        """Return the generator's defaults: half the layers and, for another `hidden_size`, heads of the same size."""
        derived = {}
        if self.embedding_sharing != "all":
            # A convolution requires at least two layers.
            least = 2 if self.conv_kernel_size else 1
            derived["num_hidden_layers"] = max(least, self.num_hidden_layers // 2)
        width = (self.generator or {}).get("hidden_size")
        if width is not None:
            derived["num_attention_heads"] = max(1, width * self.num_attention_heads // self.hidden_size)
            derived["intermediate_size"] = max(1, width * self.intermediate_size // self.hidden_size)
            if self.embedding_sharing == "nes":
                derived["embedding_size"] = width
        return derived

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults and, for a classifier, always the label names."""
        config = super().to_diff_dict()
        if any(name.endswith("Classification") for name in self.architectures or ()):
            config |= {"id2label": self.id2label, "label2id": self.label2id}
        return config

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs):
        """Write config.json with the complete auto_map, and the model's code for trust_remote_code."""
        if not os.path.isfile(save_directory):
            _copy_code(Path(save_directory), self.name_or_path)
            modules = {file.stem for file in Path(save_directory).glob("*.py")}
            self.auto_map = {name: entry for name, entry in AUTO_MAP.items() if entry.split(".")[0] in modules}
        super().save_pretrained(save_directory)
        if push_to_hub:
            # transformers would only upload files that changed during the call, without the code.
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)


def _copy_code(folder: Path, loaded_from: str):
    """Copy the model's code into `folder` from this file's folder or, if files are missing there, from `loaded_from`."""
    source = Path(__file__).resolve().parent
    if not all((source / name).exists() for name in CODE_FILES):
        if loaded_from and Path(loaded_from, CODE_FILES[0]).is_file():
            source = Path(loaded_from).resolve()
        else:
            with contextlib.suppress(OSError, ValueError):
                # In the module cache, the code of a repository is in a folder named after its commit.
                files = [hf_hub_download(loaded_from, name, revision=source.name) for name in CODE_FILES]
                source = Path(files[0]).parent
    folder.mkdir(parents=True, exist_ok=True)
    for name in CODE_FILES:
        target = folder / name
        if (source / name).exists() and not (target.exists() and target.samefile(source / name)):
            shutil.copyfile(source / name, target)


def _position_terms(value: str | list[str] | None) -> list[str]:
    """Convert any spelling of `pos_att_type` to a list in the order c2p, p2c, p2p."""
    terms = value or []
    if isinstance(value, str):
        terms = value.split("|")
    terms = {term.strip().lower() for term in terms} - {"", "none"}
    if not terms <= set(POSITION_TERMS):
        raise ValueError(f"pos_att_type must be a subset of {', '.join(POSITION_TERMS)}, got {value!r}")
    return [term for term in POSITION_TERMS if term in terms]
