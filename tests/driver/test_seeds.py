"""The seed tree."""

from nbrl.driver.seeds import derive


def test_seeds_are_the_same_everywhere():
    # Fixed: a run of yesterday must be repeatable tomorrow.
    assert derive(0, "sample", 0, 0, "arithmetic-0", 0) == 3418469062208976736
    assert derive(7) == 3098598607917743281
    assert all(0 <= derive(i) < 2**63 for i in range(100))


def test_neighbours_and_look_alikes_differ():
    places = [(0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), (0, "a1"), (0, "a", "1"), (0,)]
    assert len({derive(*p) for p in places}) == len(places)


def test_bits_are_even():
    draws = [derive(7, i) for i in range(2000)]
    for bit in range(0, 63, 7):
        share = sum(d >> bit & 1 for d in draws) / len(draws)
        assert abs(share - 0.5) < 0.06
