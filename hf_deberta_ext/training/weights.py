# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint that a run begins with."""

import contextlib
import pickle
from collections.abc import Iterator

from safetensors import SafetensorError

__all__ = ["readable_weights"]


@contextlib.contextmanager
def readable_weights(source: str, config_overrides: str | None) -> Iterator[None]:
    """Inside, weights that are damaged or do not fit raise a ValueError that names their source."""
    try:
        yield
    except pickle.UnpicklingError as error:
        # That of torch advises to run them.
        raise ValueError(
            f"the weights of {source} are damaged, or hold pickled objects that are not tensors; they are not run. If you "
            "trust the file, load it with torch yourself and save its tensors as safetensors"
        ) from error
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"the weights of {source} cannot be read, or do not fit its configuration with --config_overrides "
            f"{config_overrides}: {str(error).splitlines()[0]}"
        ) from error
