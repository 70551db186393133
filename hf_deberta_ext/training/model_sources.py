# SPDX-License-Identifier: Apache-2.0
"""The source of a model or of a tokenizer: a folder, or a repository of the Hub."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.utils import logging

from ..checkpoints.official_configurations import OFFICIAL_TYPES, configuration_file

logger = logging.get_logger(__name__)

__all__ = ["announce_official", "check_source", "named_tokenizer"]


def check_source(source: str, flag: str):
    """Refuse a path that is no folder, which transformers would take for a name on the Hub; the message names the flag."""
    is_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or Path(source).is_file()
    if is_path and not Path(source).expanduser().is_dir():
        raise OSError(f"{flag} {source}: there is no such folder")


@contextlib.contextmanager
def named_tokenizer(source: str, flag: str) -> Iterator[None]:
    """Context in which the tokenizer that a flag gives is loaded; an OSError names the flag and its value."""
    check_source(source, flag)
    try:
        yield
    except OSError as error:
        raise OSError(f"{flag} {source}: {error}") from error


def announce_official(source: str, *, way_out: str = "", trust_remote_code: bool = False, **download: Any) -> bool:
    """Return True for a DeBERTa checkpoint of Microsoft or transformers, and say once that it is trained as this package's
    model; `way_out` ends the line. With `trust_remote_code`, code beside the checkpoint is meant to be its model."""
    stored, maker = {"model_type": "deberta"}, "a DeBERTa checkpoint in Microsoft's own files"
    if not configuration_file(source):
        stored, _ = PretrainedConfig.get_config_dict(source, **download)
    if stored.get("model_type") not in OFFICIAL_TYPES or (trust_remote_code and "auto_map" in stored):
        return False
    if "transformers_version" in stored:
        maker = f"a checkpoint of transformers' {stored['model_type']} classes"
    logger.warning_once(f"{source} is {maker}: it is trained as this package's model, deberta-ext{way_out}")
    return True
