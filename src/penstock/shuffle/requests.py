# SPDX-License-Identifier: Apache-2.0
"""A question to another process, as the type of its answer: of a task to its host, of a host to the JobMaster."""

from __future__ import annotations

import typing
from typing import Any, ClassVar, Generic, TypeVar

A = TypeVar("A")


class Request(Generic[A]):
    """A message that is answered with an `A`. It travels by the name of its class."""

    __slots__ = ()

    METHOD: ClassVar[str]
    ANSWER: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        """`class Ask(Request[Told])` says both."""
        super().__init_subclass__()
        cls.METHOD = cls.__name__
        (cls.ANSWER,) = typing.get_args(vars(cls)["__orig_bases__"][0])
