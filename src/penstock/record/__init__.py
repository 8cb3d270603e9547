# SPDX-License-Identifier: Apache-2.0
"""Record batches on their way into and out of buffers: partitioners, hashes, codec, framing, completeness."""

from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import Message, MessageAssembler, frame_message, frames
from penstock.record.partitioners import Partitioner, PartitionerSpec
from penstock.record.record_writer import OutputFlusher, RecordWriter
from penstock.record.spark_hash import spark_hash, spark_partition_ids
from penstock.record.word_hash import fast_partition_ids, word_hash

__all__ = [
    "BatchCodec",
    "CompletenessCounter",
    "Message",
    "MessageAssembler",
    "OutputFlusher",
    "Partitioner",
    "PartitionerSpec",
    "RecordWriter",
    "fast_partition_ids",
    "frame_message",
    "frames",
    "spark_hash",
    "spark_partition_ids",
    "word_hash",
]
