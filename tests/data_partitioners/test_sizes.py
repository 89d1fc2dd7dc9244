import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from data_partitioners._sizes import donations


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(0, 6))
def test_rows_come_one_by_one_from_the_largest_and_of_equals_from_the_last(sizes, minimum):
    assume(sum(sizes) >= minimum * len(sizes))
    left = list(sizes)
    for _ in range(sum(max(minimum - size, 0) for size in sizes)):
        left[max(range(len(left)), key=lambda client: (left[client], client))] -= 1
    given_away = [before - after for before, after in zip(sizes, left, strict=True)]
    assert donations(np.array(sizes), minimum).tolist() == given_away
