"""Which line takes the time: samples of the training thread's stack, and the tree that they make."""

from __future__ import annotations

import copy
import random
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.evidence import (
    SAMPLED_PLACES,
    StackSamples,
    asks_for_samples,
    requested_place,
    samples_request,
)
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, NS
from ddptop.training import attach
from ddptop.training.budget import SAMPLING_SHARES, Budget
from ddptop.training.evidence import sampler as module
from ddptop.training.evidence.call_tree import MAX_CALLS, CallTree
from ddptop.training.evidence.sampler import FEW_SAMPLES, LEAST_PAUSE_NS, PAUSE_NS, SAMPLES, StackSampler
from ddptop.training.recorder import Recorder

USUAL_STEP_NS = 25_000_000


class Sampled:
    """A sampler of this thread, on a clock and with random numbers that the test owns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
        self.now_ns, self.cpu_ns, self.look_costs_ns = 1000 * NS, 0, 0
        clocks = {"monotonic_ns": lambda: self.now_ns, "thread_time_ns": self.spend}
        monkeypatch.setattr(module, "time", SimpleNamespace(**clocks))
        seeded = SimpleNamespace(Random=lambda _thread: random.Random(seed))
        monkeypatch.setattr(module, "random", seeded)
        self.recorder = Recorder()
        self.usual_step_ns = 0
        """0: not known, and no step lasts very long."""
        thread = threading.get_ident()
        self.share = 0.003
        self.sampler = StackSampler(self.recorder, thread, lambda: self.usual_step_ns, lambda: self.share)

    def spend(self) -> int:
        """CPU time of the thread; what it does until it is read again takes `look_costs_ns`."""
        self.cpu_ns += self.look_costs_ns
        return self.cpu_ns

    def go_on(self, seconds: float, request: int = 0) -> StackSamples | None:
        """As the publisher's thread does; the last samples that were taken."""
        samples = None
        for _ in range(int(seconds * 100)):
            self.now_ns += NS // 100
            self.sampler.next_sample_s()
            self.sampler.take_due_sample()
            samples = self.sampler.take_samples(request) or samples
        return samples


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampled]:
    sampled = Sampled(monkeypatch)
    yield sampled
    # A series that a test has left running has changed the process.
    sampled.sampler.end_series()


def call_in(tree: CallTree, calls: list[Callable[[Callable[[], None]], None]]) -> None:
    """Have these functions call one another, and the last one be sampled."""

    def sample() -> None:
        tree.add_sample(sys._getframe(1))

    following: Callable[[], None] = sample
    for call in reversed(calls):
        following = partial(call, following)
    following()


def test_the_number_of_an_ask_holds_the_place() -> None:
    for place in SAMPLED_PLACES:
        number = samples_request(1_790_000_000_000, place)
        assert asks_for_samples(number) and requested_place(number) == place and number < 2**63
    assert requested_place(samples_request(1, "cpu")) == ""
    assert not asks_for_samples(1_790_000_000_000_000_000), "one for evidence"


@pytest.mark.parametrize(("look_costs_ns", "most"), [(50_000, SAMPLES), (600_000, 50), (3_000_000, 12)])
def test_a_series_takes_no_more_than_its_share(sampled: Sampled, look_costs_ns: int, most: int) -> None:
    """0.3 % of a core: some 50 looks of 0.6 ms in 10 s."""
    sampled.look_costs_ns = look_costs_ns
    sampled.recorder.forward_begins(True)
    # With fewer than ten looks in 10 s, which chance may bring, a series goes on.
    samples = sampled.go_on(31, samples_request(1, "forward"))
    assert samples is not None and most / 2 <= samples.samples <= 1.2 * most
    assert samples.samples * look_costs_ns <= 0.004 * samples.lasted_ms * 1_000_000 + look_costs_ns


