# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtConfig`: one configuration for DeBERTa v1, v2, v3 and mDeBERTa, from presets or official checkpoints."""

import copy
import difflib
import functools
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import transformers
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers.utils import logging

from .heads import HEADS
from .official_configurations import OFFICIAL_TYPES, from_official, json_object
from .presets import PRESETS
from .remote_code import AUTO_MAP, copy_code

try:
    from transformers import GenerationConfig, PreTrainedConfig
except ImportError as error:
    raise ImportError(
        f"the code of this model needs transformers 5.4 or newer, found {transformers.__version__}. For older ones, and for "
        "packages that need them, write it as deberta-v2 where transformers is newer: deberta-ext convert MODEL FOLDER --to "
        "deberta-v2, or hf_deberta_ext.conversion.deberta_v2.save_as_deberta_v2(model, FOLDER)"
    ) from error

logger = logging.get_logger(__name__)

__all__ = ["DebertaExtConfig"]

POSITION_TERMS = ("c2p", "p2c", "p2p")
# Sizes that nobody means are refused before anything of that size is allocated.
LARGEST_SIZE, MOST_LAYERS = 2**24, 4096
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")

# Names that are no fields but that transformers itself writes into or passes to any configuration.
_COMMON_NAMES = {
    "model_type", "auto_map", "num_labels", "name_or_path", "_name_or_path", "torch_dtype", "output_attentions",
    "_output_attentions", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "_experts_implementation_internal", "_commit_hash",
    "per_layer_config", "quantization_config", "transformers_weights", "sentence_transformers",
    "use_cache", "model_max_length",
}  # fmt: skip


# Fields of a joint model of generator and discriminator, which its parts do not have.
_JOINT_FIELDS = (
    "generator", "embedding_sharing", "rtd_lambda", "rtd_temperature", "rtd_special_tokens", "special_token_ids",
)  # fmt: skip
_SINGLE_MODELS = {head.model_class for name, head in HEADS.items() if name != "pretraining"}
# Fields in which a generator that shares every weight with the discriminator may differ.
_NOT_WEIGHTS = {"emd_layers", "emd_input", "hidden_dropout_prob", "attention_probs_dropout_prob", "masked_only"}


def _value_errors(cls):
    """Turn every refusal of the strict dataclass into a ValueError that names field, value and the values allowed."""

    def wrap(method):
        @functools.wraps(method)
        def wrapped(self, *args, **kwargs):
            try:
                return method(self, *args, **kwargs)
            except StrictDataclassError as error:
                raise ValueError(f"{cls.__name__}: {error.__cause__ or error}") from error

        return wrapped

    for name in ("__init__", "__setattr__", "validate"):
        setattr(cls, name, wrap(getattr(cls, name)))
    return cls


