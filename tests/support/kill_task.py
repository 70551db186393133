# SPDX-License-Identifier: Apache-2.0
"""Blocks of a preparation whose first task dies: its process, or the node that it runs on."""

import os
import signal
import time
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

__all__ = ["KilledOnce", "WaitsForItsNode"]


class KilledOnce(PipelineStep):
    """Passes documents on; in the middle of the first task that runs, its process is killed. `file` says that it was."""

    type, name = "test", "kill"

    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def run(self, data, rank=0, world_size=1):
        for number, document in enumerate(data):
            if number == 3 and not os.path.exists(self.file):
                self.die()
            yield document

    def die(self):
        Path(self.file).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class WaitsForItsNode(KilledOnce):
    """Waits there for the end of its Ray node instead; `file` holds the process id of the node."""

    def die(self):
        written = Path(f"{self.file}.part")
        written.write_text(os.environ["RAY_RAYLET_PID"], encoding="utf-8")
        written.rename(self.file)
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)
