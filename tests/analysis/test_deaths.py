"""Who ended badly, who was the cause, and what the screens say of it."""

from __future__ import annotations

import pytest

from ddptop.frames.phrases import death_phrase
from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import Stack, StackFrame
from ddptop.protocol.messages import FINISHED, Bye
from ddptop.render.context import RenderContext
from ddptop.render.evidence import draw_brief, draw_evidence
from tests.analysis.stalling import ALL_REDUCE, BACKWARD, START_NS, Stage, op, users, waits

CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4242"
RESET = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection reset by peer [127.0.0.1]:4242"


@pytest.fixture
def stage(make_world):
    return Stage(make_world(4))


def raises(stage: Stage, rank: int, reason: str, *calls: StackFrame, message: tuple[str, ...] = ()) -> None:
    """The rank's last words, its goodbye and its end."""
    stage.answer(rank, (Stack("traceback", True, calls),), number=0, reason=reason, message=message)
    stage.say(rank, Bye(stage.now_ns, reason.split(":")[0]))
    stage.tell("exit", rank, exit_code=1, signal=None)


def load(line: int = 88) -> StackFrame:
    return StackFrame("/home/me/train.py", line, "load", "raise ValueError('bad batch')")


def test_a_killed_rank_is_named_with_signal_and_step(stage) -> None:
    stage.tell("lost_rank", 2, pid=4002, exit_code=None, signal="SIGKILL")
    found = stage.frame()
    assert [(d.rank, d.signal, d.exit_code, d.step, d.reason) for d in found.deaths] == [
        (2, "SIGKILL", None, 40, "")
    ]
    assert found.deaths[0].position.process == "killed by SIGKILL"
    assert (found.deaths[0].position.host, found.deaths[0].position.pid) == ("node0", 4002)
    assert verdict(found).line() == "■ LOST · rank 2 was killed by SIGKILL at step 40 (out of memory?)"
    assert stage.said("lost_rank") == ["rank 2 was killed by SIGKILL at step 40 (out of memory?)"]
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).line() == (
        "■ FAILED · rank 2 was killed by SIGKILL at step 40 (out of memory?)"
    )


def test_a_rank_without_locked_memory_is_told_its_limit(stage) -> None:
    failed = "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    raises(
        stage, 2, "DistBackendError: NCCL error, ncclSystemError: Last error:", load(88), message=(failed,)
    )
    assert next_action(stage.frame()).startswith("Raise the limit of locked memory")


def test_a_rank_whose_gloo_connects_to_itself_for_another_host_is_told_the_variable(stage) -> None:
    refused = "SO_ERROR: Connection refused, remote=[127.0.0.1]:24988$0"
    failed = f"Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: {refused}"
    raises(stage, 2, "RuntimeError: Gloo connectFullMesh failed", load(17), message=(failed,))
    assert next_action(stage.frame()).startswith("If ranks are on several hosts, set GLOO_SOCKET_IFNAME")


def test_a_rank_without_memory_is_told_what_it_asked_for_and_what_to_try(stage) -> None:
    asked = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes."
    raises(stage, 2, f"RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. {asked}", load(88))
    found = stage.frame()
    assert f"rank 2 failed: RuntimeError: {asked}" in verdict(found).line()
    assert next_action(found).startswith("Use smaller batches or fewer workers. free -h on node0")


def test_a_rank_that_the_kernel_killed_for_want_of_memory_is_named_as_such(stage) -> None:
    stage.tell("lost_rank", 2, pid=4002, exit_code=None, signal="SIGKILL", out_of_memory=True)
    words = "rank 2 was killed by SIGKILL at step 40 (out of memory: the kernel killed it)"
    found = stage.frame()
    assert verdict(found).line() == f"■ LOST · {words}"
    assert stage.said("lost_rank") == [words]
    assert (found.deaths[0].reason, found.alerts[0].rank) == ("out of memory: the kernel killed it", 2)
    assert next_action(found).startswith("Use fewer workers or smaller batches, or raise the memory limit")


