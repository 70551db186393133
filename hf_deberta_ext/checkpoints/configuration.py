# SPDX-License-Identifier: Apache-2.0
"""What `DebertaExtConfig` can do in the package: published sizes, and the configurations of official checkpoints."""

from dataclasses import fields
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from .official_configurations import MICROSOFT, OFFICIAL_TYPES, configuration_file, from_official
from .presets import PRESETS

__all__ = ["OfficialConfigMixin"]

OUR_TYPE = "deberta-ext"


class OfficialConfigMixin:
    """Presets and official configurations; a base of `DebertaExtConfig`, before that of transformers."""

    @classmethod
    def from_preset(cls, name: str, **overrides) -> "OfficialConfigMixin":
        """Return the configuration of a published size, with any field replaced: `from_preset("v3-small", num_labels=3)`.

        Raises:
            ValueError: no such preset, or a wrong value.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        return cls.from_dict(PRESETS[name] | overrides)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs):
        """Load a configuration as in transformers; official ones too.

        Raises:
            ValueError: a wrong value, in the file or among the fields that `kwargs` replace; it names both.
            OSError: there is no config.json, or it is no JSON.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        except ValueError as error:
            raise ValueError(f"the configuration of {pretrained_model_name_or_path}: {error}") from error

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        source = pretrained_model_name_or_path
        config, kwargs = super().get_config_dict(configuration_file(source, kwargs.get("subfolder")) or source, **kwargs)
        if not set(config) - {"_commit_hash"}:
            # transformers would build a model of the default size. Some versions add a key.
            raise OSError(f"{source} has no config.json, or an empty one; pass config=")
        model_type = config.setdefault("model_type", MICROSOFT)
        if model_type not in (cls.model_type, OUR_TYPE, *OFFICIAL_TYPES):
            # transformers warns, and weights that happen to have our names would be loaded.
            raise ValueError(f"{source} is of model_type {model_type!r}, which {cls.__name__} does not read")
        # Translated here as well as in from_dict, because transformers warns between the two about a foreign model_type.
        return _translated(config), kwargs

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Make a configuration as in transformers; official ones too."""
        config_dict = dict(_translated(config_dict))
        # Overrides go through the constructor, or they would not be checked against each other.
        for field in fields(cls):
            if field.name in kwargs and field.name != "dtype":
                config_dict[field.name] = kwargs.pop(field.name)
        try:
            return super().from_dict(config_dict, **kwargs)
        except StrictDataclassError as error:
            raise ValueError(str(error.__cause__)) from error


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json in our fields: an official one translated, ours as it is."""
    if config.get("model_type") not in OFFICIAL_TYPES:
        return config
    return from_official(config) | {"model_type": OUR_TYPE}
