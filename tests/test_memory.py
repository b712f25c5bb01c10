import pytest

from gkn.memory import available_memory, check_room


def test_what_is_free_is_known():
    assert 2**20 < available_memory() < 2**50


def test_what_does_not_fit_is_refused_with_the_number():
    check_room(2**20, "a little")
    with pytest.raises(MemoryError, match=r"a universe: needs 1.05e\+06 GiB, but .* GiB are free on cpu"):
        check_room(2**50, "a universe")
