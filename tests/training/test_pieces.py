"""Pieces cover every byte once, and the checks of some steps cover every piece."""

import pytest

from ddptop.training.replica import LEAST_EVERY, MAX_SLICES, PIECE_BYTES, Pieces, first_piece

KIB = 1024


@pytest.mark.parametrize(
    "sizes",
    [
        [4],
        [PIECE_BYTES],
        [PIECE_BYTES + 4],
        [300 * KIB, 16, 24, 5 * 1024 * KIB, 8],
        [16] * (3 * MAX_SLICES + 1),
        [100 * KIB, 100 * KIB, 27 * KIB],
    ],
)
def test_every_byte_of_every_parameter_is_in_one_piece(sizes: list[int]) -> None:
    pieces = Pieces(sizes)
    covered = [bytearray(size) for size in sizes]
    for piece in range(pieces.count):
        parts = list(pieces.slices(piece))
        assert 0 < sum(part.end - part.begin for part in parts) <= PIECE_BYTES
        assert len(parts) <= MAX_SLICES
        for part in parts:
            for byte in range(part.begin, part.end):
                covered[part.parameter][byte] += 1
    assert all(set(marks) == {1} for marks in covered)


def test_without_parameters_there_are_no_pieces() -> None:
    assert Pieces([]).count == 0


@pytest.mark.parametrize("every", [LEAST_EVERY << power for power in range(9)])
@pytest.mark.parametrize(("count", "at_a_time"), [(1, 1), (7, 1), (800, 1), (800, 6), (800, 60), (4001, 40)])
def test_all_pieces_are_soon_covered_whatever_the_interval(every: int, count: int, at_a_time: int) -> None:
    missing = set(range(count))
    checks = 0
    while missing:
        first = first_piece(checks * every, count)
        missing -= {(first + i) % count for i in range(at_a_time)}
        checks += 1
        assert checks <= 12 * max(1, count // at_a_time), f"{len(missing)} pieces not covered"


def test_ranks_that_check_at_different_intervals_share_pieces() -> None:
    assert first_piece(256, 800) == first_piece(256, 800)
    assert len({first_piece(step, 800) for step in range(0, 1024, 16)}) > 50, "not always the same ones"
    assert all(0 <= first_piece(step, 3) < 3 for step in range(0, 100_000, 16))
