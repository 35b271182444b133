"""The wrappers around torch: what they read of a loss, and that our own failure never reaches the loop."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from ddptop.protocol.messages import Phase
from ddptop.training import guard as guard_module
from ddptop.training import phases
from ddptop.training.guard import Guard
from ddptop.training.recorder import Recorder
from ddptop.training.step_record import EVENT, STAMP_WAIT
from ddptop.training.synchronisation import SynchronisationWatch
from tests.training.test_recorder import records_of


@pytest.fixture(autouse=True)
def fresh_guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    fresh = Guard()
    monkeypatch.setattr(phases, "guard", fresh)
    monkeypatch.setattr(guard_module, "guard", fresh)
    return fresh


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_loss_is_read_as_item_reads_it(dtype: torch.dtype) -> None:
    loss = (torch.tensor([1.5, 2.25], dtype=dtype, requires_grad=True)[1] * 3).reshape(1)[0]
    assert phases.ScaledLoss().value_of(loss) == loss.item()


def test_a_loss_that_is_not_stored_as_it_reads_is_read_right() -> None:
    negated = torch.tensor([1.0 + 2.0j]).conj().imag[0]
    assert negated.is_neg()
    assert phases.ScaledLoss().value_of(negated) == -2.0
    assert phases.ScaledLoss().value_of(torch._efficientzerotensor((1,))) == 0.0


def test_an_element_of_a_larger_tensor_is_read_at_its_own_place() -> None:
    values = torch.arange(8, dtype=torch.float32)
    assert phases.ScaledLoss().value_of(values[5]) == 5.0


@pytest.mark.parametrize(
    "tensors", [None, [torch.zeros(())], torch.zeros(3), torch.nn.Parameter(torch.zeros(()))]
)
def test_what_is_no_scalar_loss_is_unknown(tensors: Any) -> None:
    assert phases.ScaledLoss().value_of(tensors) is None


def test_a_scaled_loss_is_read_before_scaling_and_only_once() -> None:
    scaled = phases.ScaledLoss()
    scale = scaled.wrap_scale(lambda _scaler, outputs: outputs * 1024)
    result = scale(None, torch.tensor(0.5))
    assert scaled.value_of(scaled.take_unscaled(result)) == 0.5
    assert scaled.value_of(scaled.take_unscaled(result)) == 512.0


def watch_of(recorder: Recorder) -> SynchronisationWatch:
    """A watch over no model."""
    return SynchronisationWatch(recorder, lambda *_: pytest.fail("nothing is to be reported"))


def wrapped_backward(recorder: Recorder, original: Callable[..., Any], scaled: Any = None) -> Any:
    """`torch.autograd.backward` as the recorder wraps it."""
    return phases.make_backward(
        recorder, scaled or phases.ScaledLoss(), phases.LastGradients(recorder), original
    )


def switched_wrappers() -> phases.SwitchedWrappers:
    """Of no function yet."""
    return phases.SwitchedWrappers(phases.LastGradients(Recorder()), phases.ScaledLoss())


def test_wrappers_are_taken_out_and_put_back_also_over_one_that_takes_itself_out() -> None:
    def original() -> str:
        return "torch's"

    def until_called() -> str:
        torch_like.backward = original
        return original()

    torch_like = SimpleNamespace(backward=phases.seen_through(until_called, original))
    switched = switched_wrappers()
    switched.wrap_function(phases.Function(torch_like, "backward"), lambda inner: lambda: "seen " + inner())
    for _ in range(2):
        assert torch_like.backward() == "seen torch's"
        switched.take_out(True)
        assert torch_like.backward() == "torch's"
        switched.take_out(False)
    assert torch_like.backward() == "seen torch's"


def test_what_replaces_a_wrapper_while_it_is_out_stays() -> None:
    torch_like = SimpleNamespace(save=lambda: "torch's")
    switched = switched_wrappers()
    switched.wrap_function(phases.Function(torch_like, "save"), lambda inner: lambda: "seen " + inner())
    switched.take_out(True)
    torch_like.save = lambda: "the script's"
    switched.take_out(False)
    assert torch_like.save() == "the script's"


def loop(recorder: Recorder, backward: Any, steps: int) -> None:
    for _ in range(steps):
        recorder.forward_begins(True)
        recorder.forward_ends()
        backward(torch.tensor(1.0))
        recorder.optimizer_begins(1)
        recorder.optimizer_ends(1)


def test_a_loss_that_cannot_be_read_is_counted_and_the_steps_go_on(fresh_guard: Guard) -> None:
    recorder = Recorder()

    def refuse(_tensors: Any) -> float:
        raise RuntimeError("no storage")

    called = []
    backward = wrapped_backward(
        recorder, lambda *a, **k: called.append(a), SimpleNamespace(take_unscaled=refuse)
    )
    loop(recorder, backward, 4)
    recorder.finish_step()
    records = records_of(recorder)
    assert [(record.step, record.loss) for record in records] == [(n, None) for n in range(4)]
    assert len(called) == 4
    assert fresh_guard.count == 4


def test_an_exception_of_the_user_passes_through_and_the_next_step_counts() -> None:
    recorder = Recorder()
    fail = [True]

    def original(_tensors: Any) -> None:
        if fail.pop():
            raise ZeroDivisionError("theirs")

    backward = wrapped_backward(recorder, original)
    recorder.forward_begins(True)
    recorder.forward_ends()
    with pytest.raises(ZeroDivisionError, match="theirs"):
        backward(torch.tensor(1.0))
    fail.append(False)
    loop(recorder, backward, 1)
    recorder.finish_step()
    assert len(recorder.records) == 1


def test_a_wrapped_function_keeps_its_frame_out_of_tracebacks() -> None:
    def original(_tensors: Any) -> None:
        raise KeyError("x")

    backward = wrapped_backward(Recorder(), original)
    with pytest.raises(KeyError) as caught:
        backward(None)
    names = [entry.name for entry in caught.traceback]
    assert "original" in names[-1]
    if sys.version_info >= (3, 11):
        assert names.count("backward") == 0


class Model:
    """What `DDP.forward` does, around a user's module: with its methods wrapped, or with the plain ones."""

    require_backward_grad_sync = True

    def __init__(self, recorder: Recorder, module: Callable[[Any], Any]) -> None:
        self._module = module
        self._pre = phases.make_pre_forward(
            recorder, watch_of(recorder), lambda _self, *inputs, **named: (inputs, named)
        )
        self._post = phases.make_post_forward(recorder, lambda _self, output: output)

    def forward(self, *inputs: Any) -> Any:
        inputs, named = self._pre(self, *inputs)
        return self._post(self, self._module(*inputs, **named))


