"""Ranks on their way to the first step: who is behind, where, and where the others wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.stall.start import reached_phrase
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.remedies import next_action
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import Stack, StackFrame
from ddptop.protocol.messages import MILESTONE, REACH, RECORDED, Activity, Bye, Event, Phase, Received
from ddptop.report.advice import make_suggestions
from tests.analysis.stalling import MAIN, NS, START_NS, Stage, users
from tests.made_up_run import report_from_messages
from tests.tui.troubles import died

INIT = {"address": "node0", "port": "29500"}


class Way(Stage):
    """Ranks that report from torch's import on; all have come to their process group."""

    def __init__(self, world: Any) -> None:
        self.world, self.reducer, self.messages = world, Reducer(stall_s=15.0), []
        self.last_ns, self.after_s = START_NS, 0.0
        self.feed(world.run())
        self.launched = range(world.size)

    def join(self, *ranks: int, milestones: tuple[str, ...] = ("torch", "init", "store", "group")) -> None:
        """Ranks report, and how far they have come."""
        for rank in ranks:
            hello = self.world.hello(rank)
            early = replace(hello.message, timing_path="", backend="", device="")
            self.feed(replace_message(hello, early))
            self.reach(rank, *milestones)

    def reach(self, rank: int, *names: str, **fields: Any) -> None:
        """A rank comes to milestones."""
        for name in names:
            about = {"name": name, **(INIT | {"world": self.world.size} if name == "init" else {})} | fields
            self.say(rank, Event(MILESTONE, self.now_ns, rank, -1, about))

    def wait(self, seconds: float, **activities: tuple[int, Activity]) -> None:
        """Heartbeats of all ranks that report; `rN=(collectives, activity)` of some."""
        plain = {"step": 0, "phase": Phase.OTHER, "bucket": -1, "sequence": 0}
        beats: dict[int, dict[str, int]] = {}
        for rank, one in enumerate(self.reducer.state.ranks):
            if one.hello is not None:
                sequence, activity = activities.get(f"r{rank}", (0, Activity.TRAINING))
                beats[rank] = plain | {"sequence": sequence, "activity": int(activity)}
        until_s = self.after_s + seconds
        while self.after_s < until_s:
            self.after_s += 0.5
            for rank, changes in beats.items():
                activity = changes["activity"]
                beat = self.world.progress(
                    rank,
                    t_us=(self.now_ns - START_NS) // 1000,
                    **{name: number for name, number in changes.items() if name != "activity"},
                )
                self.feed(replace_message(beat, replace(beat.message, activity=activity)))


def replace_message(received: Received, message: Any) -> Received:
    return received._replace(message=message)


def test_a_rank_in_its_own_code_is_named_while_the_others_wait_in_ddp(make_world: Any) -> None:
    way = Way(make_world(4))
    way.join(0, 1, 2, 3)
    for rank in (0, 2, 3):
        way.reach(rank, "ddp")
    way.wait(10)
    frame = way.frame()
    assert frame.stall is None and frame.start is not None
    assert (frame.start.milestone, frame.start.behind) == ("group", (1,))
    assert verdict(frame).sentence.startswith(
        "rank 1 has its process group; ranks 0, 2 and 3 are in DistributedDataParallel() · no further for "
    )
    way.wait(8)
    assert way.reducer.stalled_since(way.now_ns) is not None
    way.answer(1, users("preprocess_dataset"), phase=Phase.OTHER)
    frame = way.frame()
    sentence = (
        "rank 1 is in train.py:88 preprocess_dataset; "
        "ranks 0, 2 and 3 wait for it in DistributedDataParallel()"
    )
    assert frame.stall is not None and frame.stall.sentence == sentence
    assert (frame.stall.ranks, frame.stall.waiting, frame.stall.start) == ((1,), (0, 2, 3), "code")
    assert verdict(frame).sentence.endswith(sentence)
    assert next_action(frame).startswith("Find out what holds rank 1 in train.py:88 preprocess_dataset")
    assert frame.start is not None and frame.start.ranks[1].at == "train.py:88 preprocess_dataset"
    assert FrameDecoder().decode(encode_frame(frame)).start == frame.start
    way.reach(1, "ddp")
    way.wait(1)
    assert way.frame().stall is None


