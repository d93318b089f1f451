"""State files that a loss of power has cut off."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pytest

from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.torn import check_changes
from strobe.model.errors import Damaged

FRAME = struct.Struct("<8sBiii")


def compressed(*blocks: bytes) -> bytes:
    return b"".join(FRAME.pack(b"LZ4Block", 0x16, len(block), len(block), 7) + block for block in (*blocks, b""))


def test_a_file_of_changes_is_whole_at_its_last_byte_and_at_no_other(tmp_path: Path) -> None:
    path, whole = tmp_path / "7.changelog", compressed(b"some changes", b"and more")
    path.write_bytes(whole)
    check_changes(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"empty|cut off"):
            check_changes(path)
    path.write_bytes(whole[: FRAME.size] + bytes(len(whole) - FRAME.size))  # its length was durable, its rest was not
    with pytest.raises(ValueError, match="not as it was compressed"):
        check_changes(path)


def test_changes_in_another_compression_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "7.delta"
    path.write_bytes(b"\x28\xb5\x2f\xfd and a frame of Zstandard")
    check_changes(path)


def lay_out(checkpoint: Path, *, sst: bytes) -> None:
    """The checkpoint of a query whose state has a full copy at its last version."""
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {"spark.sql.shuffle.partitions": "1"}})
    files = {"metadata": '{"id":"x"}', "offsets/0": f"v1\n{head}\n{{}}", "commits/0": 'v1\n{"nextBatchWatermarkMs":0}'}
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    place = checkpoint / "state/0/0"
    (place / "SSTs").mkdir(parents=True)
    (place / "SSTs/000008-x.sst").write_bytes(sst)
    stored = {"localFileName": "000008.sst", "dfsSstFileName": "000008-x.sst", "sizeBytes": 40}
    with zipfile.ZipFile(place / "1.zip", "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [stored], "logFiles": [], "numKeys": 1}))


def test_a_full_copy_needs_all_bytes_of_its_files(tmp_path: Path) -> None:
    lay_out(tmp_path / "whole", sst=bytes(40))
    spark_checkpoint.check(tmp_path / "whole")
    lay_out(tmp_path / "torn", sst=bytes(39))
    with pytest.raises(Damaged, match=r"SSTs/000008-x\.sst cannot be read: it is cut off"):
        spark_checkpoint.check(tmp_path / "torn")