def test_a_forward_is_timed_also_after_one_that_raised_and_around_one_without_gradients() -> None:
    recorder = Recorder()
    seen: list[Phase] = []
    teacher = Model(recorder, lambda x: x + 1)

    def module(x: int) -> int:
        seen.append(recorder.phase)
        if x < 0:
            raise ZeroDivisionError("theirs")
        with torch.no_grad():
            x = teacher.forward(x)
        seen.append(recorder.phase)
        return x

    model = Model(recorder, module)
    backward = wrapped_backward(recorder, lambda _tensors: None)
    with pytest.raises(ZeroDivisionError, match="theirs"):
        model.forward(-1)
    for _ in range(2):
        assert model.forward(1) == 2
        assert recorder.phase is Phase.OTHER
        backward(torch.tensor(1.0))
        recorder.optimizer_begins(1)
        recorder.optimizer_ends(1)
    recorder.finish_step()
    records = records_of(recorder)
    assert [record.step for record in records] == [0, 1]
    assert all(0 < record.forward < record.end - record.begin for record in records)
    assert seen == [Phase.FORWARD] * 5
    assert recorder.calls_since_forward == 1


def test_an_evaluation_is_no_step() -> None:
    recorder = Recorder()
    model = Model(recorder, lambda x: x)
    with torch.no_grad():
        assert [model.forward(x) for x in (1, 2)] == [1, 2]
    assert (recorder.calls_since_forward, recorder.phase, len(recorder.records)) == (2, Phase.OTHER, 0)