def test_a_kill_for_want_of_memory_stays_known_where_the_exit_is_told_again(stage) -> None:
    for out_of_memory in (True, False):
        stage.tell("lost_rank", 2, pid=4002, exit_code=None, signal="SIGKILL", out_of_memory=out_of_memory)
    assert stage.frame().deaths[0].reason == "out of memory: the kernel killed it"


def test_no_want_of_memory_is_suspected_where_the_kernels_count_of_kills_stayed(stage) -> None:
    stage.tell("lost_rank", 2, pid=4002, exit_code=None, signal="SIGKILL", out_of_memory=False)
    found, words = stage.frame(), "rank 2 was killed by SIGKILL at step 40 (not by the kernel's OOM killer)"
    assert verdict(found).line() == f"■ LOST · {words}"
    assert stage.said("lost_rank") == [words]
    assert next_action(found).startswith("Find out who sent SIGKILL to rank 2 on node0: a person, a script")


def test_an_exception_is_named_with_its_place(stage) -> None:
    inner = StackFrame("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 700, "next", "")
    raises(stage, 1, "ValueError: bad batch", inner, load())
    found = stage.frame()
    assert verdict(found).line() == "■ LOST · rank 1 failed: ValueError: bad batch (train.py:88 load)"
    death = found.deaths[0]
    assert (death.reason, death.exit_code, death.signal) == ("ValueError: bad batch", 1, None)
    assert [call.function for call in death.position.traces[0].calls] == ["next", "load"]
    assert death.position.user_call.line == 88
    alert = found.alerts[0]
    assert (alert.kind, alert.evidence["call"], alert.evidence["exit_code"]) == (
        "failed_rank",
        "train.py:88 load",
        1,
    )


def test_a_long_message_is_cut(stage) -> None:
    raises(stage, 1, "ValueError: " + "x" * 400)
    assert len(stage.frame().deaths[0].reason) == 240


UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. You "
    "can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
    "`torch.nn.parallel.DistributedDataParallel`",
    "Parameter indices which did not receive grad for rank 1: 2 3",
)


def test_the_complete_message_is_part_of_a_death(stage) -> None:
    raises(stage, 1, UNUSED[0][:160], load(), message=UNUSED)
    death = stage.frame().deaths[0]
    assert (death.reason, death.message) == (UNUSED[0][:160], UNUSED)
    assert snapshot(stage.frame())["deaths"][0]["message"] == UNUSED  # type: ignore[index]
    page = [str(line).strip() for line in draw_evidence(RenderContext(stage.frame()), 80)]
    assert "Parameter indices which did not receive grad for rank 1: 2 3" in page
    shown = [str(line) for line in draw_brief(RenderContext(stage.frame()), 80, 3)]
    assert any("find_unused_parameters=True" in line for line in shown)


def test_what_a_worker_raised_is_no_consequence_of_another_ranks_exit(stage) -> None:
    """Its words may be those of a lost connection: to the store of the data."""
    raises(stage, 0, RESET, load(61))
    stage.after_s = 0.2
    raises(stage, 1, "TimeoutError in a DataLoader worker: read timed out", load())
    assert [death.rank for death in stage.frame().deaths] == [1, 0]


@pytest.mark.parametrize(
    ("reason", "shown", "remedy"),
    [
        (
            "ValueError in a DataLoader worker: bad image",
            "ValueError in a DataLoader worker: bad image",
            "Fix the ValueError in train.py:88 load (rank 1)",
        ),
        (
            "RuntimeError: DataLoader worker (pid 71) was killed by SIGKILL",
            "RuntimeError: DataLoader worker (pid 71) was killed by SIGKILL (out of memory?)",
            "dmesg -T on node0: was a DataLoader worker out of memory? Fewer workers (num_workers)",
        ),
        (
            "RuntimeError: DataLoader worker (pid 71) was killed by SIGBUS",
            "RuntimeError: DataLoader worker (pid 71) was killed by SIGBUS (shared memory full?)",
            "docker run --shm-size=8g",
        ),
        (
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_7>: Success (0)",
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_7>: Success (0)",
            "docker run --shm-size=8g",
        ),
        (
            "OSError: [Errno 28] No space left on device: '/data/last.pt'",
            "OSError: [Errno 28] No space left on device: '/data/last.pt'",
            "Free space on node0 (df -h, df -i). If /dev/shm is full: docker run --shm-size=8g",
        ),
        (
            "RuntimeError: DataLoader worker (pid 71) exited with code 3",
            "RuntimeError: DataLoader worker (pid 71) exited with code 3",
            "Start it with num_workers=0",
        ),
        (
            " ".join(UNUSED),
            None,
            "Pass find_unused_parameters=True to DistributedDataParallel, or have every parameter take part "
            "in the loss: no gradient for parameters 2, 3.",
        ),
    ],
)
def test_what_to_do_about_an_error_is_told_by_its_message(
    stage, reason: str, shown: str | None, remedy: str
) -> None:
    raises(stage, 1, reason[:240], load(), message=(reason,))
    stage.feed(stage.world.run("failed", 1))
    frame = stage.frame()
    assert shown is None or frame.deaths[0].reason == shown
    assert remedy in next_action(frame)