def test_a_rank_that_still_imports_is_named_with_its_line_once_the_others_stand(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, milestones=("torch", "init"))
    view = {"pid": 4711, "state": "S", "waits_in": "hrtimer_nanosleep", "cpu_s": 2.0, "age_s": 20.0}
    for late_s in (5.0, 10.0):
        way.wait(5)
        fields = {"world": 2, "late_s": late_s, "torch": False, "waiting": "0", **view}
        event = Event("not_initialized", way.now_ns, 1, -1, fields)
        way.feed(Received(way.now_ns, -1, 0, 0, event))
        call = {"session": 0, "pid": 4711, "call": "train.py:3 <module>"}
        way.feed(Received(way.now_ns, -1, 0, 0, Event("worker_call", way.now_ns, 1, -1, call)))
        assert way.frame().stall is None
    way.wait(6)
    frame = way.frame()
    assert frame.stall is not None
    assert (
        frame.stall.sentence == "rank 1 is in train.py:3 <module>; rank 0 waits for it in init_process_group"
    )
    assert next_action(frame).startswith("Find out what holds rank 1 in train.py:3")


def test_a_rank_that_still_imports_when_the_other_one_fails_is_no_stall(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, milestones=("torch", "init"))
    way.wait(5)
    fields = {"world": 2, "late_s": 20.0, "torch": False, "waiting": "0", "pid": 4711, "state": "S"}
    way.feed(Received(way.now_ns, -1, 0, 0, Event("not_initialized", way.now_ns, 1, -1, fields)))
    way.wait(1)
    way.say(0, Bye(way.now_ns, "ValueError"))
    way.wait(2)
    frame = way.frame()
    assert frame.stall is None
    assert [event.kind for event in frame.events] == ["joined", "failed_rank"]


def test_a_barrier_shows_by_its_number_who_has_not_come(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    way.wait(17, r1=(1, Activity.BARRIER))
    way.answer(0, users("snapshot_download"), phase=Phase.OTHER)
    stall = way.frame().stall
    assert stall is not None
    assert stall.sentence == "rank 0 is in train.py:88 snapshot_download; rank 1 waits for it in barrier"


def test_ranks_that_all_prepare_for_minutes_are_no_stall(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    way.wait(200)
    assert way.frame().stall is None
    # Nor a rank that is ahead by a collective and waits for nobody.
    way.wait(200, r1=(1, Activity.TRAINING))
    assert way.frame().stall is None


def test_what_is_imported_is_named(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0)
    way.join(1, milestones=("torch",))
    way.wait(17)
    package = StackFrame("/venv/lib/python3.11/site-packages/transformers/__init__.py", 9, "<module>", "")
    inner = StackFrame("/venv/lib/python3.11/site-packages/transformers/models.py", 3, "<module>", "")
    find = StackFrame("<frozen importlib._bootstrap>", 1176, "_find_and_load", "")
    script = MAIN._replace(function="<module>", line=3)
    stack = Stack("MainThread", True, (inner, find, package, find, find, script))
    way.answer(1, (stack,), phase=Phase.OTHER)
    stall = way.frame().stall
    assert stall is None  # rank 0 has met it, as far as it says
    way = Way(make_world(2))
    way.join(0, milestones=("torch", "init", "store"))
    way.join(1, milestones=("torch",))
    way.wait(17)
    way.answer(1, (stack,), phase=Phase.OTHER)
    stall = way.frame().stall
    assert stall is not None
    where = "rank 0 waits for it in init_process_group"
    assert stall.sentence == f"rank 1 is in the import of transformers (train.py:3); {where}"
    assert next_action(way.frame()).startswith("Time it with python -X importtime")


@pytest.mark.parametrize(
    ("ranks", "others", "sentence", "remedy"),
    [
        ((0, 1), {"port": "29501"},
         "the ranks look for one another at different addresses: rank 0 at node0:29500, "
         "rank 1 at node0:29501",
         "Set the same MASTER_ADDR and MASTER_PORT"),
        ((0, 1), {"world": 8}, "init_process_group waits for 8 ranks, and the launcher has started 4",
         "Give init_process_group"),
        ((0, 1), {}, "ranks 2 and 3 have not reported (not started, or torch not imported); "
         "ranks 0 and 1 wait for them in init_process_group", "Look on the hosts of the missing ranks"),
    ],
)  # fmt: skip
def test_why_ranks_do_not_meet(
    make_world: Any, ranks: tuple[int, ...], others: dict[str, Any], sentence: str, remedy: str
) -> None:
    way = Way(make_world(4))
    way.join(0, milestones=("torch", "init", "store"))
    way.join(1, milestones=("torch",))
    way.reach(1, "init", "store", **others)
    way.wait(17)
    frame = way.frame()
    assert frame.stall is not None
    assert frame.stall.sentence == sentence
    assert next_action(frame).startswith(remedy)


@pytest.mark.parametrize(
    ("result", "sentence", "remedy"),
    [
        ("refused", "nothing listens there (refused)", "Look if rank 0 has come"),
        ("silent", "it does not answer", "Look for a firewall"),
        ("no_route", "there is no route to it", "Give MASTER_ADDR an address"),
        ("no_name", "the name node0 is not found", "Give MASTER_ADDR a name"),
    ],
)
def test_why_a_rank_does_not_reach_the_store(
    make_world: Any, result: str, sentence: str, remedy: str
) -> None:
    way = Way(make_world(2))
    way.join(0, 1, milestones=("torch", "init"))
    way.reach(1, REACH, result="reached")
    way.reach(1, REACH, result=result)
    way.wait(17)
    frame = way.frame()
    assert frame.stall is not None and frame.start is not None
    assert frame.stall.sentence == (
        f"rank 1 has not reached the store at node0:29500: {sentence}; "
        "rank 0 waits for it in init_process_group"
    )
    assert next_action(frame).startswith(remedy)


TORCH = "/venv/lib/python3.11/site-packages/torch/"


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("_verify_param_shape_across_processes", " (parameter check)"),
        ("_sync_module_states", " (broadcast of the model)"),
        ("barrier", ""),
    ],
)
@pytest.mark.parametrize(
    ("backend", "remedy"), [("nccl", "NCCL_DEBUG=INFO"), ("gloo", "Look at the network")]
)
def test_all_ranks_in_ddps_constructor_are_given_time_and_then_said(
    make_world: Any, function: str, part: str, backend: str, remedy: str
) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    for rank in (0, 1):
        way.reach(rank, "ddp", RECORDED, device="cuda:0", backend=backend, timing_path="reducer")
    way.wait(50)
    assert way.frame().stall is None
    way.wait(15)
    inner = StackFrame(f"{TORCH}distributed/utils.py", 300, function, "")
    way.answer(0, (Stack("MainThread", True, (inner, MAIN)),), phase=Phase.OTHER)
    frame = way.frame()
    assert frame.stall is not None
    where = f"DistributedDataParallel(){part}"
    assert frame.stall.sentence == f"2 ranks are in {where}, and none gets past it"
    assert next_action(frame).startswith(remedy)


