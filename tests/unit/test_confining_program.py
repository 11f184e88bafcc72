"""Which file confines a browser: the compiled one only as long as it is of the source."""

import os
import py_compile
from pathlib import Path

import pytest

from pwgrid.worker.browser.confined_paths import program_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "program.py"
    source.write_text("print('before')\n")
    return source


def compiled(source: Path, mode: py_compile.PycInvalidationMode = py_compile.PycInvalidationMode.TIMESTAMP) -> Path:
    return Path(str(py_compile.compile(str(source), doraise=True, invalidation_mode=mode)))


def test_what_is_not_compiled_is_executed_as_it_is(source: Path) -> None:
    assert program_of(source) == source


def test_what_is_compiled_is_executed_so(source: Path) -> None:
    file = compiled(source)
    assert program_of(source) == file


def test_a_compiled_file_of_another_size_is_left_out(source: Path) -> None:
    compiled(source)
    written = source.stat()
    source.write_text("print('afterwards')\n")
    os.utime(source, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert program_of(source) == source


def test_a_compiled_file_of_another_time_is_left_out(source: Path) -> None:
    compiled(source)
    os.utime(source, (1, 1))
    assert program_of(source) == source


def test_a_compiled_file_that_does_not_tell_of_when_it_is_is_left_out(source: Path) -> None:
    compiled(source, py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert program_of(source) == source


def test_half_a_compiled_file_is_left_out(source: Path) -> None:
    file = compiled(source)
    file.write_bytes(file.read_bytes()[:10])
    assert program_of(source) == source