@pytest.mark.parametrize(
    ("out_of_memory", "cause", "action"),
    [
        (
            True,
            "out of memory: the kernel killed it",
            "Use fewer DataLoader workers (num_workers) or smaller",
        ),
        (
            False,
            "not by the kernel's OOM killer",
            "Find out who sent SIGKILL to the DataLoader worker of rank 1 on node0",
        ),
    ],
)
def test_whether_the_kernel_killed_a_worker_for_want_of_memory_is_told_where_it_is_known(
    stage, out_of_memory: bool, cause: str, action: str
) -> None:
    reason = "RuntimeError: DataLoader worker (pid 71) was killed by SIGKILL"
    stage.answer(1, (Stack("MainThread", True, (load(),)),), number=0, reason=reason)
    stage.say(1, Bye(stage.now_ns, "RuntimeError"))
    assert stage.frame().deaths[0].reason == reason, "nothing is guessed while its exit is not known"
    stage.tell("exit", 1, exit_code=1, out_of_memory=out_of_memory)
    stage.feed(stage.world.run("failed", 1))
    frame = stage.frame()
    assert frame.deaths[0].reason == (
        f"RuntimeError: DataLoader worker (pid 71) was killed by SIGKILL ({cause})"
    )
    assert next_action(frame).startswith(action)


def test_the_cause_comes_before_what_followed_even_when_the_peers_were_quicker(stage) -> None:
    raises(stage, 0, RESET, load(61))
    stage.after_s = 0.2
    stage.tell("lost_rank", 2, exit_code=-9, signal="SIGKILL")
    stage.after_s = 0.5
    for rank in (1, 3):
        stage.tell("lost_rank", rank, exit_code=-15, signal="SIGTERM")
    found = stage.frame()
    assert [death.rank for death in found.deaths] == [2, 0, 1, 3]
    assert stage.said("lost_rank")[1] == "ranks 1 and 3 were ended by SIGTERM at step 40"
    assert found.deaths[1].reason == "RuntimeError: Connection reset by peer [127.0.0.1]:4242"
    assert [alert.kind for alert in found.alerts[:2]] == ["lost_rank", "failed_rank"]
    assert verdict(found).line() == "■ LOST · rank 2 was killed by SIGKILL at step 40 (out of memory?)"


def test_a_rank_that_somebody_ends_by_sigterm_is_the_cause_though_a_peer_was_quicker(stage) -> None:
    stage.answer(2, waits(), number=0, reason="RuntimeError: Connection reset by peer")
    stage.say(2, Bye(stage.now_ns, "RuntimeError"))
    stage.after_s += 0.1
    stage.tell("lost_rank", 1, exit_code=None, signal="SIGTERM")
    stage.after_s += 0.2
    stage.tell("exit", 2, exit_code=None, signal="SIGTERM")  # by the launcher, as the last one
    stage.tell("lost_rank", 0, exit_code=None, signal="SIGTERM")
    assert [death.rank for death in stage.frame().deaths] == [1, 2, 0]
    assert verdict(stage.frame()).sentence == "LOST · rank 1 was ended by SIGTERM at step 40"
    assert next_action(stage.frame()).startswith("Find out who sent SIGTERM to rank 1 on ")