def test_how_far_they_came_is_said_of_ranks_that_made_no_step(make_world: Any) -> None:
    way = Way(make_world(2))
    assert reached_phrase(way.reducer.state) == ""  # none has reported
    way.join(0)
    said = "rank 1 has not reported; rank 0 has its process group"
    assert reached_phrase(way.reducer.state) == said
    # As a rank that fails in an import, of which only the file is read that it has left.
    way.feed(way.world.hello(1))
    error = "ModuleNotFoundError: No module named 'timm'"
    way.answer(1, (Stack("traceback", True, (MAIN,)),), number=0, reason=error, phase=Phase.OTHER)
    way.tell("lost_rank", 1, exit_code=1, signal=None)
    said = f"rank 1 failed: {error} (train.py:{MAIN.line} main)"
    assert reached_phrase(way.reducer.state) == said


def test_its_steps_are_looked_at_once_its_session_has_begun(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    assert all(one.before_recording for one in way.reducer.state.ranks)
    for rank in (0, 1):
        way.reach(rank, "ddp", RECORDED, "model", device="cuda:0", backend="nccl", timing_path="reducer")
    assert not any(one.before_recording for one in way.reducer.state.ranks)
    assert way.frame().run.backend == "nccl"
    way.wait(70)
    assert way.reducer.stalled_since(START_NS + 70 * NS) is not None


def test_every_milestone_has_its_time_as_reported_or_as_heartbeats_show_it(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    begun_s = way.after_s
    way.wait(3)
    way.reach(0, "ddp")
    way.wait(2)
    way.reach(0, "model")
    way.wait(1)
    for rank in (0, 1):
        way.say(rank, way.world.progress(rank, step=0, phase=Phase.FORWARD, batch=1).message)
    start = way.frame().start
    assert start is not None
    first, second = start.ranks
    assert first.group_s == first.torch_s == pytest.approx(second.group_s)
    assert first.ddp_s == pytest.approx(first.group_s + 3 - begun_s)
    assert first.model_s == pytest.approx(first.ddp_s + 2)
    assert second.ddp_s is None and second.model_s is None
    assert first.step_s is None and first.process_s is None


def test_a_rank_that_is_asked_before_the_stall_time_says_where_it_is(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    way.wait(3)
    position = way.reducer.frame(way.now_ns, want="position 1").position
    assert position is not None and (position.rank, position.traces) == (1, ())
    way.answer(1, users("preprocess_dataset"), phase=Phase.OTHER)
    frame = way.reducer.frame(way.now_ns, want="position 1")
    assert frame.stall is None and frame.position is not None
    assert frame.position.user_call is not None
    assert frame.position.user_call.function == "preprocess_dataset"
    assert FrameDecoder().decode(encode_frame(frame)).position == frame.position
    assert way.reducer.frame(way.now_ns, want="position 7").position is None
    assert way.reducer.frame(way.now_ns).position is None


def test_a_rank_that_waits_for_its_first_batch_is_named(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    for rank in (0, 1):
        way.reach(rank, "ddp", RECORDED, "model", device="cpu", backend="gloo", timing_path="python")
    for _ in range(140):
        way.after_s += 0.5
        for rank, phase in ((0, Phase.BACKWARD), (1, Phase.DATA)):
            way.say(rank, way.world.progress(rank, step=0, phase=phase, bucket=-1, sequence=1 - rank).message)
    way.answer(1, users("__iter__"), phase=Phase.DATA)
    frame = way.frame()
    assert frame.stall is not None
    assert frame.stall.sentence == (
        "rank 1 waits for the first batch in train.py:88 __iter__; rank 0 waits for it in the first backward"
    )
    assert next_action(frame).startswith("Time the dataset alone")


def test_all_ranks_that_look_for_one_another_in_vain_say_where(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1, milestones=("torch",))
    for rank in (0, 1):
        way.reach(rank, "init", "store", interface="eth9")
    way.wait(17)
    frame = way.frame()
    assert frame.stall is not None
    assert frame.stall.sentence == (
        "2 ranks are in init_process_group at node0:29500 by the interface eth9, and none gets past it"
    )
    assert next_action(frame).startswith("Set GLOO_SOCKET_IFNAME")


def test_ranks_that_do_not_find_each_other_after_a_restart_need_a_store_of_their_own(make_world: Any) -> None:
    way = Way(make_world(2, incarnation=1))
    way.join(0, 1, milestones=("torch", "init", "store"))
    way.wait(17)
    frame = way.frame()
    assert frame.stall is not None
    assert frame.stall.sentence.startswith("restart 1: ranks 0 and 1 are in init_process_group since ")
    assert next_action(frame).startswith("End it and start it again with TORCH_DISABLE_SHARE_RDZV")
    advice = {one.kind: one.action for one in make_suggestions(report_from_messages(way.messages))}
    assert advice["stall"] == next_action(frame)


def test_all_ranks_in_their_first_collective_are_said(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    way.wait(50, r0=(1, Activity.BARRIER), r1=(1, Activity.BARRIER))
    assert way.frame().stall is None, "NCCL may be set up in it"
    way.wait(15, r0=(1, Activity.BARRIER), r1=(1, Activity.BARRIER))
    frame = way.frame()
    assert frame.stall is not None
    assert frame.stall.sentence == "2 ranks are in barrier, and none gets past it"
    assert next_action(frame).startswith("Look at the network")


def test_a_compilation_is_named_as_the_place_of_a_rank(make_world: Any) -> None:
    way = Way(make_world(2))
    way.join(0, 1)
    way.wait(3)
    compiler = StackFrame(f"{TORCH}_inductor/compile_fx.py", 9, "compile_fx", "")
    way.answer(1, (Stack("MainThread", True, (compiler, MAIN)),), phase=Phase.FORWARD)
    start = way.frame().start
    assert start is not None and start.ranks[1].at == f"torch.compile (called at train.py:{MAIN.line} main)"


@pytest.mark.parametrize(
    "error",
    [
        "DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has 6 params.",
        "[1]: params[0] in this process with sizes [2, 3] appears not to match sizes of the same param in "
        "process 0.",
    ],
)
def test_other_parameters_on_one_rank_have_a_remedy_of_their_own(error: str) -> None:
    frame = died()
    first, *others = frame.deaths
    frame = replace(frame, deaths=(replace(first, reason=f"RuntimeError: {error}"), *others))
    assert next_action(frame).startswith("Build the same model on all ranks")
