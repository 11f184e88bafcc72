"""What a signal means may hang on whether there is a terminal."""

from pwgrid.master.signal_queue import has_terminal
from tests.support.descriptors import no_descriptor_is_free


def test_a_terminal_for_which_no_descriptor_is_free_is_not_taken_for_gone() -> None:
    """Else a SIGHUP that asks for a reload stopped the grid."""
    with no_descriptor_is_free():
        assert has_terminal()