def test_several_ranks_that_were_ended_alike_are_one_sentence(stage) -> None:
    for rank in range(4):
        stage.say(rank, Bye(stage.now_ns, FINISHED))
        stage.tell("exit", rank, exit_code=None, signal="SIGUSR1" if rank < 2 else "SIGKILL")
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).line() == "■ FAILED · ranks 0 and 1 were ended by SIGUSR1 at step 40"


def test_an_exception_stays_the_cause_when_torchrun_ends_its_process_as_well(stage) -> None:
    stage.answer(1, (Stack("traceback", True, (load(),)),), number=0, reason="ValueError: bad batch")
    stage.say(1, Bye(stage.now_ns, "ValueError"))
    stage.after_s = 0.1
    raises(stage, 0, RESET, load(61))
    stage.tell("exit", 1, exit_code=-15, signal="SIGTERM")
    found = stage.frame()
    assert [death.rank for death in found.deaths] == [1, 0]
    assert verdict(found).line() == "■ LOST · rank 1 failed: ValueError: bad batch (train.py:88 load)"


def test_the_step_of_an_end_is_told_by_the_others_where_they_are_ahead(stage) -> None:
    stage.tell("lost_rank", 2, signal="SIGKILL")
    stage.beat(0.5, {rank: {"step": 44} for rank in (0, 1, 3)})
    assert stage.frame().deaths[0].step == 43
    assert "at step 43 (out of memory?)" in verdict(stage.frame()).line()


def test_an_exception_comes_before_those_that_torchrun_ended(stage) -> None:
    stage.tell("lost_rank", 0, exit_code=-15, signal="SIGTERM")
    stage.after_s = 0.3
    raises(stage, 3, "ZeroDivisionError: division by zero", load())
    assert [death.rank for death in stage.frame().deaths] == [3, 0]
    assert "rank 3 failed: ZeroDivisionError" in verdict(stage.frame()).line()


def test_the_same_exception_on_all_ranks_is_one_line(stage) -> None:
    for rank in range(4):
        raises(stage, rank, "FileNotFoundError: data.bin", load())
    assert verdict(stage.frame()).line() == (
        "■ LOST · 4 ranks failed: FileNotFoundError: data.bin (train.py:88 load)"
    )


def test_an_exit_code_after_a_good_goodbye_is_a_failure(stage) -> None:
    stage.feed(stage.world.bye(1))
    assert stage.frame().deaths == ()
    stage.tell("exit", 1, exit_code=3, signal=None)
    found = stage.frame()
    assert found.ranks.state[1] == "failed"
    assert [(d.rank, d.exit_code, d.position.process) for d in found.deaths] == [(1, 3, "exit code 3")]
    assert stage.said("exit") == ["rank 1 exited with code 3"]


def test_an_exit_code_of_zero_is_not_worth_a_word(stage) -> None:
    stage.feed(stage.world.bye(1))
    stage.tell("exit", 1, exit_code=0, signal=None)
    assert stage.frame().deaths == ()
    assert stage.said("exit") == []


def test_a_process_that_is_gone_without_any_word(stage) -> None:
    stage.tell("lost_rank", 2)
    assert verdict(stage.frame()).line() == "■ LOST · rank 2 lost: its process is gone"
    assert stage.frame().deaths[0].position.process == "gone"


def test_words_about_an_earlier_process_of_the_rank_are_ignored(stage) -> None:
    stage.tell("lost_rank", 2, session=77, signal="SIGKILL")
    stage.tell("exit", 2, session=77, exit_code=3)
    assert stage.frame().deaths == ()


def aborted(stage: Stage, *, call: StackFrame = BACKWARD) -> None:
    """Rank 1 as gloo leaves it on a tensor of another size: its crash file, and its end."""
    stage.answer(1, waits(call, line=70), number=0, reason="Fatal Python error: Aborted")
    stage.tell("lost_rank", 1, exit_code=-6, signal="SIGABRT")


