# SPDX-License-Identifier: Apache-2.0
"""Handling of SIGTERM (sent by batch systems) and Ctrl-C: save a checkpoint after the current step, then exit."""

import os
import signal
import threading

__all__ = ["TERMINATED", "Termination"]

# Exit status that shells report for a process ended by SIGTERM.
TERMINATED = 128 + signal.SIGTERM
# Python's default handlers.
DEFAULT_HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
NOTICE = b"\nCtrl-C: saving a checkpoint after this step; press it again to stop at once\n"


class Termination:
    """Context manager: the first SIGTERM or SIGINT only sets `requested` to its number; a second has its default effect.

    Custom handlers are not replaced. At the end of the context, a requested signal is raised again, unless the context
    ends with an exception.
    """

    requested = 0

    def __enter__(self) -> "Termination":
        self.process, self.replaced = os.getpid(), []
        if threading.current_thread() is threading.main_thread():
            self.replaced = [number for number, usual in DEFAULT_HANDLERS.items() if signal.getsignal(number) is usual]
        for number in self.replaced:
            signal.signal(number, self._request)
        return self

    def _request(self, number, frame):
        self.requested = number
        signal.signal(number, DEFAULT_HANDLERS[number])
        # Workers of a data loader also receive Ctrl-C. They inherit this handler and continue.
        if number == signal.SIGINT and os.getpid() == self.process:
            # Not print, because the stream may be locked; this writes immediately.
            os.write(2, NOTICE)

    def __exit__(self, kind, error, trace):
        for number in self.replaced:
            signal.signal(number, DEFAULT_HANDLERS[number])
        if self.requested and kind is None:
            signal.raise_signal(self.requested)
