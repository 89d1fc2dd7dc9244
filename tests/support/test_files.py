import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlight._support.files import appending, remove_torn, replacing, user_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def write_and_raise(writer, content, error):
    with writer as file:
        file.write(content)
        file.flush()
        assert os.fstat(file.fileno()).st_size
        raise error


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path, "w") as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_in_the_middle_leaves_the_old_file_and_no_litter(tmp_path, error):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        write_and_raise(replacing(path), b"new", error)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_at_the_end_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left") as caught, replacing(path) as file:
        file.write(b"new")
    monkeypatch.undo()
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_file_and_folder_are_synced_before_and_after_the_rename(tmp_path, monkeypatch):
    path, calls = tmp_path / "a.bin", []
    sync, rename = os.fsync, os.replace

    def noting_sync(number):
        size = os.fstat(number).st_size
        folder = os.path.samestat(os.fstat(number), os.stat(tmp_path))
        calls.append("folder" if folder else f"file of {size}")
        sync(number)

    def noting_rename(*args):
        calls.append("rename")
        rename(*args)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "replace", noting_rename)
    with replacing(path) as file:
        file.write(b"four")
    assert calls == ["file of 4", "rename", "folder"]


@pytest.mark.parametrize("writer", [replacing, appending])
def test_errors_name_the_path_that_was_asked_for(tmp_path, writer):
    path = tmp_path / "a.bin"
    words = r"No space left on device: '.*/a\.bin'"
    with pytest.raises(OSError, match=words) as caught, writer(path):
        full()
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match=r"wrong page: '.*/a\.bin'"), writer(path):
        raise OSError("wrong page")
    nowhere = tmp_path / "no folder" / "a.bin"
    with pytest.raises(FileNotFoundError) as caught, writer(nowhere):
        pass
    assert caught.value.filename == str(nowhere)


def test_an_error_of_another_file_is_left_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "copy") as file:
        file.write((tmp_path / "original").read_bytes())
    assert str(caught.value.filename) == str(tmp_path / "original")
    assert names(tmp_path) == []


def test_writers_of_one_path_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path, "w") as first:
        first.write("first")
        with replacing(path, "w") as second:
            second.write("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"

    def write(number):
        with replacing(path, "w") as file:
            file.writelines([f"{number}\n"] * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert len(set(path.read_text().split())) == 1
    assert len(path.read_text().split()) == 1000
    assert names(tmp_path) == ["a.txt"]


def test_text_is_utf_8_and_lines_end_as_told(tmp_path):
    path = tmp_path / "a.csv"
    with replacing(path, "w", newline="") as file:
        file.write("é\r\n")
    with appending(path, "a", newline="") as file:
        file.write("ü\r\n")
    assert path.read_bytes() == "é\r\nü\r\n".encode()


def test_a_parquet_table_can_be_written_to_it(tmp_path):
    path = tmp_path / "a.parquet"
    with replacing(path) as file:
        pq.write_table(pa.table({"a": [1, 2]}), file)
    assert pq.read_table(path)["a"].to_pylist() == [1, 2]


def test_what_was_appended_halfway_is_taken_back(tmp_path):
    path = tmp_path / "a.txt"
    with appending(path, "a") as file:
        file.write("one\n")
    with pytest.raises(OSError, match="No space"):
        write_and_raise(appending(path, "a"), "tw", OSError(errno.ENOSPC, "No space left"))
    assert path.read_text() == "one\n"


def test_only_part_files_of_dead_processes_and_old_ones_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "parts").mkdir()
    own, day = os.getpid(), 24 * 60 * 60
    kept = [f".a.ckpt.{own}.0123abcd.part", ".a.ckpt.1.0123abcd.part", ".mine.part", "a.part"]
    torn = [f".a.ckpt.{dead.pid}.0123abcd.part", f"parts/.b.pt.{dead.pid}.89abcdef.part"]
    torn += [f".a.ckpt.{own}.00000000.part", f".a.ckpt.{2**70}.0123abcd.part"]
    for name in kept + torn:
        (tmp_path / name).write_bytes(b"half")
    old = (tmp_path / torn[2]).stat().st_mtime - day - 60
    os.utime(tmp_path / torn[2], (old, old))
    remove_torn(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(kept)
    remove_torn(tmp_path / "nowhere")


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~") == tmp_path
    assert user_path(Path("~/runs")) == tmp_path / "runs"
    assert user_path("runs/~") == Path("runs/~")