def test_a_mismatch_that_killed_a_rank_shows_both_sides(make_world) -> None:
    stage = Stage(make_world(2))
    raises(stage, 0, RESET, ALL_REDUCE, load(61))
    stage.after_s = 0.1
    aborted(stage)
    found = stage.frame()
    assert [death.rank for death in found.deaths] == [1, 0]
    alert = next(alert for alert in found.alerts if alert.kind == "mismatch")
    assert alert.message == (
        "mismatch: rank 1 in backward (train.py:70 step), rank 0 in all_reduce (train.py:61 load)"
    )
    assert verdict(found).line() == "■ LOST · rank 1 aborted (SIGABRT) at step 40 (train.py:70 step)"
    assert verdict(found).second() == alert.message
    assert next_action(found).startswith(
        "Let all ranks call the same collectives in the same order: see train.py:70"
    )
    assert (alert.rank, alert.evidence["side1_rank"]) == (1, 0)


def test_the_other_side_may_be_an_answer_with_sizes(make_world) -> None:
    stage = Stage(make_world(2))
    stage.answer(0, waits(ALL_REDUCE), operations=(op(3, done=True), op(4, sizes="[[500]]")))
    aborted(stage, call=ALL_REDUCE)
    alert = next(alert for alert in stage.frame().alerts if alert.kind == "mismatch")
    assert alert.evidence["side0_operation"] == "all_reduce"
    assert alert.evidence["side1_operation"] == "all_reduce of [[500]] Float"


def test_a_survivor_tells_the_size_of_what_failed_under_it_though_gloo_calls_that_done(make_world) -> None:
    stage = Stage(make_world(2))
    failed = (op(3, done=True), op(4, sizes="[[500]]", done=True))
    stage.answer(0, waits(ALL_REDUCE), operations=failed, number=0, reason=f"RuntimeError: {RESET}")
    aborted(stage, call=ALL_REDUCE)
    alert = next(alert for alert in stage.frame().alerts if alert.kind == "mismatch")
    assert alert.evidence["side1_operation"] == "all_reduce of [[500]] Float"


@pytest.mark.parametrize("odd", [0, 2, 3])
def test_of_several_ranks_the_one_whose_tensor_differs_is_named_though_gloo_aborted_another(
    stage, odd
) -> None:
    for rank in (0, 2, 3):
        sizes, dtype = ("[[500]]", "Double") if rank == odd else ("[[500]]", "Float")
        failed = (op(3, done=True), op(4, sizes=sizes, done=True)._replace(dtype=dtype))
        stage.answer(
            rank,
            waits(ALL_REDUCE, line=60 + rank),
            operations=failed,
            number=0,
            reason=f"RuntimeError: {RESET}",
        )
    aborted(stage, call=ALL_REDUCE)
    alert = next(alert for alert in stage.frame().alerts if alert.kind == "mismatch")
    assert (alert.rank, alert.evidence["side0_operation"]) == (odd, "all_reduce of [[500]] Double")
    assert alert.evidence["side1_operation"] == "all_reduce of [[500]] Float"


def test_ranks_in_different_buckets_are_no_sides_of_a_mismatch(stage) -> None:
    """Rank 3 answered in an earlier collective, whose tensors have another size."""
    for rank, number, size in ((0, 4, "[[500]]"), (2, 4, "[[500]]"), (3, 3, "[[900]]")):
        failed = (op(number, sizes=size, done=True),)
        reason = f"RuntimeError: {RESET}"
        stage.answer(rank, waits(ALL_REDUCE), operations=failed, number=0, reason=reason)
    aborted(stage, call=ALL_REDUCE)
    alert = next(alert for alert in stage.frame().alerts if alert.kind == "mismatch")
    assert alert.rank == 1


def test_an_abort_in_the_users_code_is_no_mismatch(stage) -> None:
    stage.answer(1, (Stack("MainThread", True, (load(),)),), number=0, reason="Fatal Python error: Aborted")
    stage.tell("lost_rank", 1, exit_code=-6, signal="SIGABRT")
    found = stage.frame()
    assert [alert.kind for alert in found.alerts] == ["lost_rank"]
    assert verdict(found).line() == "■ LOST · rank 1 aborted (SIGABRT) at step 40 (train.py:88 load)"


BARRIER = ALL_REDUCE._replace(function="barrier")


