# SPDX-License-Identifier: Apache-2.0
"""The source of a model or of a tokenizer: a folder, or a repository of the Hub."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import repo_folder_name
from transformers import PretrainedConfig
from transformers.utils import logging

from ..model.official_configurations import OFFICIAL_TYPES, configuration_file

__all__ = ["announce_official", "check_reachable", "check_source", "named_tokenizer"]

logger = logging.get_logger(__name__)

PROBE_SECONDS = 10


def check_source(source: str, flag: str, **download: Any):
    """Check that a local path is a folder with a configuration, which transformers would take for a Hub id, and that the Hub
    answers where it is none.

    Args:
        flag (`str`): that gave it, for messages.
        download: as of `check_reachable`.
    Raises:
        ValueError: it is a path, and no such folder.
        OSError: it is no path, and the Hub cannot be reached.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not ((folder / "config.json").is_file() or configuration_file(folder)):
            raise ValueError(f"{flag} {source} is no folder of a model: it has no config.json")
    elif folder.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise ValueError(f"{flag} {source}: there is no such folder")
    else:
        check_reachable(source, **download)


@contextlib.contextmanager
def named_tokenizer(source: str, flag: str, **download: Any) -> Iterator[None]:
    """Context in which the tokenizer that a flag gives is loaded.

    Args:
        download: as of `check_reachable`.
    Raises:
        OSError: there is none; names the flag and its value.
    """
    try:
        if not Path(source).exists() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
            raise OSError("there is no such folder")
        check_reachable(source, **download)
        yield
    except OSError as error:
        raise OSError(f"{flag} {source}: {' '.join(str(error).split())}") from error


def check_reachable(source: str, *, revision: str | None = None, cache_dir: str | None = None, token: Any = None):
    """Check with one request that the Hub answers, unless `source` is a path or in the cache.

    Without a network, each file is tried six times, in half a minute or more. Any answer is left to who loads.

    Raises:
        OSError: there is no connection.
    """
    if Path(source).exists():
        return
    try:
        cached = Path(cache_dir or constants.HF_HUB_CACHE, repo_folder_name(repo_id=source, repo_type="model"))
        if any(cached.glob("snapshots/*")):
            return
        get_hf_file_metadata(hf_hub_url(source, "config.json", revision=revision), token=token, timeout=PROBE_SECONDS)
    except Exception as error:
        # Of a package that changes with the client's version: ConnectError, ConnectTimeout, ConnectionError.
        if isinstance(error, ConnectionError) or type(error).__name__.startswith("Connect"):
            reason = str(error).strip().partition("\n")[0]
            raise OSError(
                f"there is no folder {source}, and the Hub cannot be reached ({reason}): give a folder of this machine"
            ) from error


def announce_official(source: str, *, way_out: str = "", trust_remote_code: bool = False, **download: Any) -> bool:
    """Tell a DeBERTa checkpoint of Microsoft or transformers, and say once that it is trained as this package's model.

    Args:
        way_out (`str`): end of the line.
        trust_remote_code (`bool`): code that comes with the checkpoint is meant to be its model.
    """
    kind = "a DeBERTa checkpoint in Microsoft's own files"
    if not configuration_file(source):
        stored, _ = PretrainedConfig.get_config_dict(source, **download)
        if stored.get("model_type") not in OFFICIAL_TYPES or (trust_remote_code and "auto_map" in stored):
            return False
        if "transformers_version" in stored:
            kind = f"a checkpoint of transformers' {stored['model_type']} classes"
    logger.warning_once(f"{source} is {kind}: it is trained as this package's model, deberta-ext{way_out}")
    return True
