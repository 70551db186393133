# SPDX-License-Identifier: Apache-2.0
"""Flags for downloads from the Hub, shared by all training scripts."""

from dataclasses import dataclass
from typing import Any

from ..files import drop_none
from .flags import option

__all__ = ["HubArguments"]


@dataclass(kw_only=True)
class HubArguments:
    """Flags for downloads: the revision of the model, and the token and cache folder of all downloads."""

    model_revision: str | None = option(None, "branch, tag or commit of the model on the Hub", aliases=["--revision"])
    token: str | None = option(None, "token for the Hub; default: the token saved by `hf auth login`")
    cache_dir: str | None = option(None, "cache folder for downloads and packed data")

    def download(self, revision: str | None = None) -> dict[str, Any]:
        """Return the download arguments of `from_pretrained` and `load_dataset` that are set by flags."""
        return drop_none(dict(revision=revision, token=self.token, cache_dir=self.cache_dir))

    def model_download(self) -> dict[str, Any]:
        """Return the download arguments of `from_pretrained` for the model."""
        return self.download(self.model_revision)
