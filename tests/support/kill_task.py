# SPDX-License-Identifier: Apache-2.0
"""A block of a corpus preparation whose first task dies together with the Ray node that it runs on."""

import os
import time
from pathlib import Path

from datatrove.pipeline.base import PipelineStep


class WaitsForItsNode(PipelineStep):
    """Pass documents through; the first task writes its Ray node's process id to `file`, then waits for the node to end."""

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
        written = Path(f"{self.file}.part")
        written.write_text(os.environ["RAY_RAYLET_PID"], encoding="utf-8")
        written.rename(self.file)
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)
