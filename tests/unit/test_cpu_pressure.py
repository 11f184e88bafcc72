"""What the kernel says of processes that waited for a processor; the forms are those of its documentation."""

from pathlib import Path

import pytest

from pwgrid.common import cpu_pressure


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (
            "some avg10=0.65 avg60=0.92 avg300=9.60 total=6910816\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
            6.910816,
        ),
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0.0),
        (None, None),
    ],
)
def test_the_total_time_of_the_line_some_counts(
    text: str | None, seconds: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(cpu_pressure, "_FILE", file)
    assert cpu_pressure.short_of_cpu_s() == seconds
