# SPDX-License-Identifier: Apache-2.0
"""The host that a task runs on, as far as a shuffle service may use it.

The engine attaches each task to the environment process of its host, whatever service moves its data: over this line
the task gets its orders and is told to stop. A service gets it as the `host` of its context. One that keeps its data
elsewhere needs `check_cancelled`, and what ends the task's one wait: sockets that the wait is to `watch`, a `waker`
for threads of its own, or `wake_in`. One that keeps it in the environment process asks for the `data_plane`; only
then is the memory of the host mapped. Any thread may call.

Services never wait. The engine does, by `TaskWait`, for all that may come to a task at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from penstock.shuffle.requests import Request

A = TypeVar("A")


class SharedSegments(Protocol):
    """The memory of a host, which its environment and its tasks map."""

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""

    def view(self, index: int, offset: int = 0, length: int | None = None, /) -> memoryview:
        """The bytes of a segment, or of a part of it. Raises ProtocolError for what lies outside."""


class HostPort(Protocol):
    """The calls of the environment to one writer or gate. Called as frames are received; must not wait.

    A ProtocolError that is raised here ends the attachment.
    """

    def on_slice(self, channel: int, segment: int, offset: int, length: int, /) -> None:
        """Data of a channel lies here."""

    def on_event(self, channel: int, data_type: int, payload: bytes, /) -> None:
        """An event of a channel, in order with its slices."""

    def on_error(self, channel: int, error: BaseException, /) -> None:
        """A channel can't be read, or what was written can't be kept."""

    def on_grant(self, segments: tuple[int, ...], /) -> None:
        """Segments to write into."""

    def on_store(self, folder: str, /) -> None:
        """Memory has come to its end: store in this folder."""


class HostDataPlane(Protocol):
    """The environment's data plane as one task uses it: segments, and ports for what is said of them."""

    @property
    def memory(self) -> SharedSegments:
        """The host's memory. Views of it are good until the task is detached."""

    def open_port(self, port: HostPort, /) -> int:
        """Give a writer or gate its number."""

    def close_port(self, number: int, /) -> None:
        """Forget a writer or gate; frames for it are dropped from now on."""

    def send(self, frames: bytes, /) -> None:
        """Send whole frames (`penstock.link.frames`); raises EnvironmentLostError when the environment is gone."""


class TaskHost(Protocol):
    """The host of one task."""

    @property
    def environment(self) -> str:
        """The name of its environment process."""

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if the task was told to stop; cheap enough for every batch."""

    def look(self) -> None:
        """Take what has arrived, without waiting."""

    def waker(self) -> Callable[[], None]:
        """Give a function that ends the task's wait, or the next one. Any thread may call it at any time."""

    def wake_in(self, seconds: float) -> None:
        """End the task's wait after so many seconds, for a service that then wants to look again."""

    def watch(self, descriptor: int, arrived: Callable[[], None], *, writes: bool = False) -> None:
        """Call `arrived` when something can be read here, or with `writes` written, and end the task's wait.

        It is called where the task waits, must not wait or raise, and reads what is there, or unwatches the
        descriptor: else it is called again at once.
        """

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor, which is still open; idempotent."""

    def ask(self, request: Request[A], timeout: float | None = None) -> A:
        """Ask the environment or, through it, the JobMaster; raises what the other side raised.

        Raises ControlError when there is no answer within `timeout` seconds (None: no limit).
        """

    def hand_in(self, request: Request[Any]) -> None:
        """A last request of something that ends. An environment that is gone has given everything back already."""

    def data_plane(self) -> HostDataPlane:
        """The environment's data plane; its memory is mapped at the first call."""


class TaskWait(Protocol):
    """The one wait of a task, as the engine uses it; a service has the other end of it in its `TaskHost`."""

    @property
    def arrivals(self) -> int:
        """The number of things that have come for the task: it changes when any has."""

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds; None: no limit, 0: only look.

        Read `arrivals` before you look for something, so that nothing comes unnoticed. Raises TaskCancelledError and
        EnvironmentLostError. Any thread.
        """