def finishes(stage: Stage, rank: int) -> None:
    """It leaves its group and exits in good order, after collective 83 of step 41."""
    stage.feed(stage.world.progress(rank, t_us=(stage.now_ns - START_NS) // 1000, step=41, sequence=81))
    stage.say(rank, Bye(stage.now_ns, "left its group", 83))
    stage.say(rank, Bye(stage.now_ns, "finished"))
    stage.tell("exit", rank, exit_code=0, signal=None)


def in_84(stage: Stage, rank: int, *, size: int = 4) -> None:
    """The rank answers that it waits in collective 84."""
    operations = (op(83, "broadcast", done=True), op(84))
    stage.answer(rank, waits(), groups={"0": 84}, operations=operations, size=size)


def test_a_rank_that_exits_with_code_0_while_others_wait_for_it_is_the_cause(stage) -> None:
    finishes(stage, 1)
    stage.after_s += 1
    in_84(stage, 0)
    assert verdict(stage.frame()).sign == "good", "the collective may just complete"
    stage.after_s += 2
    for rank in (0, 2, 3):
        in_84(stage, rank)
    found = stage.frame()
    said = "rank 1 exited with code 0 before the end of training at step 41"
    others = "; ranks 0, 2 and 3 are in all_reduce of [[1000]] Float"
    assert verdict(found).line() == f"■ LOST · {said}, after broadcast of [[1000]] Float{others}"
    assert [(d.rank, d.exit_code, d.step, d.position.process) for d in found.deaths] == [
        (1, 0, 41, "exit code 0")
    ]
    assert stage.said("failed_rank") == [said]
    for rank in (0, 2, 3):
        stage.tell("lost_rank", rank, exit_code=None, signal="SIGTERM")
    stage.feed(stage.world.run("failed", 1))
    assert said in verdict(stage.frame()).line(), "also once the others were ended"


def test_an_exit_code_that_becomes_known_later_replaces_the_good_order(stage) -> None:
    stage.say(1, Bye(stage.now_ns, "finished"))
    for rank in (0, 2):
        raises(stage, rank, RESET, BACKWARD, load(61))
    early = "rank 1 exited before the end of training at step 40"
    assert stage.said("failed_rank")[-1] == early
    stage.tell("exit", 1, exit_code=3, signal=None)
    found = stage.frame()
    assert verdict(found).line() == "■ LOST · rank 1 exited with code 3 at step 40"
    assert (found.deaths[0].rank, found.deaths[0].exit_code) == (1, 3)


def test_a_lost_connection_is_no_error_to_fix_while_it_is_not_known_which_rank_left_too_early(
    make_world,
) -> None:
    stage = Stage(make_world(8))
    finishes(stage, 1)
    raises(stage, 0, RESET, BACKWARD, load(61))
    action = next_action(stage.frame())
    assert action.startswith("Find out which rank has ended first: rank 0 has lost its connection to it.")
    assert action.endswith("how many collectives each calls, up to train.py:61 load.")


def test_nor_do_peers_that_lost_it_hide_the_rank_that_exited_with_code_0(stage) -> None:
    finishes(stage, 1)
    for rank in (0, 2, 3):
        raises(stage, rank, RESET, BACKWARD, load(61))
    found = stage.frame()
    assert [death.rank for death in found.deaths] == [1, 0, 2, 3]
    assert verdict(found).sentence.startswith("LOST · rank 1 exited with code 0 before the end of training")


@pytest.mark.parametrize("n_before", [1, 3], ids=["when the first of them ended", "at last"])
def test_a_rank_in_a_barrier_too_many_is_told_that_the_others_had_ended_in_good_order(
    stage, n_before
) -> None:
    """It fails once the first of them has ended, which may be told before the others end."""
    for rank in (1, 2, 3)[:n_before]:
        finishes(stage, rank)
    stage.answer(0, waits(BARRIER), groups={"0": 84}, number=0, reason=CLOSED)
    stage.say(0, Bye(stage.now_ns, "RuntimeError", 84))
    stage.tell("exit", 0, exit_code=1, signal=None)
    for rank in (1, 2, 3)[n_before:]:
        finishes(stage, rank)
    found = stage.frame()
    assert stage.said("failed_rank") == [f"rank 0 failed: {CLOSED} (train.py:61 step)"]
    why = "the others had ended in good order, one barrier behind"
    assert verdict(found).line() == f"■ LOST · rank 0 failed in barrier (train.py:61 step): {why}"
    assert [(d.rank, d.context, d.reason, d.follows) for d in found.deaths] == [(0, why, CLOSED, False)]
    assert why in death_phrase(found.deaths[0])
    assert next_action(found).startswith("Let rank 0 call as many collectives as the others, up to train.py")


@pytest.mark.parametrize("event", ["exit", "lost_rank"])
@pytest.mark.parametrize("ended", [(2, 3), (1, 2, 3)])
@pytest.mark.parametrize("words", [("left its group", "finished"), ("left its group",), ("finished",)])
def test_so_it_is_told_where_the_launcher_ends_the_others_while_they_exit(stage, words, ended, event) -> None:
    """Even if all of it is read at once, since the collector has waited for the processor."""
    if 1 not in ended:
        finishes(stage, 1)
    for rank in ended:
        for word in words:
            stage.say(rank, Bye(stage.now_ns, word, 83))
    stage.answer(0, waits(BARRIER), groups={"0": 84}, number=0, reason=CLOSED)
    stage.say(0, Bye(stage.now_ns, "RuntimeError", 84))
    stage.tell("exit", 0, exit_code=1, signal=None)
    for rank in ended:
        stage.tell(event, rank, exit_code=None, signal="SIGTERM")
    why = "the others had ended in good order, one barrier behind"
    assert verdict(stage.frame()).line() == f"■ LOST · rank 0 failed in barrier (train.py:61 step): {why}"


def test_where_the_launcher_ends_others_before_that_those_that_had_ended_are_named(stage) -> None:
    stage.answer(0, waits(BARRIER), groups={"0": 84}, number=0, reason=CLOSED)
    stage.say(0, Bye(stage.now_ns, "RuntimeError", 84))
    stage.after_s += 1
    finishes(stage, 1)
    stage.tell("exit", 0, exit_code=1, signal=None)
    for rank in (2, 3):
        stage.tell("lost_rank", rank, exit_code=None, signal="SIGTERM")
    why = "rank 1 had ended in good order, one barrier behind"
    assert verdict(stage.frame()).line() == f"■ LOST · rank 0 failed in barrier (train.py:61 step): {why}"


@pytest.mark.parametrize(("call", "name"), [(BARRIER, "barrier"), (ALL_REDUCE, "all_reduce")])
def test_a_rank_that_leaves_out_the_last_collective_is_told_that_it_left_one_early(stage, call, name) -> None:
    finishes(stage, 1)
    for rank in (0, 2, 3):
        stage.answer(rank, waits(call), groups={"0": 84}, number=0, reason=CLOSED)
        stage.say(rank, Bye(stage.now_ns, "RuntimeError"))
        stage.tell("exit", rank, exit_code=1, signal=None)
    found = stage.frame()
    said = "rank 1 exited with code 0 before the end of training"
    assert verdict(found).line() == (
        f"■ LOST · {said} at step 41, one {name} before the others; ranks 0, 2 and 3 are in {name}"
    )
    assert death_phrase(found.deaths[0]) == f"{said}, one {name} before the others"
    assert ("If it has fewer batches" in next_action(found)) is (name == "all_reduce")


def test_a_rank_that_finishes_first_is_no_cause_where_the_others_do_not_wait_for_it(stage) -> None:
    finishes(stage, 1)
    stage.after_s += 60
    stage.answer(0, users("evaluate"), groups={"0": 83})  # its own work after the training
    in_84(stage, 2, size=2)  # a group without rank 1
    raises(stage, 3, "TimeoutError: upload timed out", load())
    found = stage.frame()
    assert [death.rank for death in found.deaths] == [3]
    assert found.ranks.state[1] == "finished"


def test_a_rank_that_fails_by_itself_is_the_cause_and_not_one_that_has_finished(stage) -> None:
    finishes(stage, 1)
    raises(stage, 0, RESET, BACKWARD, load(61))
    stage.tell("lost_rank", 2, pid=4002, exit_code=None, signal="SIGKILL")
    assert [death.rank for death in stage.frame().deaths] == [2, 0]
