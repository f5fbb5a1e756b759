"""Signs of life of a job that may work long at one thing: a thread of it touches a file.

A process that is stopped, and one whose storage does not answer, gives none. Neither says by itself
that it does nothing, and the scheduler does not know.
"""

import contextlib
import threading
from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import own_task
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.troubles.hangs import SIGN_SECONDS


@contextlib.contextmanager
def signs_of_life(run_dir: RunDir, seconds: float = SIGN_SECONDS) -> Iterator[None]:
    """Give a sign of life every so many seconds during the block, the first one at once."""
    path = run_dir.alive(own_task().rsplit(".", 1)[0])
    over = threading.Event()

    def give() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):  # storage fails for a moment, or the run was removed
                _files.make_folder(path.parent)
                path.touch()
            over.wait(seconds)

    # Where storage does not answer, nobody waits for the thread.
    threading.Thread(target=give, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        over.set()
