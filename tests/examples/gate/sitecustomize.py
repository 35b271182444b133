"""On the PYTHONPATH of examples that are watched: their ranks stop in a step until the test has looked.

DDPTOP_TEST_GATE is `FOLDER STEP`: having finished its optimizer step STEP, a rank makes FOLDER/reached and
waits for FOLDER/looked. The examples know nothing of it.
"""

import itertools
import os
import time
from pathlib import Path

from ddptop.training.import_hook import when_imported

DEADLINE_S = 100.0


def _hold(module):
    folder, step = os.environ["DDPTOP_TEST_GATE"].rsplit(" ", 1)
    steps = itertools.count()

    def after(*_):
        if next(steps) == int(step):
            Path(folder, "reached").touch()
            end = time.monotonic() + DEADLINE_S
            while not Path(folder, "looked").exists() and time.monotonic() < end:
                time.sleep(0.02)

    module.register_optimizer_step_post_hook(after)


if "DDPTOP_TEST_GATE" in os.environ:
    when_imported("torch.optim.optimizer", _hold)
