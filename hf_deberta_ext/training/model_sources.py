# SPDX-License-Identifier: Apache-2.0
"""Sources of models and tokenizers: folders or Hub repositories."""

import contextlib
from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig
from transformers.utils import logging

from ..checkpoints.files import check_source
from ..checkpoints.official_configurations import OFFICIAL_TYPES, configuration_file

logger = logging.get_logger(__name__)

__all__ = ["announce_official", "named_tokenizer"]


@contextlib.contextmanager
def named_tokenizer(source: str, flag: str) -> Iterator[None]:
    """Context manager for loading a tokenizer: an OSError names the `flag` that selected it, and its value `source`."""
    check_source(source, f"{flag}: ")
    try:
        yield
    except OSError as error:
        raise OSError(f"{flag} {source}: {error}") from error


def announce_official(source: str, *, hint: str = "", trust_remote_code: bool = False, **download: Any) -> bool:
    """Return True for a DeBERTa checkpoint of Microsoft or transformers, and log once that it will be trained with this
    package's model class (`hint` ends the message). With `trust_remote_code`, return False if there is remote code."""
    stored, maker = {"model_type": "deberta"}, "a DeBERTa checkpoint in Microsoft's own files"
    if not configuration_file(source):
        stored, _ = PretrainedConfig.get_config_dict(source, **download)
    if stored.get("model_type") not in OFFICIAL_TYPES or (trust_remote_code and "auto_map" in stored):
        return False
    if "transformers_version" in stored:
        maker = f"a checkpoint of transformers' {stored['model_type']} classes"
    logger.warning_once(f"{source} is {maker}: it is trained as this package's model, deberta-ext{hint}")
    return True
