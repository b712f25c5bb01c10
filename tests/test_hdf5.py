import io
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from gkn.system.files import CorruptFile
from gkn.system.hdf5 import check_fits, image_of
from gkn.system.memory import available_memory


def test_an_image_is_a_file_and_the_same_again():
    arrays = {"a/b": np.arange(6.0).reshape(2, 3), "c": np.array([True, False])}
    image = image_of(arrays)
    assert image_of(arrays) == image
    with h5py.File(io.BytesIO(image)) as file:
        assert np.array_equal(file["a/b"], arrays["a/b"])
        assert file["c"].dtype == bool


def test_many_threads_at_once():
    """Files are made by several threads when a GPU solves faster than one thread compresses."""
    arrays = [{"x": np.random.default_rng(i).random((20, 2000))} for i in range(4)]
    alone = [image_of(each) for each in arrays]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            assert [*pool.map(image_of, arrays)] == alone


def test_claims_are_added_up():
    free = available_memory()
    assert free > 2**20
    check_fits("x.h5", {"a": ((10, 10), 8)})
    third = (free // 3 // 8,)
    with pytest.raises(CorruptFile, match=r"x\.h5: claims .* GiB"):
        check_fits("x.h5", {"a": (third, 8), "b": (third, 8)})
    with pytest.raises(CorruptFile, match="claims"):
        check_fits("x.h5", {"a": ((10**12, 10**12), 8)})
