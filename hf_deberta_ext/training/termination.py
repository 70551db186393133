# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, with which batch systems end a job: a checkpoint at the end of the step, and exit status 143."""

import signal
import threading

__all__ = ["TERMINATED", "Termination"]

# What a shell says of a process that SIGTERM has ended.
TERMINATED = 128 + signal.SIGTERM


class Termination:
    """Context in which the first SIGTERM sets `requested`; a second one ends the process at once.

    A handler that somebody else has set stays. A request that nobody has answered with an exception ends the process at the
    end of the context.
    """

    requested = False

    def __enter__(self) -> "Termination":
        in_main_thread = threading.current_thread() is threading.main_thread()
        self.is_ours = in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self.is_ours:
            signal.signal(signal.SIGTERM, self._request)
        return self

    def _request(self, number, frame):
        self.requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __exit__(self, kind, error, trace):
        if self.is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.requested and kind is None:
            signal.raise_signal(signal.SIGTERM)
