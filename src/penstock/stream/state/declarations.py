# SPDX-License-Identifier: Apache-2.0
"""The state that a processor declares in its `init`: variables by name, each checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from penstock.errors import PlanError
from penstock.operators.keys import refuse_ungroupable
from penstock.stream.state.stored import TIMERS
from penstock.stream.state.times import PROCESSING
from penstock.stream.state.variables import LIST, MAP, VALUE, VariableSpec

SchemaOf = Callable[[object], pa.Schema]
"""Makes a schema of what users write for one: a DDL string, a StructType, an Arrow schema."""


class Declarations:
    """Those of one processor; `schema_of` reads the schemas as users write them."""

    def __init__(self, processor: str, time_mode: str, schema_of: SchemaOf) -> None:
        self._processor = processor
        self._time_mode = time_mode
        self._schema_of = schema_of
        self._specs: dict[str, VariableSpec] = {}
        self._shared: dict[str, VariableSpec] = {}
        self._dropped: set[str] = set()
        self._is_open = True

    @property
    def specs(self) -> tuple[VariableSpec, ...]:
        """The variables, in the order in which they were declared."""
        return tuple(self._specs.values())

    @property
    def shared(self) -> tuple[VariableSpec, ...]:
        """The maps that are the same in all tasks."""
        return tuple(self._shared.values())

    @property
    def dropped(self) -> frozenset[str]:
        """The variables that a checkpoint may hold and that are to be forgotten."""
        return frozenset(self._dropped)

    def close(self) -> None:
        """Take no more: `init` has returned."""
        self._is_open = False

    def value(self, name: str, schema: object, ttl: int | None) -> VariableSpec:
        """One value for each key."""
        return self._declare(VariableSpec(name, VALUE, self._schema(name, schema), None, ttl))

    def rows(self, name: str, schema: object, ttl: int | None) -> VariableSpec:
        """A list for each key."""
        return self._declare(VariableSpec(name, LIST, self._schema(name, schema), None, ttl))

    def entries(self, name: str, keys: object, schema: object, ttl: int | None) -> VariableSpec:
        """A map for each key."""
        own = self._schema(name, keys)
        refuse_ungroupable(own, own.names)
        return self._declare(VariableSpec(name, MAP, self._schema(name, schema), own, ttl))

    def shared_entries(self, name: str, keys: object, schema: object) -> VariableSpec:
        """A map that is the same in all tasks."""
        spec = self.entries(name, keys, schema, None)
        self._shared[name] = self._specs.pop(name)
        return spec

    def drop(self, name: str) -> None:
        """Forget a variable, of this run or of the checkpoint."""
        if not self._is_open:
            raise PlanError(f"{self._processor}: deleteIfExists({name!r}) is for init()")
        self._specs.pop(name, None)
        self._shared.pop(name, None)
        self._dropped.add(name)

    def _schema(self, name: str, schema: object) -> pa.Schema:
        found = self._schema_of(schema)
        if not len(found):
            raise PlanError(f"{self._processor}: the state {name!r} has no columns: declare one at least")
        return found

    def _declare(self, spec: VariableSpec) -> VariableSpec:
        if not self._is_open:
            raise PlanError(
                f"{self._processor}: the state {spec.name!r} is declared after init(), and a key's rows may be there"
                " already: declare all states in init()"
            )
        if not isinstance(spec.name, str) or not spec.name or spec.name == TIMERS:
            raise PlanError(f"{self._processor}: {spec.name!r} is no name of a state")
        if spec.name in self._specs or spec.name in self._shared:
            raise PlanError(f"{self._processor}: the state {spec.name!r} is declared twice")
        if spec.ttl is not None and self._time_mode != PROCESSING:
            raise PlanError(
                f"{self._processor}: the state {spec.name!r} has a time to live, which is a time of the clock: say "
                "timeMode='ProcessingTime'"
            )
        if spec.ttl is not None and spec.ttl <= 0:
            raise PlanError(f"{self._processor}: the state {spec.name!r} is to live for {spec.ttl} ms: say 1 or more")
        spec = replace(spec, replaces=spec.name in self._dropped)
        self._specs[spec.name] = spec
        return spec
