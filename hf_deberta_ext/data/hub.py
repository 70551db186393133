# SPDX-License-Identifier: Apache-2.0
"""Data sets of the Hub, in its cache, or in a folder that `datasets` reads."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["load_hub_dataset", "read_hub"]


def read_hub(name: str, config: str | None, splits: Mapping[str, Sequence[str]], **download: Any) -> dict[str, "Dataset"]:
    """Read splits of a data set for fine-tuning.

    Args:
        name (`str`): Hub id, or a folder that `datasets.load_dataset` reads.
        config (`str`, *optional*): which of its configurations.
        splits: our names -> its names for each, the first of which that it has is used: {"validation": ["validation",
            "dev"]}. A split that it has under none of them is left out.
        download: revision, token and cache_dir, where they are given.
    """
    loaded = load_hub_dataset(name, config, **download)
    names = {split: next((name for name in candidates if name in loaded), None) for split, candidates in splits.items()}
    chosen = {split: loaded[name] for split, name in names.items() if name is not None}
    if not chosen:
        expected = ", ".join(sorted({name for candidates in splits.values() for name in candidates}))
        raise ValueError(f"the data set {name!r} has none of the splits {expected}, but {', '.join(loaded)}")
    return chosen


def load_hub_dataset(name: str, config: str | None = None, **options: Any) -> Any:
    """Call `datasets.load_dataset`, with a ValueError of one line where it cannot be reached or read, or lacks a split."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import is_offline_mode

    try:
        return load_dataset(name, config, **options)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # Missing, not in the cache, no such configuration, damaged, or a loading script, which datasets no longer runs.
        place = "on the Hub"
        if os.path.isdir(name):
            place = "in the folder"
        elif is_offline_mode():
            place = "in the cache (HF_HUB_OFFLINE=1 is set)"
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        if "scripts are no longer supported" in reason:
            place += "; the Hub may have it as tables: --data_revision refs/convert/parquet"
        shown = f"{name!r} ({config})" if config else repr(name)
        raise ValueError(f"the data set {shown} cannot be loaded: {reason} (searched {place})") from error