def test_an_optimizer_is_noticed_once_one_was_built() -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert phases.optimizer_exists()


class Waiting:
    """The wait of a collective, as it is wrapped on this thread."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.recorder = Recorder()
        self.recorder.forward_begins(True)
        self.watch = phases.LastGradients(self.recorder)
        self.wait = phases.make_wait(self.recorder, self.watch, threading.get_ident(), original)

    def noted(self) -> list[int]:
        """The phases of the waits so far."""
        phase, stamps = int(self.recorder.phase), self.recorder.stamps
        return [phase for stamp in stamps if stamp & EVENT == STAMP_WAIT]


def test_a_wait_is_noted_and_its_result_and_arguments_are_torchs() -> None:
    waiting = Waiting(lambda work, timeout=None, **named: (work, timeout, named))
    assert waiting.wait("work", 3, more=4) == ("work", 3, {"more": 4})
    assert waiting.noted() == [int(Phase.FORWARD)]


def test_a_wait_that_raises_is_noted_and_raises_as_torch_does() -> None:
    def original(_work: Any) -> None:
        raise TimeoutError("theirs")

    waiting = Waiting(original)
    with pytest.raises(TimeoutError, match="theirs") as caught:
        waiting.wait("work")
    assert waiting.noted() == [int(Phase.FORWARD)]
    if sys.version_info >= (3, 11):
        assert [entry.name for entry in caught.traceback].count("wait") == 0


def test_a_wait_on_another_thread_is_not_trainings_but_the_autograd_engines_is() -> None:
    waiting = Waiting(lambda work: work)

    def elsewhere(*, engine: bool) -> None:
        if engine:
            waiting.watch.thread = threading.get_ident()
        assert waiting.wait("work") == "work"

    for engine, noted in ((False, []), (True, [int(Phase.FORWARD)])):
        thread = threading.Thread(target=elsewhere, kwargs={"engine": engine})
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        assert waiting.noted() == noted


def test_the_end_of_an_epoch_is_no_batch_of_an_evaluation() -> None:
    recorder = Recorder()
    fetch = phases.make_next_data(recorder, get_ident(), next)
    epoch = iter(DataLoader([1.0], batch_size=None))
    for taken in (1, 2):
        with suppress(StopIteration):
            fetch(epoch)
        assert recorder.calls_since_forward == 1, taken
    fetch(iter(DataLoader([1.0], batch_size=None)))
    assert recorder.calls_since_forward == 2


def test_one_of_the_unseen_steps_in_a_row_is_clocked_and_the_others_are_called_directly() -> None:
    costs: deque[int] = deque()
    hooks: OrderedDict[int, Any] = OrderedDict()
    handle = RemovableHandle(hooks)
    calls: list[object] = []

    def unseen_end(optimizer: object, *_: object) -> None:
        calls.append(optimizer)

    hooks[handle.id] = phases.make_clocked_end(unseen_end, handle, costs)
    for step in range(1, 8):
        hooks[handle.id](step, (), {})
        assert (hooks[handle.id] is unseen_end) is (step >= phases.CLOCKED_UNSEEN) is bool(costs)
    assert calls == [*range(1, 8)] and len(costs) == 1 and costs[0] > 0


def test_where_the_clocked_step_is_the_last_unseen_one_the_hook_of_seen_steps_stays() -> None:
    costs: deque[int] = deque()
    hooks: OrderedDict[int, Any] = OrderedDict()
    handle = RemovableHandle(hooks)
    seen_end = Any

    def unseen_end(step: int, *_: object) -> None:
        if step == phases.CLOCKED_UNSEEN:  # as `see_again` does
            hooks[handle.id] = seen_end

    hooks[handle.id] = phases.make_clocked_end(unseen_end, handle, costs)
    for step in range(1, phases.CLOCKED_UNSEEN + 1):
        hooks[handle.id](step, (), {})
    assert hooks[handle.id] is seen_end and not costs
