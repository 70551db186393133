# SPDX-License-Identifier: Apache-2.0
"""Methods that `DebertaExtConfig` has in this package, but not in remote code (`trust_remote_code`).

They validate fields, and read presets and official configurations: those with model_type "deberta" or "deberta-v2", and
Microsoft's files, which have no model_type.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from .files import check_source
from .official_configurations import MICROSOFT, OFFICIAL_TYPES, configuration_file, from_official
from .presets import PRESETS

__all__ = ["OfficialConfigMixin", "is_joint"]

OUR_TYPE = "deberta-ext"
# Fields that must be at least 1.
SIZES = (
    "vocab_size hidden_size embedding_size num_hidden_layers num_attention_heads intermediate_size "
    "max_position_embeddings conv_groups emd_layers"
).split()
# With embedding_sharing = "all", the generator may only differ from the discriminator in these fields.
NOT_WEIGHTS = {"emd_layers", "emd_input", "hidden_dropout_prob", "attention_probs_dropout_prob", "masked_only"}


class OfficialConfigMixin:
    """Mixin of `DebertaExtConfig` for validation, presets and official configurations."""

    def validate_architecture(self):
        """Raise a ValueError for wrong or contradictory values. transformers calls this method on creation and saving."""
        # Imported late, because it imports the front end of torch.compile.
        from transformers.activations import ACT2FN

        for name in SIZES:
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("type_vocab_size", "conv_kernel_size"):
            self._require(name, getattr(self, name) >= 0, "0 (none) or more")
        for name in ("position_buckets", "max_relative_positions"):
            self._require(name, getattr(self, name) == -1 or getattr(self, name) >= 2, "-1 (off), or 2 or more")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout", "cls_dropout"):
            value = getattr(self, name)
            self._require(name, value is None or 0 <= value < 1, "a probability of at least 0 and less than 1")
        for name in ("initializer_range", "layer_norm_eps", "rtd_lambda", "rtd_temperature"):
            self._require(name, getattr(self, name) > 0, "greater than 0")
        for name in ("hidden_act", "pooler_hidden_act", "conv_act", "classifier_act"):
            known = getattr(self, name) in ACT2FN or (name == "classifier_act" and self.classifier_act is None)
            self._require(name, known, f"one of {', '.join(sorted(ACT2FN))}")
        self._require("tie_word_embeddings", self.tie_word_embeddings, "True: the decoder uses the word embedding table")
        ids = self.special_token_ids or []
        if self.pad_token_id is not None:
            ids = [*ids, self.pad_token_id]
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"pad_token_id = {self.pad_token_id} and special_token_ids = {self.special_token_ids} must be in "
                    f"[0, vocab_size = {self.vocab_size})"
                )
        for name in ("num_attention_heads", "conv_groups"):
            count = getattr(self, name)
            self._require("hidden_size", self.hidden_size % count == 0, f"a multiple of {name} = {count}")
        if self.position_buckets > 0 and self.relative_distance - 1 <= self.position_buckets // 2:
            raise ValueError(
                f"position_buckets = {self.position_buckets} requires a maximum relative distance greater than "
                f"{self.position_buckets // 2 + 1}, got {self.relative_distance}. This distance is max_relative_positions "
                "(max_position_embeddings if max_relative_positions = -1); set position_buckets = -1 for such a short one"
            )
        if self.conv_kernel_size > 0:
            self._require("conv_kernel_size", self.conv_kernel_size % 2 == 1, "odd, to keep the sequence length")
            self._require("num_hidden_layers", self.num_hidden_layers >= 2, "at least 2 with a convolution")
        if self.position_biased_input and (self.emd_layers, self.emd_input) not in [(2, "position+hidden"), (1, "hidden")]:
            raise ValueError(
                f"emd_layers = {self.emd_layers} and emd_input = {self.emd_input!r} have no effect if "
                "position_biased_input = True, because positions are already added to the input; omit both fields"
            )
        if self.generator is not None:
            self.check_generator()

    def _require(self, name: str, condition: bool, expected: str):
        if not condition:
            raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def check_generator(self):
        """Raise a ValueError if a field of `generator` is unknown, has a wrong value, or contradicts `embedding_sharing`."""
        names = set(self.single_fields())
        unknown = [str(name) for name in self.generator or () if name not in names]
        if unknown:
            raise ValueError(f"generator = {self.generator} has unknown fields: {', '.join(unknown)}")
        try:
            config = self.generator_config()
            config.validate()
        except (StrictDataclassError, TypeError) as error:
            raise ValueError(f"generator = {self.generator}: {error.__cause__ or error}") from error
        equal = ["vocab_size", "pad_token_id"]
        if self.embedding_sharing != "nes":
            equal += ["embedding_size", "position_biased_input"]
            if self.position_biased_input:
                equal.append("max_position_embeddings")
        if self.embedding_sharing == "all":
            equal += sorted(names - set(equal) - NOT_WEIGHTS)
        for name in equal:
            if getattr(config, name) != getattr(self, name):
                raise ValueError(
                    f"embedding_sharing = {self.embedding_sharing!r} needs the same {name} in generator and discriminator, "
                    f"got {getattr(config, name)!r} and {getattr(self, name)!r}"
                )

    @staticmethod
    def single_fields() -> list[str]:
        """Return the field names of `DebertaExtConfig` without the fields that only a joint model uses."""
        from ..model.configuration_deberta_ext import JOINT_FIELDS, DebertaExtConfig

        # The class annotations exclude fields of subclasses, and fields that all configurations of transformers have.
        return [name for name in DebertaExtConfig.__annotations__ if name not in (*JOINT_FIELDS, "model_type")]

    def difference(self, base: "OfficialConfigMixin") -> dict[str, Any]:
        """Return {name: value in this configuration} for each field of `single_fields` that differs from `base`."""
        return {name: getattr(self, name) for name in self.single_fields() if getattr(self, name) != getattr(base, name)}

    @classmethod
    def from_preset(cls, name: str, **overrides) -> "OfficialConfigMixin":
        """Create the configuration of a published model, such as `from_preset("v3-small", num_labels=3)`.

        `overrides` replace fields of the preset.

        Raises:
            ValueError: the preset does not exist, or a value is wrong.
        """
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        return cls.from_dict(PRESETS[name] | overrides)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
        """Load a configuration as in transformers; official configurations are converted to the fields of this class.

        Raises:
            ValueError: a value in the file or in `kwargs` is wrong.
            OSError: config.json is missing or is not JSON.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        except ValueError as error:
            raise ValueError(f"the configuration of {pretrained_model_name_or_path}: {error}") from error

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        source = pretrained_model_name_or_path
        if not Path(source).is_file():
            check_source(source)
        config, kwargs = super().get_config_dict(configuration_file(source, kwargs.get("subfolder")) or source, **kwargs)
        if not set(config) - {"_commit_hash"}:
            # transformers would use default sizes. Some versions add "_commit_hash" to an empty configuration.
            raise OSError(f"the config.json of {source} is missing or empty; add this file, or pass config=...")
        model_type = config.setdefault("model_type", MICROSOFT)
        if model_type not in (cls.model_type, OUR_TYPE, *OFFICIAL_TYPES):
            # transformers would only warn, and load weights whose names match.
            expected = ", ".join((OUR_TYPE, *OFFICIAL_TYPES))
            raise ValueError(f"{cls.__name__} only reads the model_types {expected}, got {model_type!r} in {source}")
        # from_dict also converts, but transformers would warn about an official model_type before it calls from_dict.
        return _translated(config), kwargs

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Create a configuration from a dict as in transformers; official fields are converted to this class's fields."""
        config_dict = dict(_translated(config_dict))
        # Overrides are passed to the constructor, so that they are checked against each other.
        for field in fields(cls):
            if field.name in kwargs and field.name != "dtype":
                config_dict[field.name] = kwargs.pop(field.name)
        try:
            return super().from_dict(config_dict, **kwargs)
        except StrictDataclassError as error:
            raise ValueError(str(error.__cause__)) from error


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    """Convert an official configuration to the fields of `DebertaExtConfig`; return other configurations unchanged."""
    if config.get("model_type") not in OFFICIAL_TYPES:
        return config
    return from_official(config) | {"model_type": OUR_TYPE}


def is_joint(config: dict[str, Any]) -> bool:
    """Return True if a config.json describes a joint model: a generator and a discriminator in one checkpoint."""
    return config.get("generator") is not None
