"""What is said of a certificate's files that cannot be used."""

import subprocess
from pathlib import Path

import pytest

from pwgrid.common.certificate import server_context, stamp_of
from pwgrid.common.errors import ConfigError, GridError
from pwgrid.common.proxy_protocol import line_of, read_line
from pwgrid.settings.load import load
from pwgrid.setup import doctor_checks
from tests.support.https_server import CERTIFICATES
from tests.support.tls import AUTHORITY, SERVER


@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        ("/nowhere/cert.pem", SERVER, "tls_cert /nowhere/cert.pem: No such file or directory"),
        (SERVER, "/nowhere/key.pem", "tls_key /nowhere/key.pem: No such file or directory"),
        (CERTIFICATES / "README.md", SERVER, "there is no certificate in it; it must be a PEM file"),
        (SERVER, AUTHORITY, "there is no private key in it; it must be a PEM file"),
        (SERVER, CERTIFICATES / "client.pem", f"the key does not belong to the certificate in {SERVER}"),
        (CERTIFICATES, SERVER, f"tls_cert {CERTIFICATES}: Is a directory"),
    ],
)
def test_files_that_cannot_be_used_are_named_in_a_sentence(certificate: str, key: str, sentence: str) -> None:
    with pytest.raises(GridError) as refused:
        server_context(str(certificate), str(key))
    assert sentence in refused.value.sentence


def test_nobody_is_asked_for_a_key_s_password(tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    made = ["openssl", "pkey", "-in", str(SERVER), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(made, check=True, capture_output=True)
    with pytest.raises(GridError, match="the key has a password"):
        server_context(str(SERVER), str(locked))


def test_half_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    half = tmp_path / "half.pem"
    half.write_bytes(SERVER.read_bytes()[:700])
    with pytest.raises(GridError, match="tls_"):
        server_context(str(half), str(half))


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_one_file_without_the_other_is_refused(given: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{given}: .* needs {missing}, too"):
        load(None, {}, {given: str(SERVER)})


@pytest.mark.parametrize(("mode", "warnings"), [(0o640, 0), (0o644, 1)])
def test_a_key_that_everybody_can_read_is_told_of(mode: int, warnings: int, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(SERVER.read_bytes())
    key.chmod(mode)
    found = load(None, {}, {"tls_cert": str(key), "tls_key": str(key)}).warnings
    assert [str(each) for each in found].count(
        f"everybody on this host can read the key in {key}: chmod o-r {key}"
    ) == warnings


def test_the_doctor_says_whether_the_files_can_be_used() -> None:
    good = load(None, {}, {"tls_cert": str(SERVER), "tls_key": str(SERVER)}).settings
    assert next(doctor_checks._tls(good)).level == "good"
    (found,) = doctor_checks._tls(good.model_copy(update={"tls_key": str(CERTIFICATES / "client.pem")}))
    assert found.level == "bad"
    assert "the key does not belong to the certificate" in found.found


def test_a_stamp_tells_each_change_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    stamps = [stamp_of(str(file))]
    file.write_text("one")
    stamps.append(stamp_of(str(file)))
    other = tmp_path / "new"
    other.write_text("two")
    other.replace(file)
    stamps.append(stamp_of(str(file)))
    assert len(set(stamps)) == len(stamps)


@pytest.mark.parametrize(
    ("client", "local", "line"),
    [
        (("10.0.0.1", 5), ("10.0.0.2", 8080), b"PROXY TCP4 10.0.0.1 10.0.0.2 5 8080\r\n"),
        (("fe80::1%eth0", 5), ("::1", 8080), b"PROXY TCP6 fe80::1 ::1 5 8080\r\n"),
    ],
)
def test_a_line_of_the_proxy_protocol_says_whose_a_connection_is(
    client: tuple[str, int], local: tuple[str, int], line: bytes
) -> None:
    assert line_of(client, local) == line
    assert read_line(line[:-2]) == ((client[0].partition("%")[0], client[1]), local)


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"PROXY TCP4 x y 1 2", b"PROXY UNKNOWN", b"", b"\xff"])
def test_no_other_line_says_it(line: bytes) -> None:
    with pytest.raises(ValueError):
        read_line(line)
