"""The package keeps a shape in which a newcomer finds the way. `python -m tests.architecture` prints it."""

from __future__ import annotations

import pytest

from tests.architecture.shape import ENTRY_POINTS, Shape, shape

MOST_FILES = 365  # 356 before excess over minutes, reasons, pace, figures of complete steps, checks, errors
MOST_LINES = 71_060
"""40,435 when the package got its rooms (40,697 before), and 2,700 for the figures and rules of every step;
10,400 lines and 51 files for many hosts: agent, secure link, clocks, the job's store, remote viewers,
hosts view, merge. Then calls at alerts, steps in columns on the wire, charts of few ranks, a column chooser,
waiting for a CPU, stalls before the first collective, recordings read as runs of messages. Then pauses
of the garbage collector, uneven work, the HTML page, export and metrics (2,400 lines); a check for CI,
shadow blocks, metrics of the launcher (2,000); tools for agents, the screen in a browser, loggers (500);
records and readings read without an object of each (240); exports by two processes (400); columns kept from
frame to frame (100); what was known of a run that is stale, or waits for ranks (150); figures of single steps
for all that are added at once (80); a rank's excess over minutes, and its slow steps beside normal ones
(370); swap, full disks, clock and heat of processors as causes, links of three hosts, steps that take longer
in all ranks (480); bundles of many hosts and their sessions in columns (400); ranks written where they are
read, checks apart from what is taken (250); links that are cut now and then, a hang that cannot be attached
to (100); a trace that is put together from parts, figures since a straggler has recovered, acks of many hosts
at a time (120); memory that stays a process's own (25); hosts that take part in steps and send nothing, the
step of a change among several (50); one rule for decimals, what is whole on small terminals (130); steps
that are too many to hold, paired in columns, bundles of many hosts taken together (60); what scripts log
and checksums of replicas, taken with the rest (30); a report's cost of the slow rank over time, what to try
about more alerts (60); its excess over time, and in what its process differs (50); live figures of many
ranks every two seconds, behind a frame, parts of frames packed once, free memory of a collector (130); what
a report leaves out, ranks late in turn for a while (40); the rate of a run without its stalls (10); how a
rank ended, in one line and on its page (30); memory of two processes that is written again (80); columns of
one value, numbers without numpy.random, columns of what is left out, checks of hosts that cannot find
anything (140); what ranks of one host have sent taken together (70); failures that cost one message (30);
what a real GPU needs: references, bounds, errors, streams, steps that are not marked (290); columns of
two rings that are the same, losses compared in parts (70); frames of libzmq (20); detailed steps of many
ranks (35); heartbeats, clocks, losses and bundles of many ranks in columns, rules that are passed over where
late ranks have cost too little, blocks of many messages (165).
New behaviour may raise it, with its reason here."""
LONGEST, SHORTEST = 400, 30
MOST_WITH_ONE_IMPORTER = 69  # 61 before export, whose forms only the command imports
MOST_LEVELS = 9  # 8 before what complete steps show was a module, below the state of the run


@pytest.fixture(scope="module")
def package() -> Shape:
    return shape()


def test_no_module_imports_itself_by_way_of_others(package: Shape) -> None:
    assert package.cycle() == []


def test_files_are_few_and_of_a_size_to_read(package: Shape) -> None:
    assert len(package.modules) < MOST_FILES
    assert package.lines < MOST_LINES
    outside = {
        name: module.lines
        for name, module in package.modules.items()
        if module.path.name not in ENTRY_POINTS and not SHORTEST <= module.lines <= LONGEST
    }
    assert outside == {}


def test_a_module_with_one_importer_is_the_exception(package: Shape) -> None:
    assert len(package.with_one_importer()) <= MOST_WITH_ONE_IMPORTER, package.with_one_importer()


def test_the_analysis_is_not_deep(package: Shape) -> None:
    assert package.levels("ddptop.analysis") <= MOST_LEVELS


def test_a_cycle_is_found_where_there_is_one(tmp_path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").touch()
    (tmp_path / "p" / "a.py").write_text("from p import b\n")
    (tmp_path / "p" / "b.py").write_text("def f():\n    from p.c import x\n")
    (tmp_path / "p" / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a\n"
    )
    found = shape(tmp_path / "p")
    assert set(found.cycle()) == {"p.a", "p.b", "p.c"}
    assert found.with_one_importer() == ["p.a", "p.b", "p.c"]
