# SPDX-License-Identifier: Apache-2.0
"""Runs of several processes."""

import atexit

from torch import distributed

__all__ = ["leave_together"]


def leave_together():
    """Ends a run of several processes: none before the main one has written everything, since torchrun stops all of them
    when one ends badly; and with their connections closed."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        atexit.register(_disconnect)


def _disconnect():
    if distributed.is_initialized():
        distributed.destroy_process_group()
