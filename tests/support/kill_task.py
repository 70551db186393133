# SPDX-License-Identifier: Apache-2.0
"""A block of a preparation that kills its process, the first time that it runs."""

import os
import signal
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

__all__ = ["KilledOnce"]


class KilledOnce(PipelineStep):
    """Passes documents on; in the middle of the first task that runs, its process is killed. `file` says that it was."""

    type, name = "test", "kill"

    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def run(self, data, rank=0, world_size=1):
        for number, document in enumerate(data):
            if number == 3 and not os.path.exists(self.file):
                Path(self.file).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield document
