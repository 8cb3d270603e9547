# SPDX-License-Identifier: Apache-2.0
"""The decision whether a job that got no slots, or lost them, is planned once more. Its submitter asks for it.

A job whose slots went is planned anew for those that are left. Does it not fit those either, the JobMaster lets it
wait for slots to come back, and when they are there it is planned anew for them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import NoReturn

from penstock.errors import SlotsError, SlotsLostError
from penstock.job.core.execution.capacity import SlotsReturnedError

_LOG = logging.getLogger(__name__)


class Replanning:
    """The plans of one job, one after the other."""

    def __init__(self) -> None:
        self._lost = ""

    @property
    def may_wait(self) -> bool:
        """True if the next plan waits for slots it lacks: an earlier one had them."""
        return bool(self._lost)

    @contextlib.contextmanager
    def naming_loss(self) -> Iterator[None]:
        """A SlotsError out of this block, in which the job is planned, also says what went before."""
        try:
            yield
        except SlotsLostError:  # of a persisted stream's job, which is run for this one and says it itself
            raise
        except SlotsError as error:
            self._refuse(error)

    def again_after(self, error: SlotsError) -> None:
        """Its last plan ended so: returns where it is to be planned once more, else raises what to tell the user."""
        if isinstance(error, SlotsReturnedError):
            _LOG.warning("a job is planned again for the slots that came back: %s", error)
        elif isinstance(error, SlotsLostError):
            _LOG.warning("a job is planned again for the slots that are left: %s", error)
            self._lost = str(error)
        else:
            self._refuse(error)

    def _refuse(self, error: SlotsError) -> NoReturn:
        if self._lost:
            raise SlotsLostError(f"{self._lost}. Planned again, {error}") from error
        raise error
