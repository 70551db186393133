# SPDX-License-Identifier: Apache-2.0
"""Flags of every training script for downloads from the Hub."""

from dataclasses import dataclass
from typing import Any

from .flags import option

__all__ = ["HubArguments"]


@dataclass(kw_only=True)
class HubArguments:
    """Flags of downloads: the revision of the model, and token and cache folder of everything that is loaded."""

    model_revision: str | None = option(None, "of the model on the Hub", aliases=["--revision"])
    token: str | None = option(None, "for the Hub; default: that of `hf auth login`")
    cache_dir: str | None = option(None, "for downloads and packed data")

    def download(self, revision: str | None = None) -> dict[str, Any]:
        """Return the arguments of `from_pretrained` and `load_dataset` for a repository, as far as flags set them."""
        arguments = dict(revision=revision, token=self.token, cache_dir=self.cache_dir)
        return {name: value for name, value in arguments.items() if value is not None}

    def model_download(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained` for the repository of the model."""
        return self.download(self.model_revision)
