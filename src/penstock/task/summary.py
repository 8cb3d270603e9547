# SPDX-License-Identifier: Apache-2.0
"""An output that carries a summary of the rows and not the rows: written at their end, so it never holds them up."""

from __future__ import annotations

import pyarrow as pa

from penstock.graph import Summary
from penstock.record import RecordWriter
from penstock.shuffle import PartitionEnd


class SummaryWriter:
    """Takes a vertex's rows as a RecordWriter does, and writes what the summary makes of them at the finish."""

    def __init__(self, summary: Summary, writer: RecordWriter) -> None:
        self._rows = summary.start()
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch into account."""
        if batch.num_rows:
            self._rows.add(batch)

    def keeps(self, _: pa.RecordBatch) -> bool:
        """Tell whether this batch's memory is looked at again when `write` has returned: the summary's is."""
        return True

    def finish(self) -> PartitionEnd:
        """Write the summary and finish."""
        for batch in self._rows.rows():
            self._writer.write(batch)
        return self._writer.finish()

    def close(self) -> None:
        """Close the writer; idempotent."""
        self._writer.close()