def test_where_next_to_nothing_is_left_of_the_budget_looks_are_spread_and_counted(sampled: Sampled) -> None:
    """0.05 % of a core: a look of 250 us every half second, for 10 s, or for 30 s where few are samples."""
    sampled.look_costs_ns, sampled.share = 250_000, Budget(1.0).budget_pct / 100 * SAMPLING_SHARES[0]
    sampled.recorder.forward_begins(True)
    sampled.go_on(9, samples_request(1, "forward"))
    assert 0 < sampled.sampler.present_share <= 1.3 * sampled.share
    samples = sampled.go_on(2, samples_request(1, "forward"))
    assert samples is not None and 12 <= samples.samples <= 26
    spent_ns = sampled.sampler.take_spent_ns()
    assert 12 <= spent_ns / sampled.look_costs_ns <= 30
    assert sampled.sampler.take_spent_ns() == sampled.sampler.present_share == 0
    sampled.now_ns += PAUSE_NS
    assert sampled.go_on(12, samples_request(2, "data")) is None
    samples = sampled.go_on(19, samples_request(2, "data"))
    assert samples is not None and samples.samples == 0
    assert sampled.sampler.take_spent_ns() <= 1.3 * sampled.share * 31 * NS


def test_the_first_samples_are_sent_before_the_series_is_over(sampled: Sampled) -> None:
    sampled.look_costs_ns = 600_000
    sampled.recorder.forward_begins(True)
    first = None
    while first is None:
        first = sampled.go_on(0.01, samples_request(1, "forward"))
    assert first.samples == FEW_SAMPLES and first.lasted_ms < 5_000
    assert "go_on" in {call.function for call in first.calls}
    sent = []
    while sampled.sampler.next_sample_s() is not None:
        sent.append(sampled.go_on(0.01, samples_request(1, "forward")))
    whole = [samples for samples in sent if samples is not None]
    assert [samples.number for samples in whole] == [first.number]
    assert whole[0].samples > 2 * first.samples and whole[0].t_ns > first.t_ns


def test_samples_in_another_place_or_while_waiting_do_not_count(sampled: Sampled) -> None:
    recorder = sampled.recorder
    assert sampled.go_on(3) is None, "nobody has asked"
    recorder.forward_begins(True)
    assert sampled.go_on(9, samples_request(1, "data")) is None
    samples = sampled.go_on(3, samples_request(1, "data"))
    assert samples is not None and (samples.samples, samples.calls) == (0, ())

    samples = sampled.go_on(10, samples_request(2, "forward"))
    assert samples is not None and samples.samples == SAMPLES and samples.place == "forward"
    assert "go_on" in {call.function for call in samples.calls}

    recorder.waiting_since = 1
    samples = sampled.go_on(20, samples_request(3, ""))
    assert samples is not None and samples.samples == 0, "it waits in a collective"


def test_backward_counts_until_its_last_gradient(sampled: Sampled) -> None:
    recorder = sampled.recorder
    recorder.forward_begins(True)
    recorder.forward_ends()
    recorder.backward_begins(0.5)
    sampled.go_on(0.1, samples_request(1, "backward"))
    sampled.go_on(0.2, samples_request(1, "backward"))
    recorder.last_gradient()
    samples = sampled.go_on(10, samples_request(1, "backward"))
    assert samples is not None and 0 < samples.samples < SAMPLES


def test_not_again_within_a_minute(sampled: Sampled) -> None:
    sampled.recorder.forward_begins(True)
    assert sampled.go_on(12, samples_request(1, "forward")) is not None
    assert sampled.go_on(LEAST_PAUSE_NS / NS + 12, samples_request(2, "forward")) is None
    assert sampled.go_on(12, samples_request(3, "")) is not None, "of another place"
    sampled.now_ns += PAUSE_NS
    assert sampled.go_on(12, samples_request(4, "forward")) is not None


def test_never_in_a_shadow_block(sampled: Sampled) -> None:
    sampled.recorder.shadow.flag = 8
    assert sampled.go_on(12, samples_request(1, "")) is None


