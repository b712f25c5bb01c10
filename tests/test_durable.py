import json
import os

import pytest

from gkn.system.files import CorruptFile, make_folder, read_sealed_json, unfinished, write, write_sealed_json


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")

    def fails(*_):
        raise OSError(28, "No space left on device")

    for call in ("gkn.system.files.sync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(call, fails)
            with pytest.raises(OSError, match=r"No space left on device.*file") as caught:
                write(path, b"new")
            assert (caught.value.errno, caught.value.filename) == (28, str(path))  # and says where
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]
    write(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    """A rename that reaches the disk before the bytes do would leave an empty file after a power cut."""
    order = []
    rename, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), rename(a, b)))
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    write(tmp_path / "file", b"x")
    assert [os.path.basename(entry).partition(".tmp-")[0] for entry in order] == ["file", "rename", tmp_path.name]


def test_unfinished_files_are_ours_alone(tmp_path):
    for name in ("a.h5", "a.h5.tmp-12-0123abcd", "b.h5.tmp-12-0123abcd", "a.h5.tmp-old", "notes.tmp-1-2"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in unfinished(tmp_path, lambda name: name == "a.h5")] == ["a.h5.tmp-12-0123abcd"]


def test_new_folders_are_synced_into_their_parents(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("gkn.system.files.sync", lambda path: synced.append(path))
    make_folder(tmp_path / "a/b")
    assert set(synced) == {tmp_path, tmp_path / "a"}


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
