"""Two real ranks, one of them late inside backward: its own time shows it, the other's only a wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptop.protocol.messages import Event, Flag, StepRow, Steps
from ddptop.recording.reader import Recording
from ddptop.training.torch_compat.divisors import READS
from tests.processes import DDPTOP_RUN, environment, run

SCRIPT = Path(__file__).parent / "scripts" / "own_time.py"
LATE_US = 40_000

KNOWN = (
    "default",
    "bucket_view",
    "no_sync",
    "every_micro_step",
    "late_no_sync",
    "static_graph",
    "find_unused",
    "first_unused",
    "two_models",
    "two_backwards",
    "subgroup",
    "unsynchronised",
    "join",
    "checkpoint",
    "reentrant",
    "lbfgs",
    "in_backward",
    "scaler",
)
UNKNOWN = ("ends_unused", "first_reentrant")
COMPILED = ("compiled", "compiled_backward")

MANY_PASSES = [("every_micro_step", 4, 4), ("late_no_sync", 4, 4)]
"""Name, micro-steps, and backward passes among them that all-reduce."""

Rows = dict[str, tuple[list[StepRow], list[StepRow]]]


def trained(home: Path, *ways: str) -> Rows:
    """Steps of both ranks in each way, without the first two: DDP rebuilds its buckets in them."""
    recording = home / "run.ddptop"
    # Each step is looked at in full, however busy the machine is.
    options = [
        "--ddptop-record",
        str(recording),
        "--ddptop-budget",
        "100",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = run([*DDPTOP_RUN, *options, str(SCRIPT), str(home), *ways], environment(home), home)
    assert done.returncode == 0, done.stderr
    rows: tuple[dict[int, StepRow], dict[int, StepRow]] = ({}, {})
    with Recording.open(recording) as opened:
        for received in opened.records():
            steps = received.message
            if isinstance(steps, Steps):
                rows[received.rank].update(enumerate(steps.rows, steps.first_step))
    numbers = [json.loads((home / f"steps-{rank}.json").read_text()) for rank in (0, 1)]
    return {way: (steps_of(rows[0], *numbers[0][way]), steps_of(rows[1], *numbers[1][way])) for way in ways}


def steps_of(rows: dict[int, StepRow], first: int, end: int) -> list[StepRow]:
    return [row for step in range(first + 2, end) if not (row := rows[step]).flags & Flag.JOINED]


def own_us(row: StepRow) -> int:
    """Own time of a step as the analysis has it."""
    own = row.own
    assert own is not None
    return row.wall_us - own.exposed - waited_us(row)


def running_us(row: StepRow) -> int:
    """Without what it waited for a CPU: on a busy machine that may be longer than the delay."""
    return own_us(row) - max(0, row.own.cpu_wait)


def waited_us(row: StepRow) -> int:
    own = row.own
    assert own is not None
    return (
        own.waited_data + own.waited_forward + own.waited_backward + own.waited_optimizer + own.waited_other
    )


def exposed_us(row: StepRow) -> int:
    return row.own.exposed


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def ways(home: Path) -> Rows:
    return trained(home, *KNOWN, *UNKNOWN, "metric", "saves", "evaluates")


def events_of(home: Path, kind: str) -> list[Event]:
    with Recording.open(home / "run.ddptop") as opened:
        messages = [received.message for received in opened.records()]
    return [message for message in messages if isinstance(message, Event) and message.kind == kind]


def test_an_evaluation_is_reported_without_the_pauses_beside_it(ways: Rows, home: Path) -> None:
    evaluated = events_of(home, "evaluated")
    assert sorted(event.rank for event in evaluated) == [0, 1]
    for event in evaluated:
        began, ended = json.loads((home / f"evaluated-{event.rank}.json").read_text())
        assert began <= event.t_ns - event.fields["ns"] < event.t_ns <= ended
        assert event.fields["ns"] >= 3 * LATE_US * 1000
        assert 0 < event.fields["data_ns"] < event.fields["ns"]


def test_saves_are_reported_with_their_step_before_it(ways: Rows, home: Path) -> None:
    saved: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for event in events_of(home, "saved"):
        saved[event.rank].append((event.step, event.fields["ns"]))
    (first, _end) = json.loads((home / "steps-0.json").read_text())["saves"]
    assert {step - first for each in saved.values() for step, _ in each} <= {5, 6}, (
        "between the two trainings"
    )
    (in_parts,) = saved[0]
    assert in_parts[1] >= LATE_US * 1000
    *small, last = saved[1]
    assert sum(ns for _, ns in small) >= 9 * 6_000_000 and len(small) >= 2
    assert last[1] >= LATE_US * 1000


@pytest.mark.parametrize("way", ["default", "no_sync", "every_micro_step", "scaler"])
def test_the_loss_is_what_a_script_logs_also_where_it_divides_by_its_micro_steps(
    ways: Rows, home: Path, way: str
) -> None:
    for rank, rows in enumerate(ways[way]):
        logged = json.loads((home / f"losses-{rank}.json").read_text())[way][2:]
        divided = way == "every_micro_step"
        given = 1 if READS or not divided else rows[0].micro_steps  # what an older torch does not show
        assert [row.loss * given for row in rows] == pytest.approx(logged)
        assert {bool(row.flags & Flag.LOSS_UNDIVIDED) for row in rows} == {divided and READS}


@pytest.mark.parametrize("way", KNOWN)
def test_a_delay_inside_backward_is_own_time_of_its_rank_alone(ways: Rows, way: str) -> None:
    punctual, late = ways[way]
    assert len(punctual) >= 2
    assert all(exposed_us(row) >= 0 for row in (*punctual, *late))
    assert min(own_us(row) for row in late) >= LATE_US
    assert min(running_us(row) for row in punctual) < LATE_US
    waited = max(exposed_us(row) for row in punctual) >= LATE_US // 2
    assert waited or way == "unsynchronised"


@pytest.mark.parametrize(("way", "micro_steps", "passes"), [("no_sync", 2, 1), *MANY_PASSES])
def test_a_rank_late_in_each_micro_step_is_late_by_the_sum(
    ways: Rows, way: str, micro_steps: int, passes: int
) -> None:
    punctual, late = ways[way]
    assert {row.micro_steps for row in (*punctual, *late)} == {micro_steps}
    assert min(own_us(row) for row in late) >= micro_steps * LATE_US
    assert min(running_us(row) for row in punctual) < LATE_US
    assert max(exposed_us(row) for row in punctual) >= micro_steps * LATE_US - LATE_US // 2
    detailed = [row for row in (*punctual, *late) if row.flags & Flag.DETAIL]
    assert {row.cells[::3].count(row.cells[0]) for row in detailed} == {passes}


@pytest.mark.parametrize("way", ["no_sync", "every_micro_step", "late_no_sync", "default"])
def test_no_sync_around_backward_alone_is_flagged(ways: Rows, way: str) -> None:
    flagged = {bool(row.flags & Flag.LATE_NO_SYNC) for rows in ways[way] for row in rows}
    assert flagged == {way == "late_no_sync"}


@pytest.mark.parametrize("way", UNKNOWN)
def test_where_the_last_gradient_is_not_known_nothing_is_said_of_it(ways: Rows, way: str) -> None:
    assert {exposed_us(row) for rows in ways[way] for row in rows} == {-1}


def test_a_wait_in_a_metric_is_no_own_time(ways: Rows) -> None:
    punctual, late = ways["metric"]
    assert min(own_us(row) for row in late) >= LATE_US
    assert min(running_us(row) for row in punctual) < LATE_US
    assert max(waited_us(row) for row in punctual) >= LATE_US // 2
    assert min(waited_us(row) for row in late) < LATE_US
    for row in (*punctual, *late):
        assert waited_us(row) == row.own.waited_other, "all of it lies outside the phases"


@pytest.mark.parametrize("way", KNOWN)
def test_the_places_of_a_step_lie_outside_its_phases(ways: Rows, way: str) -> None:
    for row in (*ways[way][0], *ways[way][1]):
        other = row.wall_us - row.data_us - row.forward_us - row.backward_us - row.optimizer_us
        places = row.own.before_forward + row.own.before_backward + row.own.before_optimizer
        assert places + row.own.waited_other <= other + 10, "each rounded to microseconds"
        assert row.own.exposed <= row.backward_us


@pytest.mark.slow
def test_a_compiled_model_is_stamped_and_a_compiled_backward_is_left_alone(tmp_path: Path) -> None:
    ways = trained(tmp_path, *COMPILED)
    told = events_of(tmp_path, "compiled")
    assert {event.rank for event in told} == {0, 1}
    assert all(event.fields["ns"] > 0 and event.fields["what"] for event in told)
    punctual, late = ways["compiled"]
    assert all(exposed_us(row) >= 0 for row in (*punctual, *late))
    assert min(own_us(row) for row in late) >= LATE_US
    assert min(running_us(row) for row in punctual) < LATE_US
    assert {exposed_us(row) for rows in ways["compiled_backward"] for row in rows} == {-1}