@_value_errors
@strict
class DebertaExtConfig(PreTrainedConfig):
    """Configuration of every `DebertaExt` model. The defaults are DeBERTa-v3-base.

    `DebertaExtConfig.from_preset(name)` knows the published sizes; `DebertaExtConfig.from_pretrained(x)` also reads the
    config.json of official `deberta` and `deberta-v2` checkpoints.

    Args:
        vocab_size (`int`): rows of the word embeddings. May exceed the tokenizer's (128100 for 128001).
        embedding_size (`int`, *optional*): E, width of the embedding tables; None = `hidden_size`. Where it differs,
            `embed_proj` (Linear E -> hidden, no bias) runs before the embeddings' LayerNorm (ALBERT's factorisation).
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size (`int`): the shape of the encoder.
        hidden_act (`str`): activation of the feed-forward layers and of the heads' transforms.
        hidden_dropout_prob, attention_probs_dropout_prob (`float`): in [0, 1).
        max_position_embeddings (`int`): rows of the absolute position table (input, if `position_biased_input`, or EMD).
        type_vocab_size (`int`): token types; 0 = `token_type_ids` are ignored.
        position_biased_input (`bool`): add absolute positions to the input; then there is no EMD (as published).
        relative_attention (`bool`): use the relative position table at all.
        pos_att_type (`list[str]` or `str`): any subset of c2p, p2c, p2p; also "c2p|p2c". p2p is ours: no checkpoint has it.
        max_relative_positions (`int`): M, relative distances are clamped to it; -1 = `max_position_embeddings`.
        position_buckets (`int`): b, log buckets, table of 2b rows; -1 = none, table of 2M rows.
        norm_rel_ebd (`str`): "layer_norm" normalises the relative table (v2, v3); "none" (v1).
        share_att_key (`bool`): project the relative table with the content's key and query projections (v2, v3).
        conv_kernel_size, conv_act, conv_groups: the convolution beside the first layer (v2); 0 = none; odd sizes.
        share_layers (`str`): ALBERT's cross-layer sharing: "none", "all", "ffn" or "attention". Stored and counted once.
        emd_layers (`int`): passes of the last layer in the Enhanced Mask Decoder.
        emd_input (`str`): its first query: "position+hidden" (published), "position" or "hidden". One pass on "hidden"
            is BERT's decoder.
        masked_only (`bool`): in training mode and with labels, `DebertaExtForMaskedLM` computes queries, logits and loss at
            labelled positions only; logits are then [number of labelled tokens, vocab_size]. Evaluation gives all logits.
        pooler_dropout (`float`), pooler_hidden_act (`str`): of the pooler on [CLS].
        cls_dropout (`float`, *optional*): before the classifier; None = `hidden_dropout_prob`.
        classifier_act (`str`, *optional*): of a dense layer before the classifier of token classification, which Microsoft's
            NER models have (gelu); None = no such layer.
        generator (`dict`, *optional*): of `DebertaExtForPreTraining`, as the next five: fields in which the generator
            differs from the discriminator, which this configuration describes. The generator has half the layers if it does
            not say how many, and with another `hidden_size` heads of the same size and a feed-forward layer in proportion.
        embedding_sharing (`str`): "gdes", E_D = sg(E_G) + E_delta (DeBERTaV3); "es", one table, which both train (ELECTRA);
            "nes", two tables; "all", generator and discriminator of one size share the whole encoder (ELECTRA).
        rtd_lambda (`float`): weight of the discriminator's loss. 50 as published; the official script's default is 10.
        rtd_temperature (`float`): of the distribution that replacements are drawn from.
        rtd_special_tokens (`bool`): count [CLS] and [SEP] in the discriminator's loss, as the official code does.
        special_token_ids (`list[int]`, *optional*): never drawn as replacements: the tokenizer's special tokens, and rows of
            the table that it has no token for. Must be given to train; [] = anything may be drawn.
        initializer_range, layer_norm_eps (`float`).

    Raises:
        ValueError: a value out of its type or range, two fields that contradict each other, or an unknown name.
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
        unknown = sorted(set(kwargs) - _COMMON_NAMES)
        if unknown:
            raise ValueError("DebertaExtConfig: " + "; ".join(map(_unknown_name, unknown)))
        # A loaded "model_type" would shadow the class's on the instance.
        kwargs.pop("model_type", None)
        _check_names_and_numbers_of_labels(self.id2label, self.label2id, kwargs.get("num_labels"))
        for name, value in (("dtype", self.dtype), ("torch_dtype", kwargs.get("torch_dtype"))):
            _check_dtype(name, value)
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        super().__post_init__(**kwargs)

    def __setattr__(self, key, value):
        super().__setattr__(key, _position_terms(value) if key == "pos_att_type" else value)

    def get_text_config(self, decoder=None, encoder=None) -> "DebertaExtConfig":
        """This one: transformers takes any field named "generator" for a configuration within."""
        return self

    @property
    def relative_distance(self) -> int:
        """M, the largest relative distance that the table knows apart."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def relative_table_size(self) -> int:
        """Rows of the relative table: 2b with buckets, else 2M; 0 if nothing reads it."""
        if not (self.relative_attention and self.pos_att_type):
            return 0
        return 2 * (self.position_buckets if self.position_buckets > 0 else self.relative_distance)

    @property
    def has_mask_decoder(self) -> bool:
        """Masked-language modelling runs the Enhanced Mask Decoder: not with absolute positions in the input."""
        return not self.position_biased_input

    @property
    def has_absolute_positions(self) -> bool:
        """There is an absolute position table, for the input or for the Enhanced Mask Decoder."""
        return self.position_biased_input or self.emd_input != "hidden"

    def validate_architecture(self):
        """Refuse values out of range and fields that contradict each other (run by transformers at init and save)."""
        for name in (
            "vocab_size", "hidden_size", "embedding_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings", "conv_groups", "emd_layers",
        ):  # fmt: skip
            limit = MOST_LAYERS if name in ("num_hidden_layers", "emd_layers") else LARGEST_SIZE
            _require(self, name, 1 <= getattr(self, name) <= limit, f"an integer of at least 1 and at most {limit}")
        for name in ("type_vocab_size", "conv_kernel_size"):
            _require(self, name, 0 <= getattr(self, name) <= LARGEST_SIZE, f"0 (none) or more, at most {LARGEST_SIZE}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout"):
            value = getattr(self, name)
            _require(self, name, value is None or 0 <= value < 1, "a probability of at least 0 and less than 1")
        for name in ("initializer_range", "layer_norm_eps", "rtd_lambda", "rtd_temperature"):
            _require(self, name, 0 < getattr(self, name) < float("inf"), "greater than 0")
        # It imports the front end of torch.compile.
        from transformers.activations import ACT2FN

        for name in ("hidden_act", "pooler_hidden_act", "conv_act", "classifier_act"):
            known = getattr(self, name) in ACT2FN or (name == "classifier_act" and self.classifier_act is None)
            _require(self, name, known, f"one of {', '.join(sorted(ACT2FN))}")
        for name in ("position_buckets", "max_relative_positions"):
            value = getattr(self, name)
            _require(self, name, value == -1 or 2 <= value <= LARGEST_SIZE, f"-1 (off) or 2 to {LARGEST_SIZE}")
        # Fields of transformers, which it does not check.
        _check_names_and_numbers_of_labels(self.id2label, self.label2id, self.num_labels)
        _check_dtype("dtype", self.dtype)
        _require(self, "problem_type", self.problem_type is None or self.problem_type in PROBLEMS, f"None or in {PROBLEMS}")
        names = self.architectures
        is_list = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
        _require(self, "architectures", is_list, "a list of names, or None")
        for name in ("output_attentions", "output_hidden_states", "return_dict"):
            value = getattr(self, name)
            _require(self, name, value is None or isinstance(value, bool), "True, False or None")
        _require(self, "tie_word_embeddings", self.tie_word_embeddings, "True: the decoder is the word embedding table")
        pad = self.pad_token_id
        _require(self, "pad_token_id", pad is None or 0 <= pad < self.vocab_size, f"in [0, {self.vocab_size})")
        special = self.special_token_ids or []
        inside = all(0 <= token < self.vocab_size for token in special) and len({*special}) < self.vocab_size
        _require(self, "special_token_ids", inside, f"ids in [0, {self.vocab_size}), and not all of them")

        for name in ("num_attention_heads", "conv_groups"):
            count = getattr(self, name)
            _require(self, "hidden_size", self.hidden_size % count == 0, f"a multiple of {name} = {count}")
        if self.position_buckets > 0 and self.relative_distance - 1 <= self.position_buckets // 2:
            raise ValueError(
                f"position_buckets = {self.position_buckets} needs relative distances beyond "
                f"{self.position_buckets // 2 + 1}, got {self.relative_distance} (max_relative_positions, or "
                "max_position_embeddings where that is -1); set position_buckets = -1 for so short a range"
            )
        if self.conv_kernel_size > 0 and self.num_hidden_layers < 2:
            raise ValueError(
                f"conv_kernel_size = {self.conv_kernel_size} needs at least 2 layers, got num_hidden_layers = 1"
            )
        is_odd = self.conv_kernel_size == 0 or self.conv_kernel_size % 2 == 1
        _require(self, "conv_kernel_size", is_odd, "odd, or the sequence changes its length")
        if self.position_biased_input and (self.emd_layers, self.emd_input) not in [(2, "position+hidden"), (1, "hidden")]:
            raise ValueError(
                f"emd_layers = {self.emd_layers} and emd_input = {self.emd_input!r} have no effect with "
                "position_biased_input = True: positions are in the input, and the last layer is decoded; leave them out"
            )
        if self.generator is not None:
            self.generator_config()

    @property
    def is_joint(self) -> bool:
        """The configuration of a checkpoint with generator and discriminator in one model."""
        return is_joint({"generator": self.generator, "architectures": self.architectures})

    def discriminator_config(self) -> "DebertaExtConfig":
        """The configuration of the discriminator of a joint model, alone."""
        config = copy.deepcopy(self)
        for name in _JOINT_FIELDS:
            setattr(config, name, getattr(type(self), name))
        config.architectures = None
        return config

    def generator_config(self) -> "DebertaExtConfig":
        """The configuration of the generator of a joint model, alone.

        Raises:
            ValueError: `generator` has an unknown field, or one that contradicts the discriminator or `embedding_sharing`.
        """
        config, changes = self.discriminator_config(), dict(self.generator or {})
        names = {*_single_fields()}
        if joint := sorted({*changes} & {*_JOINT_FIELDS}):
            raise ValueError(
                f"generator = {self.generator}: {', '.join(joint)} belongs to the joint model, not to its generator"
            )
        if unknown := sorted(set(changes) - names):
            raise ValueError(f"generator = {self.generator}: " + "; ".join(map(_unknown_name, unknown)))
        if self.embedding_sharing != "all":
            changes.setdefault("num_hidden_layers", max(2 if self.conv_kernel_size else 1, self.num_hidden_layers // 2))
        for name in ("hidden_size", "num_hidden_layers"):
            # Others follow from these before they are checked.
            if name in changes and not (isinstance(changes[name], int) and not isinstance(changes[name], bool)):
                raise ValueError(f"generator = {self.generator}: {name} = {changes[name]!r} must be an integer")
        if "hidden_size" in changes:
            width, head_size = changes["hidden_size"], self.hidden_size // self.num_attention_heads
            changes.setdefault("num_attention_heads", max(1, width // head_size))
            changes.setdefault("intermediate_size", max(1, width * self.intermediate_size // self.hidden_size))
            if self.embedding_sharing == "nes":
                changes.setdefault("embedding_size", width)
        try:
            for name, value in changes.items():
                setattr(config, name, value)
            config.validate()
        except ValueError as error:
            raise ValueError(f"generator = {self.generator}: {error}") from error
        equal = ["vocab_size", "pad_token_id"]
        if self.embedding_sharing != "nes":
            equal += ["embedding_size", "position_biased_input"]
            equal += ["max_position_embeddings"] if self.position_biased_input else []
        if self.embedding_sharing == "all":
            equal += sorted(names - {*equal} - _NOT_WEIGHTS)
        for name in equal:
            if getattr(config, name) != getattr(self, name):
                raise ValueError(
                    f"generator: {name} = {getattr(config, name)!r} must be the discriminator's, {getattr(self, name)!r}"
                    + (f", under embedding_sharing = {self.embedding_sharing!r}" if name not in equal[:2] else "")
                )
        return config

    def difference(self, base: "DebertaExtConfig") -> dict[str, Any]:
        """The fields of a single model in which this differs from `base`, with the values here."""
        names = [name for name in _single_fields() if getattr(self, name) != getattr(base, name)]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_preset(cls, name: str, **overrides) -> "DebertaExtConfig":
        """The configuration of a published size, with any field replaced: `from_preset("v3-small", num_labels=3)`."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        return cls(**(PRESETS[name] | overrides))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
        """As in transformers; takes official configs too.

        Raises:
            ValueError: a wrong value, in the file or among the fields that `kwargs` replace; it names both.
            OSError: there is no config.json, or it is no JSON.
        """
        source = str(pretrained_model_name_or_path)
        try:
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        except ValueError as error:
            if source in str(error):
                raise
            raise ValueError(f"{error} (while reading the configuration of {source})") from error

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        source = pretrained_model_name_or_path
        config, kwargs = json_object(source, super().get_config_dict, **kwargs)
        if not {*config} - {"_commit_hash"}:
            # transformers would build a model of the default size. Some versions add a key.
            raise OSError(f"{source} has no config.json, or an empty one; pass config=")
        kind = config["model_type"]
        if kind not in (cls.model_type, DebertaExtConfig.model_type, *OFFICIAL_TYPES):
            raise ValueError(
                f"the configuration of {source} is of model_type {kind!r}; {cls.__name__} reads "
                f"{', '.join(map(repr, (cls.model_type, *OFFICIAL_TYPES)))}"
            )
        # Translated here as well as in from_dict, because transformers warns between the two about a foreign model_type.
        return _translated(config), kwargs

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """As in transformers; takes official configs too. Unknown names in a file are kept, with a warning."""
        config_dict = dict(_translated(config_dict))
        names = {field.name for field in fields(cls)}
        # Overrides go through the constructor, or they would be neither normalised nor checked against each other.
        for name in (set(kwargs) & names) - {"dtype"}:
            config_dict[name] = kwargs.pop(name)
        # Old transformers left parameters of text generation in every config.json.
        for name in set(config_dict) & {*GenerationConfig().to_dict()} - names:
            del config_dict[name]
        unknown = {name: config_dict.pop(name) for name in sorted(set(config_dict) - names - _COMMON_NAMES)}
        if not kwargs.get("return_unused_kwargs"):
            # Otherwise the caller gets them back: from_pretrained of a model hands them to its constructor.
            unused = sorted(set(kwargs) - names - _COMMON_NAMES - {"return_unused_kwargs", "_from_auto", "_from_pipeline"})
            if unused := [name for name in unused if name not in ("code_revision", "trust_remote_code")]:
                logger.warning("DebertaExtConfig: " + "; ".join(map(_unknown_name, unused)) + " (ignored)")
        loaded = super().from_dict(config_dict, **kwargs)
        if unknown:
            logger.warning("DebertaExtConfig: " + "; ".join(map(_unknown_name, unknown)) + " (kept, but nothing reads it)")
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name, value in unknown.items():
            setattr(config, name, value)
        return loaded

    def to_dict(self) -> dict[str, Any]:
        """As in transformers. peft looks up the modules to adapt by the model's type, which it reads here: it is given those
        of deberta-v2, whose names ours are."""
        for name, table in vars(sys.modules.get("peft.utils.constants", object)).items():
            if name.startswith("TRANSFORMERS_MODELS_TO_") and isinstance(table, dict) and "deberta-v2" in table:
                table.setdefault(self.model_type, table["deberta-v2"])
        return super().to_dict()

    def to_diff_dict(self) -> dict[str, Any]:
        """As in transformers, but config.json has the names of a classifier's labels also where they are two of its own."""
        config = super().to_diff_dict()
        if any(name.endswith("Classification") for name in self.architectures or ()):
            config |= {"id2label": self.id2label, "label2id": self.label2id}
        return config

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs):
        """Writes config.json with the complete auto_map, and the model's code beside it, for trust_remote_code.

        Raises:
            ValueError: the folder holds a Python file of the same name that is not this model's; nothing is written.
        """
        if not os.path.isfile(save_directory):
            folder = Path(save_directory)
            copy_code(folder, self.name_or_path)
            modules = {file.stem for file in folder.glob("*.py")}
            self.auto_map = {name: entry for name, entry in AUTO_MAP.items() if entry.split(".")[0] in modules}
        super().save_pretrained(save_directory)
        if push_to_hub:
            # transformers would upload only what changed since it was called, which leaves out the code.
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json in our fields: an official one translated, ours as it is."""
    if config.get("model_type") not in OFFICIAL_TYPES:
        return config
    return from_official(config) | {"model_type": DebertaExtConfig.model_type}


def _single_fields() -> list[str]:
    """The fields of ours that a model has by itself."""
    # Of this class and not of a subclass, nor those of every transformers configuration.
    return [name for name in DebertaExtConfig.__annotations__ if name not in {*_JOINT_FIELDS, "model_type"}]


def is_joint(config: dict[str, Any]) -> bool:
    """Tell the config.json of generator and discriminator in one model."""
    names = config.get("architectures")
    return config.get("generator") is not None and not _SINGLE_MODELS & {*(names if isinstance(names, list) else [])}


def _require(config, name: str, condition: bool, expected: str):
    if not condition:
        raise ValueError(f"{name} = {getattr(config, name)!r} must be {expected}")


def _check_names_and_numbers_of_labels(id2label, label2id, num_labels):
    for name, value in (("id2label", id2label), ("label2id", label2id)):
        if not (value is None or isinstance(value, dict)):
            raise ValueError(f"{name} = {value!r} must be a dict or None")
    if not (num_labels is None or (isinstance(num_labels, int) and not isinstance(num_labels, bool) and num_labels >= 1)):
        raise ValueError(f"num_labels = {num_labels!r} must be an integer of at least 1")
    for key in id2label or ():
        if not (isinstance(key, int) or (isinstance(key, str) and key.lstrip("-").isdecimal())):
            raise ValueError(f"id2label = {id2label!r}: {key!r} is no number of a label")


def _check_dtype(name: str, value):
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if not (value is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)):
        raise ValueError(f"{name} = {value!r} must be a floating dtype of torch, such as 'float32' or 'bfloat16', or None")


def _unknown_name(name: str) -> str:
    names = [field.name for field in fields(DebertaExtConfig)]
    close = difflib.get_close_matches(name, names, n=1)
    return f"there is no field {name!r}" + (f", did you mean {close[0]!r}?" if close else "")


def _position_terms(value: str | list[str] | None) -> list[str]:
    """Any spelling of `pos_att_type` as a list in the order c2p, p2c, p2p."""
    terms = value.split("|") if isinstance(value, str) else value or []
    terms = {term.strip().lower() for term in terms} - {"", "none"}
    if not terms <= set(POSITION_TERMS):
        raise ValueError(f"DebertaExtConfig: pos_att_type = {value!r} must be a subset of {', '.join(POSITION_TERMS)}")
    return [term for term in POSITION_TERMS if term in terms]