@pytest.mark.parametrize("every", [2, 4, 16])
def test_no_looks_are_wasted_on_steps_that_are_left_out(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """With 0.02 % of a core for looks of 100 us there are some 20 in 10 s.

    When a look comes is left to chance, so this is about many series, each with a seed of its own.
    """
    lasted_ms, n_samples, n_looks = [], 0, 0.0
    for seed in range(40):
        sampled = Sampled(monkeypatch, seed)
        recorder, shadow = sampled.recorder, sampled.recorder.shadow
        sampled.look_costs_ns, sampled.share, sampled.usual_step_ns = 100_000, 0.0002, 10_000_000
        recorder.forward_begins(True)
        samples = None
        while samples is None or sampled.sampler.next_sample_s() is not None:
            recorder.step += 1
            shadow.stands_aside_from(recorder.step, True, every)
            samples = sampled.go_on(0.01, samples_request(1, "forward")) or samples
        assert samples.samples >= FEW_SAMPLES
        lasted_ms.append(samples.lasted_ms)
        n_samples += samples.samples
        n_looks += sampled.sampler.take_spent_ns() / sampled.look_costs_ns
    assert statistics.median(lasted_ms) < 12_000
    assert n_samples >= 0.8 * n_looks, "all but first ones, and those at the edge of a block"


def test_a_step_that_lasts_very_long_is_sampled_until_it_ends(sampled: Sampled) -> None:
    recorder, sampled.usual_step_ns = sampled.recorder, USUAL_STEP_NS
    recorder.forward_begins(True)
    recorder.forward_ends()
    assert sampled.go_on(3) is None
    recorder.step += 1
    samples = sampled.go_on(1)
    assert samples is not None and 10 < samples.samples < 30
    assert (samples.number, samples.step, samples.place) == (0, 0, "")
    assert sampled.go_on(20) is None, "not again within a minute"


def test_a_long_step_has_a_series_of_its_own_also_in_the_place_that_is_asked_for(sampled: Sampled) -> None:
    recorder, sampled.usual_step_ns, sampled.look_costs_ns = sampled.recorder, USUAL_STEP_NS, 3_000_000
    recorder.forward_begins(True)
    asked = sampled.go_on(3, samples_request(1, "forward"))
    assert asked is not None and asked.place == "forward" and asked.number
    recorder.step += 1
    own = sampled.go_on(1, samples_request(1, "forward"))
    assert own is not None and own.samples and (own.number, own.place) == (0, "")


def test_what_waits_for_others_is_not_sent_of_a_long_step(sampled: Sampled) -> None:
    sampled.recorder.waiting_since, sampled.usual_step_ns = 1, USUAL_STEP_NS
    assert sampled.go_on(30) is None


def test_the_switch_interval_is_set_again(sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "_current_frames", lambda: {threading.get_ident(): sys._getframe()})
    usual_s = sys.getswitchinterval()
    sampled.recorder.forward_begins(True)
    sampled.go_on(0.5, samples_request(1, "forward"))
    assert sys.getswitchinterval() < usual_s
    sampled.go_on(12, samples_request(1, "forward"))
    assert sys.getswitchinterval() == usual_s


def test_a_thread_that_cannot_look_says_for_how_long(sampled: Sampled) -> None:
    sampled.recorder.forward_begins(True)
    for _ in range(5):  # a C call holds the interpreter lock for 2 s at a time
        sampled.now_ns += 2 * NS
        sampled.sampler.take_due_sample()
        sampled.sampler.take_samples(samples_request(1, "forward"))
    samples = sampled.go_on(2, samples_request(1, "forward"))
    assert samples is not None and 6000 < samples.held_ms <= samples.lasted_ms


def test_a_long_step_in_which_nobody_could_look_is_sampled_at_its_end(sampled: Sampled) -> None:
    sampled.recorder.forward_begins(True)
    sampled.recorder.forward_ends()
    sampled.usual_step_ns = USUAL_STEP_NS
    sampled.go_on(0.5)
    sampled.now_ns += 6 * NS
    samples = sampled.go_on(0.02) or sampled.go_on(8)
    assert samples is not None and samples.number == 0
    assert samples.samples > 0 and samples.held_ms > 5_000


def test_the_scripts_random_numbers_are_left_alone(sampled: Sampled) -> None:
    before = random.getstate()
    sampled.recorder.forward_begins(True)
    sampled.go_on(12, samples_request(1, "forward"))
    assert random.getstate() == before


def load(call: Callable[[], None]) -> None:
    call()


def transform(call: Callable[[], None]) -> None:
    call()


def test_a_tree_has_the_users_calls_and_their_shares() -> None:
    tree = CallTree()
    for calls_made in [[load, transform]] * 8 + [[load]] * 2:
        call_in(tree, calls_made)
    calls = {call.function: call for call in tree.most_sampled()}
    assert (calls["load"].samples, calls["transform"].samples) == (10, 8)
    assert calls["load"].file.endswith("test_sampler.py") and calls["load"].line > 0
    for index, call in enumerate(tree.most_sampled()):
        assert call.parent < index


OWN_FILE = attach.__file__
"""A file of ddptop that wraps a function of torch, which the user calls."""


class Copied:
    """What is done while `copy.deepcopy` copies it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def __deepcopy__(self, memo: object) -> None:
        self._work()


def test_of_a_library_the_first_call_is_kept() -> None:
    tree = CallTree()
    copy.deepcopy([Copied(lambda: tree.add_sample(sys._getframe(2)))])
    *_, users, library = tree.most_sampled()
    assert users.function == "test_of_a_library_the_first_call_is_kept"
    assert (library.function, library.line) == ("copy.deepcopy", 0)


def test_what_a_library_calls_in_the_users_code_is_kept() -> None:
    tree = CallTree()
    copy.deepcopy([Copied(lambda: tree.add_sample(sys._getframe()))])
    functions = [call.function for call in tree.most_sampled()][-3:]
    assert functions == ["test_what_a_library_calls_in_the_users_code_is_kept", "__deepcopy__", "<lambda>"]


@pytest.mark.parametrize("files", [("torch/autograd/graph.py", OWN_FILE), (OWN_FILE,)])
def test_a_tree_has_no_calls_of_ddptop_itself(files: tuple[str, ...]) -> None:
    """Not either where no call is the user's, as in a thread that a library has started."""
    tree = CallTree()
    calls: dict[str, Callable[..., None]] = {"call": lambda: tree.add_sample(sys._getframe(1))}
    for number, file in enumerate(files):
        path = file if file == OWN_FILE else f"/venv/lib/python3.12/site-packages/{file}"
        text = f"def backward{number}(call=call): call()\ncall = backward{number}"
        exec(compile(text, path, "exec"), calls)
    thread = threading.Thread(target=calls["call"])
    thread.start()
    thread.join()
    assert [call.file for call in tree.most_sampled() if call.file == OWN_FILE] == []
    innermost = tree.most_sampled()[-1]
    assert innermost.file.endswith(files[0] if len(files) > 1 else "threading.py")


def test_a_tree_is_bounded() -> None:
    tree = CallTree()
    often = compile("def often(call): call()", "/home/me/" + "x" * 2000 + ".py", "exec")
    names: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(often, names)
    for number in range(SAMPLES):
        exec(compile(f"def rare{number}(call): call()", "/home/me/train.py", "exec"), names)
        call_in(tree, [names["often"], names[f"rare{number}"]] + [names["often"]] * 4)
    calls = tree.most_sampled()
    assert len(calls) == MAX_CALLS
    assert all(-1 <= call.parent < index for index, call in enumerate(calls))
    message = StackSamples(1, 0, 1, "", SAMPLES, 1, 0, calls)
    assert len(encode(message)) < MAX_RANK_MESSAGE_BYTES // 2
    assert decode(encode(message)) == message
