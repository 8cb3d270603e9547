# SPDX-License-Identifier: Apache-2.0
"""Typed messages in control messages and back, by the types of their fields.

A message is a frozen dataclass; as a control message it is a dictionary with a key for each field. A field is a
number, text, bytes, an id or descriptor with `to_wire` and `from_wire`, a `PartitionKind`, a StrEnum, another message
(a tuple of its fields), one of several messages (its name, and that tuple), or one of these in a tuple, a dictionary
or beside None. `object` is passed on as it is.

A value that does not fit its field's type, or has no field, is a ProtocolError that names message and field. A field
that is not there has its default. Limit: keys of dictionaries are text on the wire, so one with other keys travels as
pairs.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from penstock.errors import ProtocolError, SettingError
from penstock.shuffle.kinds import PartitionKind

M = TypeVar("M")

Plain = dict[str, Any]
"""A control message: text keys, and values that MessagePack knows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The answer that says no more than that it was done."""


def to_wire(message: object) -> Plain:
    """A message as a control message."""
    kind: Any = type(message)
    return {name: form.write(getattr(message, name)) for name, form in _forms(kind).items()}


def from_wire(kind: type[M], plain: Mapping[str, Any]) -> M:
    """Inverse of `to_wire`; raises ProtocolError."""
    known: Any = kind
    forms = _forms(known)
    if not plain.keys() <= forms.keys():
        raise ProtocolError(f"{kind.__name__} has no field {', '.join(sorted(plain.keys() - forms.keys()))}")
    values: Plain = {}
    for name, value in plain.items():
        try:
            values[name] = forms[name].read(value)
        except (TypeError, ValueError, KeyError, SettingError) as error:
            raise ProtocolError(f"{kind.__name__}.{name} can't be {value!r:.200}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ProtocolError(f"{kind.__name__} is not complete: {error}") from error


class _Form(NamedTuple):
    """The way in which values of one type are written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@functools.cache
def _forms(kind: type[Any]) -> dict[str, _Form]:
    hints = typing.get_type_hints(kind)
    return {field.name: _form(hints[field.name]) for field in dataclasses.fields(kind)}


def _form(hint: Any) -> _Form:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(_form(arguments[0]))
    if origin is tuple:
        return _fixed([_form(argument) for argument in arguments], tuple)
    if origin is dict:
        return _dictionary(arguments[0], _form(arguments[1]))
    if origin in (types.UnionType, typing.Union):
        kinds = [argument for argument in arguments if argument is not types.NoneType]
        return _one_of(kinds) if len(kinds) == len(arguments) else _optional(_form(kinds[0]))
    if hint in (int, float, str, bool, bytes):
        return _Form(_same, functools.partial(_plain, hint))
    if hint is object:
        return _Form(_same, _same)
    if hint is PartitionKind:
        return _Form(lambda kind: kind.label, PartitionKind.from_label)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _Form(lambda value: value.value, hint)
    if hasattr(hint, "to_wire"):
        return _Form(lambda value: value.to_wire(), lambda plain: hint.from_wire(tuple(plain)))
    forms = _forms(hint)
    return _fixed(list(forms.values()), lambda values: hint(*values), list(forms))


def _same(value: Any) -> Any:
    return value


def _plain(kind: type[Any], value: Any) -> Any:
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    raise TypeError(f"it must be {kind.__name__}")


def _sequence(inner: _Form) -> _Form:
    return _Form(
        lambda values: [inner.write(value) for value in values],
        lambda plain: tuple(inner.read(value) for value in _listed(plain)),
    )


def _fixed(inner: list[_Form], make: Callable[[Any], Any], names: list[str] | None = None) -> _Form:
    """A tuple of so many values, or a message as one."""

    def write(value: Any) -> tuple[Any, ...]:
        values = value if names is None else [getattr(value, name) for name in names]
        return tuple(form.write(each) for form, each in zip(inner, values, strict=True))

    def read(plain: Any) -> Any:
        return make(tuple(form.read(each) for form, each in zip(inner, _listed(plain), strict=True)))

    is_plain = names is not None and len(names) > 1 and all(form.write is _same for form in inner)
    return _Form(operator.attrgetter(*names) if names and is_plain else write, read)


def _dictionary(key: Any, value: _Form) -> _Form:
    if key is str:
        return _Form(
            lambda items: {name: value.write(each) for name, each in items.items()},
            lambda plain: {name: value.read(each) for name, each in dict(plain).items()},
        )
    pairs = _sequence(_fixed([_form(key), value], tuple))
    return _Form(lambda items: pairs.write(items.items()), lambda plain: dict(pairs.read(plain)))


def _one_of(kinds: list[Any]) -> _Form:
    """One of several messages: its name, and the message."""
    forms = {kind.__name__: _form(kind) for kind in kinds}

    def write(value: Any) -> tuple[str, Any]:
        name = type(value).__name__
        return name, forms[name].write(value)

    def read(plain: Any) -> Any:
        name, value = _listed(plain)
        return forms[name].read(value)

    return _Form(write, read)


def _optional(inner: _Form) -> _Form:
    return _Form(
        lambda value: None if value is None else inner.write(value),
        lambda plain: None if plain is None else inner.read(plain),
    )


def _listed(plain: Any) -> Any:
    if not isinstance(plain, list | tuple):
        raise TypeError("it must be a list")
    return plain
