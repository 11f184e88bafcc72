"""Which index, which pip: as pip itself would decide."""

import os
from pathlib import Path

import pytest

from tools.pip_wheel import DEFAULT_INDEX, Index, Offer, index_of, newest


def offer(name: str, requires: str = ">=3.9", *, yanked: bool = False) -> Offer:
    return Offer(f"https://index/files/{name}", "", requires, yanked)


def test_the_newest_final_release_that_runs_on_this_python_is_taken() -> None:
    offers = [
        offer("pip-9.0-py2.py3-none-any.whl", ""),
        offer("pip-25.2-py3-none-any.whl"),
        offer("pip-25.10-py3-none-any.whl"),
        offer("pip-26.0-py3-none-any.whl", ">=3.12"),
        offer("pip-25.11-py3-none-any.whl", yanked=True),
        offer("pip-27.0b1-py3-none-any.whl"),
        offer("pip-28.0.tar.gz"),
        offer("pipx-99.0-py3-none-any.whl"),
    ]
    for python, version in (((3, 11), (25, 10)), ((3, 12), (26, 0)), ((3, 8), (9, 0))):
        found = newest(offers, python)
        assert found is not None
        assert found.version == version


def test_an_index_without_a_pip_for_this_python_yields_none() -> None:
    assert newest([offer("pip-26.0-py3-none-any.whl", ">=3.12, !=3.12.0")], (3, 11)) is None
    assert newest([], (3, 11)) is None


def test_without_any_setting_it_is_the_public_index(tmp_path: Path) -> None:
    assert index_of({"HOME": str(tmp_path)}, tmp_path) == Index(DEFAULT_INDEX)


def test_the_user_s_file_beats_the_host_s_and_variables_beat_both(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environ = {"HOME": str(home)}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_text("[global]\nindex-url = https://host/\ncert = /host.pem\n")
    assert index_of(environ, tmp_path).url == "https://host/"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[install]\nindex_url = https://user/\n[global]\nindex-url = no\n")
    assert index_of(environ, tmp_path) == Index("https://user/", "/host.pem")
    assert index_of({**environ, "PIP_INDEX_URL": "https://variable/"}, tmp_path).url == "https://variable/"
    mine = tmp_path / "mine.conf"
    mine.write_text("[global]\nindex-url = https://mine/\ntrusted-host = mine other:8080\ntimeout = 60\n")
    found = index_of({**environ, "PIP_CONFIG_FILE": str(mine)}, tmp_path)
    assert (found.url, found.timeout_s) == ("https://mine/", 60)
    assert [found.trusts(url) for url in ("https://mine/a", "https://other:8080/", "https://other/")] == [
        True,
        True,
        False,
    ]
    assert index_of({**environ, "PIP_CONFIG_FILE": os.devnull}, tmp_path) == Index(DEFAULT_INDEX)


def test_certificates_and_proxy_come_from_pip_s_variables(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "REQUESTS_CA_BUNDLE": "/bundle.pem", "CURL_CA_BUNDLE": "/curl.pem"}
    assert index_of(environ, tmp_path).certificates == "/bundle.pem"
    environ.update({"PIP_CERT": "/pip.pem", "PIP_PROXY": "http://proxy:3128", "PIP_DEFAULT_TIMEOUT": "7"})
    assert index_of(environ, tmp_path) == Index(DEFAULT_INDEX, "/pip.pem", "http://proxy:3128", (), 7.0)


@pytest.mark.parametrize("content", ["not an ini file\n", "[global\n", "\xff"])
def test_a_broken_file_is_left_for_pip_to_complain_of(tmp_path: Path, content: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_bytes(content.encode("latin-1"))
    assert index_of({"HOME": str(tmp_path), "PIP_DEFAULT_TIMEOUT": "soon"}, tmp_path) == Index(DEFAULT_INDEX)
