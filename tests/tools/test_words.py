# SPDX-License-Identifier: Apache-2.0
"""Words of pieces of text, and files divided into pieces: always what plain Python counts in the whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import SettingError
from wordcount import files, stages, words
from wordcount.job import differences

TEXT = st.text(alphabet="aB_9 é中\n.\t-Z\r", max_size=300)


def _counter(batches: list[pa.RecordBatch]) -> Counter[str]:
    total: Counter[str] = Counter()
    for batch in batches:
        for word, count in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            total[word] += count
    return total


@given(TEXT)
@settings(max_examples=examples(200), deadline=None)
def test_counts_are_those_of_a_regular_expression(text: str) -> None:
    """The byte table and the regular expression are one definition of a word."""
    data = text.encode()
    batch = words.count_words(data)
    assert batch.schema == words.SCHEMA
    assert _counter([batch]) == words.count_words_plainly(data)
    assert len(set(batch.column(0).to_pylist())) == batch.num_rows


def test_what_a_word_is() -> None:
    """Small ASCII letters, digits, underscores, and everything beyond ASCII as it is."""
    batch = words.count_words("Naïve naïve NAÏVE x_1-X_1".encode())
    assert _counter([batch]) == {"naïve": 2, "naÏve": 1, "x_1": 2}


@pytest.mark.parametrize("data", [b"a\0b", b"word \xff word", "é".encode()[:1]])
def test_what_is_not_text(data: bytes) -> None:
    """NUL bytes and broken UTF-8 are refused."""
    with pytest.raises(words.NotTextError):
        words.count_words(data)


@given(TEXT, st.integers(1, 40), st.integers(1, 60), st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_pieces_of_a_file_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece: int, span: int, parallelism: int
) -> None:
    """However a file is cut into ranges and pieces and shared out, each word is counted once."""
    path = tmp_path_factory.mktemp("text") / "f"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "RANGE", span)
        source = stages.TextSource(files.find_files([str(path)]).files, piece)
        batches = [batch for subtask in range(parallelism) for batch in source.read(subtask, parallelism)]
    assert _counter(batches) == words.count_words_plainly(text.encode())


def test_shares_are_even(tmp_path: Path) -> None:
    """A large file is cut, and no subtask has far more than another."""
    found = [files.TextFile("large", 10 * files.RANGE), *(files.TextFile(f"small{i}", 1000) for i in range(10))]
    loads = [sum(r.end - r.start for r in files.share_of(found, subtask, 3)) for subtask in range(3)]
    assert sum(loads) == 10 * files.RANGE + 10_000
    assert max(loads) - min(loads) <= files.RANGE


def test_a_file_that_is_not_text_further_back(tmp_path: Path) -> None:
    """The task that finds it names the file, not the piece that it was joined to."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("fine words")
    bad.write_bytes(b"word \xff")
    source = stages.TextSource((files.TextFile(str(good), 10), files.TextFile(str(bad), 6)))
    with pytest.raises(SettingError, match=rf"{bad}: it is not text"):
        list(source.read(0, 1))


def test_binary_files_of_folders_are_left_out(tmp_path: Path) -> None:
    """They are counted; a file named twice is read once."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    (tmp_path / "b.bin").write_bytes(b"\0")
    found = files.find_files([str(tmp_path), str(tmp_path / "sub" / "a.txt")])
    assert [Path(file.path).name for file in found.files] == ["a.txt"]
    assert (found.skipped, found.bytes) == (1, 1)


def test_demo_files_are_this_pythons() -> None:
    """Text of the standard library, no installed packages, within the limit."""
    found = files.find_demo_files()
    assert any(Path(file.path).name == "argparse.py" for file in found.files)
    assert not any("site-packages" in file.path for file in found.files)
    assert 1_000_000 < found.bytes <= files.DEMO_BYTES
    capped = files.find_demo_files(1_000_000)
    assert capped.capped
    assert capped.bytes <= 1_000_000


def test_sinks_write_what_is_read(tmp_path: Path) -> None:
    """Two sinks of one folder, one of them without rows."""
    sink = stages.CountsSink(str(tmp_path))
    batch = words.count_words(b"one two two")
    assert list(sink(iter([batch, batch]))) == []
    assert list(sink(iter([]))) == []
    assert stages.read_counts(str(tmp_path)).num_rows == 4
    assert stages.read_counts(str(tmp_path / "none")).num_rows == 0


def test_differences_are_told() -> None:
    """Missing, wrong and superfluous words, and words that come twice."""
    counts = pa.Table.from_batches([words.count_words(b"a b b")])
    assert differences(counts, Counter(a=1, b=2)) == []
    assert differences(counts, Counter(a=1, b=3, c=1)) == ["b: 2, not 3", "c: 0, not 1"]
    assert "more than one count" in differences(pa.concat_tables([counts, counts]), Counter(a=1, b=2))[0]
