# SPDX-License-Identifier: Apache-2.0
"""Many small frames of a function as few: no row, no order and no type changes."""

from __future__ import annotations

import pandas as pd

from penstock.operators.frames import concatenated


def test_only_frames_alike_are_put_together() -> None:
    """Those that follow each other with the same labels and types, each with its values as they were."""
    frames = [
        pd.DataFrame({"a": [1], "b": ["x"]}),
        pd.DataFrame({"a": [2, 3], "b": ["y", None]}),
        pd.DataFrame({"a": [4.5], "b": ["z"]}),
        pd.DataFrame({"b": ["w"], "a": [5]}),
        pd.DataFrame({0: [6], 1: ["v"]}),
        pd.DataFrame({0: [7], 1: ["u"]}),
    ]
    made = concatenated(frames)
    assert [list(frame.columns) for frame in made] == [["a", "b"], ["a", "b"], ["b", "a"], [0, 1]]
    assert [len(frame) for frame in made] == [3, 1, 1, 2]
    assert made[0]["a"].tolist() == [1, 2, 3]
    assert str(made[0]["a"].dtype) == "int64"
    assert made[3][0].tolist() == [6, 7]
    assert concatenated([]) == []
