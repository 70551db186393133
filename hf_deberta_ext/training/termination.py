# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, with which batch systems end a job, and Ctrl-C: a checkpoint at the end of the step, then the end."""

import os
import signal
import threading

__all__ = ["TERMINATED", "Termination"]

# What a shell says of a process that SIGTERM has ended.
TERMINATED = 128 + signal.SIGTERM
# The handlers of Python.
DEFAULT_HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
NOTICE = b"\nCtrl-C: saving a checkpoint after this step; press it again to stop at once\n"


class Termination:
    """Context in which the first SIGTERM or SIGINT sets `requested`, its number; a second one has its usual effect.

    A handler that somebody else has set stays. A request that nobody has answered with an exception is raised again at the
    end of the context.
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
        # Workers of a data loader, which get Ctrl-C too, inherit this handler and go on.
        if number == signal.SIGINT and os.getpid() == self.process:
            # A stream may be busy; this writes at once.
            os.write(2, NOTICE)

    def __exit__(self, kind, error, trace):
        for number in self.replaced:
            signal.signal(number, DEFAULT_HANDLERS[number])
        if self.requested and kind is None:
            signal.raise_signal(self.requested)
