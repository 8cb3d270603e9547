# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: what every shuffle service must do, whatever it is made of.

A plug-in's test suite subclasses it and provides one fixture; pytest collects the rest:

    import pytest
    from penstock.shuffle import PartitionKind
    from penstock.testing.conformance import ShuffleServiceConformance

    class TestMyService(ShuffleServiceConformance):
        kinds = (PartitionKind.PIPELINED_BOUNDED, PartitionKind.BLOCKING_HASH)

        @pytest.fixture
        def service(self):
            harness = MyHarness()        # a ServiceUnderTest, see there
            yield harness
            harness.close()

Rules: each test is named after the promise it checks and ends with every host holding nothing. Threads have
deadlines, nothing sleeps. Batches may be merged or cut on the way, rows may not: the suite compares rows.
Non-goals: speed, and what a plug-in promises beyond the interface.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ClassVar

import pytest

pytest.register_assert_rewrite(
    "penstock.testing.conformance_exchange",
    "penstock.testing.conformance_data",
    "penstock.testing.conformance_flow",
    "penstock.testing.conformance_answers",
    "penstock.testing.conformance_ranges",
    "penstock.testing.conformance_hybrid",
    "penstock.testing.conformance_streams",
    "penstock.testing.conformance_overtaking",
)

from penstock.shuffle import PartitionKind  # noqa: E402 - assertions are rewritten at the import below
from penstock.testing.conformance_answers import AnswerConformance  # noqa: E402
from penstock.testing.conformance_data import DataConformance  # noqa: E402
from penstock.testing.conformance_exchange import JOB, ConformanceExchange, ServiceUnderTest  # noqa: E402
from penstock.testing.conformance_flow import FlowConformance  # noqa: E402
from penstock.testing.conformance_hybrid import HybridConformance  # noqa: E402
from penstock.testing.conformance_ranges import RangeConformance  # noqa: E402

__all__ = ["JOB", "LOSES_A_HOST", "ConformanceExchange", "ServiceUnderTest", "ShuffleServiceConformance"]

LOSES_A_HOST = "test_a_lost_partition_says_so"
"""The test that goes on when the service has asked a lost host for as long as it may: give it short limits."""


class ShuffleServiceConformance(
    DataConformance, FlowConformance, AnswerConformance, RangeConformance, HybridConformance
):
    """Subclass it, name the kinds, provide the fixture `service`.

    `kinds`: the partition kinds the service has; the subclass has no test of flags that none of them has.
    `clog_limit`: a back-pressured partition that is not read must stop its writer within this many bytes.
    `request_timeout`: the seconds after which the service under test, as the harness configures it, answers a request
    for a partition that no task writes; None where it leaves that to its caller, and then there is no test of it.
    """

    kinds: ClassVar[tuple[PartitionKind, ...]] = (PartitionKind.PIPELINED_BOUNDED,)
    clog_limit: int = 16 << 20
    request_timeout: float | None = None

    def __init_subclass__(cls) -> None:
        """Leave out the tests that have nothing to run with."""
        super().__init_subclass__()
        lacking = {fixture for fixture, fits in _KINDS_BY_FIXTURE.items() if not any(map(fits, cls.kinds))}
        if cls.request_timeout is None:
            lacking.add("own_deadline")
        for name in [name for name in dir(cls) if name.startswith("test_")]:
            test = next(vars(base)[name] for base in cls.__mro__ if vars(base).get(name) is not None)
            setattr(cls, name, None if lacking & inspect.signature(test).parameters.keys() else test)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of the master; override it where the master lives on a loop of its own."""
        return asyncio.run(coroutine)

    @pytest.fixture
    def exchange(self, service: ServiceUnderTest) -> Iterator[ConformanceExchange]:
        """The workbench, closed and counted after each test."""
        workbench = ConformanceExchange(service, self.call)
        yield workbench
        workbench.close()

    @pytest.fixture
    def own_deadline(self) -> float | None:
        """The seconds of `request_timeout`, of a service that has them."""
        return self.request_timeout

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test with every kind that has the flags it is about."""
        for fixture, fits in _KINDS_BY_FIXTURE.items():
            if fixture in metafunc.fixturenames:
                metafunc.parametrize(fixture, [k for k in self.kinds if fits(k)], ids=lambda kind: kind.label)


_KINDS_BY_FIXTURE: dict[str, Callable[[PartitionKind], bool]] = {
    "kind": lambda _: True,
    "pipelined_kind": lambda kind: kind.pipelined and kind.back_pressured,
    "blocking_kind": lambda kind: not kind.pipelined,
    "hybrid_kind": lambda kind: kind.is_hybrid,
    "kept_kind": lambda kind: kind.is_hybrid and kind.is_kept,
    "selective_kind": lambda kind: kind.is_hybrid and not kind.is_kept,
    "rereadable_kind": lambda kind: kind.is_kept,
    "bounded_kind": lambda kind: kind.back_pressured and kind.bounded,
    "persistent_kind": lambda kind: kind.persistent,
}
