import json
import os

import pytest

from gkn.durable import CorruptFile, read_sealed_json, remove_unfinished, replacing, write_sealed_json


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def stopped_half_way():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped_half_way()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_a_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    """A rename that reaches the disk before the bytes do would leave an empty file after a power cut."""
    order = []
    rename, fsync = os.rename, os.fsync
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append("rename"), rename(a, b)))
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("x")
    assert [entry if entry == "rename" else os.path.basename(entry)[:4] for entry in order] == [
        "file",
        "rename",
        tmp_path.name[:4],
    ]


def test_unfinished_files_are_removed(tmp_path):
    (tmp_path / "a.h5.tmp-12-ab").write_text("x")
    (tmp_path / "a.h5").write_text("x")
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["a.h5"]


def test_sealed_json(tmp_path):
    path = tmp_path / "x.json"
    value = {"n": 3, "list": [1, 2.5, None, "é"]}
    write_sealed_json(path, value)
    assert read_sealed_json(path) == value
    good = path.read_bytes()
    for bad in (good.replace(b"3", b"4", 1), good + b" ", good.replace(b" ", b"\t", 1), good[:-5], b"[1]", b"[" * 200_000, b""):
        path.write_bytes(bad)
        with pytest.raises(CorruptFile, match=r"x\.json"):
            read_sealed_json(path)
    path.write_bytes(json.dumps({**value, "sha256": "0" * 64}).encode())
    with pytest.raises(CorruptFile, match="changed since it was written"):
        read_sealed_json(path)
    path.write_bytes(good)
    with pytest.raises(CorruptFile, match="at most 10"):
        read_sealed_json(path, max_bytes=10)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_sealed_json(path, {"x": float("nan")})
