import threading

import numpy as np

from bestiary.batch import Ragged, RowBlock
from bestiary.distributed.handles import RemoteBlock
from bestiary.distributed.traffic import count_driver_bytes, driver_bytes, estimate_bytes


def test_bytes_of_arrays_texts_and_what_holds_them():
    block = RowBlock(
        {"x": Ragged.from_rows([[1, 2], [3]], dtype=np.int64)},
        {"t": np.array(["abc", "d"], dtype=object), "n": np.zeros(2)},
    )
    assert estimate_bytes(block) == 1 + 3 * 8 + 3 * 8 + 1 + 4 + 1 + 16
    assert estimate_bytes([1, "abcd", {"k": b"12"}]) == 8 + 4 + 3


def test_a_reference_is_small_whatever_it_stands_for():
    assert estimate_bytes([RemoteBlock("r", "s")] * 2) == 128


def test_the_counter_adds_up_over_threads():
    before = driver_bytes()
    threads = [
        threading.Thread(target=lambda: [count_driver_bytes(1) for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver_bytes() - before == 2000
