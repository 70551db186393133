# SPDX-License-Identifier: Apache-2.0
"""Load data sets from the Hub, its cache, or a folder that `datasets` can read."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["load_hub_dataset", "read_hub"]


def read_hub(name: str, config: str | None, splits: Mapping[str, Sequence[str]], **download: Any) -> dict[str, "Dataset"]:
    """Read splits of a data set on the Hub or in a folder.

    Args:
        name (`str`): Hub id, or a folder that `datasets.load_dataset` can read.
        config (`str`, *optional*): configuration of the data set.
        splits: names to try for each split of the result: {"validation": ["validation", "dev"]}. The first name that the
            data set has is used; if the data set has none of the names, the split is left out of the result.
        download: arguments of `datasets.load_dataset`: revision, token and cache_dir, if set.
    """
    loaded = load_hub_dataset(name, config, **download)
    names = {split: next((name for name in candidates if name in loaded), None) for split, candidates in splits.items()}
    chosen = {split: loaded[name] for split, name in names.items() if name is not None}
    if not chosen:
        expected = ", ".join(sorted({name for candidates in splits.values() for name in candidates}))
        raise ValueError(f"the data set {name!r} must have one of the splits {expected}, got {', '.join(loaded)}")
    return chosen


def load_hub_dataset(name: str, config: str | None = None, **options: Any) -> Any:
    """Call `datasets.load_dataset`; raise a one-line ValueError if the data set cannot be loaded or lacks a split."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import is_offline_mode

    try:
        return load_dataset(name, config, **options)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # Missing, not cached, unknown configuration, damaged, or a loading script (no longer supported by datasets).
        place = "on the Hub"
        if os.path.isdir(name):
            place = "in the folder"
        elif is_offline_mode():
            place = "in the cache (HF_HUB_OFFLINE=1 is set)"
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        if "scripts are no longer supported" in reason:
            place += "; the Hub may have a Parquet version: use --data_revision refs/convert/parquet"
        shown = f"{name!r} ({config})" if config else repr(name)
        raise ValueError(f"the data set {shown} cannot be loaded: {reason} (searched {place})") from error
