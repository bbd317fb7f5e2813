"""Pictures of finished trials' predictions, drawn in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.tasks.predictions import Predictions
from tutti.tracking.protocol import Tracker

Picture = Callable[[str, Predictions], bytes]
_logger = logging.getLogger(__name__)


class PictureDrawer:
    """Draws pictures of validation predictions in a thread, and logs them in the tracker.

    Args:
        picture: makes a PNG from a task's name and its validation predictions; None for none.
    """

    def __init__(self, *, folder: StudyFolder, tracker: Tracker, picture: Picture | None) -> None:
        self._folder, self._tracker, self._picture = folder, tracker, picture
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tutti-pictures")

    def submit(self, key: str) -> None:
        """Queues the pictures of a trial, one for each task. A failure is logged and does not affect the trial.

        Until they are drawn, a marker tells ``draw_owed`` of another process that they are owed.
        """
        if self._picture is None:
            return
        trial = self._folder.trial(key)
        with suppress(OSError):
            if not trial.path.is_symlink():
                trial.pictures_owed.touch()
        self._thread.submit(self._draw, key, self._picture).add_done_callback(_warn)

    def close(self) -> None:
        """Waits until all pictures are drawn."""
        self._thread.shutdown(wait=True)

    def _draw(self, key: str, picture: Picture) -> None:
        bank = Bank(self._folder.bank)
        for task, parts in bank.parts(key).items():
            if "validation" in parts:
                predictions = bank.predictions(key, task, "validation")
                self._tracker.log_picture(key, f"{predictions.kind.picture}/{task}", picture(task, predictions))
        self._folder.trial(key).pictures_owed.unlink(missing_ok=True)


def draw_owed(keys: Iterable[str], *, folder: StudyFolder, tracker: Tracker, picture: Picture | None) -> None:
    """Draws the pictures that an earlier driver owed these finished trials when it died."""
    with closing(PictureDrawer(folder=folder, tracker=tracker, picture=picture)) as drawer:
        for key in keys:
            if folder.trial(key).pictures_owed.is_file():
                drawer.submit(key)


def _warn(drawing: Future[None]) -> None:
    if error := drawing.exception():
        _logger.warning("The pictures of a trial were not drawn: %s", error)
