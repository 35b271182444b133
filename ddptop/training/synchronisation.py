"""Whether DDP has all-reduced the gradients that an optimizer uses, and whether each forward had a backward.

DDP's reducer all-reduces the gradients of a backward only if a forward of the DDP model has prepared it: one
that records gradients, outside `no_sync()`. Any other backward adds to the gradients of this rank alone.
Where an optimizer steps then, the replicas differ, unless the script synchronises them itself. So such a
step is reported with a checksum of some parameters, and the collector compares the ranks.

In a script that is right this takes 1 to 2 us of a step. Nothing of the model changes, and no collective is
called.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Sequence
from ctypes import c_char
from typing import Any

from ddptop.protocol.messages import Scalar
from ddptop.training.guard import guard
from ddptop.training.recorder import Recorder
from ddptop.training.replica import is_checkable
from ddptop.training.torch_compat.ddp import averagers
from ddptop.training.torch_compat.dynamo import no_torch_function, plain_module

Report = Callable[[str, int, "dict[str, Scalar]"], None]
"""Called with the kind of an event, its step and its fields."""

FIRST_REPORTS = 8
"""Steps with unreduced gradients that are reported one by one; of later ones those whose number is a power of
two. A script that makes them makes one in every step."""

MOST_REPORTS = 200
"""Reports of a process besides those."""

CHECKED_BYTES = 16 * 1024
"""Bytes of each checked parameter that are read, from its begin: 4 us. Unreduced gradients soon change these,
too."""

USUAL_AFTER = 8
"""Backwards in a row with more forwards than usual, after which so many are usual."""


class WatchedModel:
    """One DDP model: what its reducer is prepared for, and what has come of it."""

    def __init__(self, ddp: Any, number: int, with_gradients: list[WatchedModel]) -> None:
        """`with_gradients`: takes the models that get gradients in a backward."""
        self.number = number
        self.name = type(plain_module(ddp.module)).__name__
        self.prepared = False
        """Whether the reducer will all-reduce the next gradients: its `expect_autograd_hooks_`."""
        self.unreduced = ""
        """Why the newest gradients were not all-reduced; empty: they were."""
        self.forwards = 0
        """DDP forwards with gradients since the last backward."""
        self.training_forwards = self.prepared_forwards = 0
        """How many of these forwards were in training mode, and how many of those have prepared the
        reducer."""
        self.usual_forwards: int | None = None
        """How many of them come before a backward; None: there was no backward yet."""
        self.backwards_with_more = 0
        self.forward_step = self.reported_step = -1
        """The steps of the last DDP forward, and of the last optimizer step with unreduced gradients."""
        self.unreduced_steps = 0
        self.is_forward_known = True
        """Whether every forward since the last backward was seen: with several models, one that was not may
        belong to a backward of the next step."""
        self.sharing: list[WatchedModel] = []
        """Other DDP models of the same parameters: one all-reduce is enough."""
        self.after_step: int | None = None
        """Checksum after an optimizer step with unreduced gradients; None: not known."""
        self.waits_after_step = 0
        trained = [
            parameter
            for name, parameter in ddp.module.named_parameters()
            if parameter.requires_grad and name not in ddp.parameters_to_ignore
        ]
        self.watched = list({id(parameter): parameter for parameter in trained[:1] + trained[-1:]}.values())
        """Its first and last parameter that are trained. Kept by the reducer as long as here."""
        # No weak references to parameters: torch refuses to swap a tensor that has one.
        watched = self.watched
        self._ddp = weakref.ref(ddp, lambda _: watched.clear())
        self._has_gradient = False
        self._with_gradients = with_gradients

    def note_gradient(self) -> None:
        """Note that a watched parameter gets a gradient in the running backward; on a thread of the autograd
        engine."""
        if not self._has_gradient:
            self._has_gradient = True
            self._with_gradients.append(self)

    def settle_backward(self) -> None:
        """The backward has ended."""
        self._has_gradient = self.prepared = False
        self.is_forward_known = True
        self.forwards = self.training_forwards = self.prepared_forwards = 0

    def forget_backward(self) -> None:
        """Forget what happened: some of it was not seen."""
        self.settle_backward()
        self.is_forward_known = False
        self.unreduced, self.after_step = "", None

    def is_stepped_by(self, optimizer: Any) -> bool:
        """Whether the optimizer has one of the model's parameters, and these have gradients."""
        ddp = self._ddp()
        with no_torch_function():
            if ddp is None or all(parameter.grad is None for parameter in self.watched):
                return False
        numbers = {id(parameter) for parameter in ddp.module.parameters()}
        return any(id(p) in numbers for group in optimizer.param_groups for p in group["params"])

    def checksum(self) -> int | None:
        """CRC-32 of the begin of the watched parameters; None where they cannot be read in place."""
        value = 0
        with no_torch_function():
            for parameter in self.watched:
                if not is_checkable(parameter):
                    return None
                storage = parameter.untyped_storage()
                offset = parameter.storage_offset() * parameter.element_size()
                size = min(int(parameter.nbytes), CHECKED_BYTES)
                if storage.nbytes() < offset + size:
                    return None
                value = zlib.crc32((c_char * size).from_address(storage.data_ptr() + offset), value)
        return value


class SynchronisationWatch:
    """Watches the models of this process that are added to it. On the training thread."""

    def __init__(self, recorder: Recorder, report: Report) -> None:
        self._recorder = recorder
        self._report = report
        self._models: dict[int, WatchedModel] = {}
        """By `id()` of the DDP model, until it is gone."""
        self._with_gradients: list[WatchedModel] = []
        self._reports = 0
        self.has_unreduced = False
        """Whether an optimizer may step with unreduced gradients."""
        recorder.after_backward = self.backward_ends
        recorder.forget_gradients = self.forget_backwards

    def watch_model(self, ddp: Any, number: int, ranks: int) -> WatchedModel | None:
        """Watch a model that so many ranks have; `note_gradient` of the result is to be called."""
        self._models.pop(id(ddp), None)
        if ranks < 2:
            return None
        model = WatchedModel(ddp, number, self._with_gradients)
        for earlier_model in self._models.values():
            if any(
                parameter is other_parameter
                for parameter in model.watched
                for other_parameter in earlier_model.watched
            ):
                model.sharing.append(earlier_model)
                earlier_model.sharing.append(model)
        self._models[id(ddp)] = model
        weakref.finalize(ddp, self._models.pop, id(ddp), None).atexit = False
        return model

    def stop_watching(self) -> None:
        """Watch no model any more."""
        self._models.clear()
        self._with_gradients.clear()
        self.has_unreduced = False

    def forget_backwards(self) -> None:
        """Forget what happened: some of it was not seen."""
        self._with_gradients.clear()
        self.has_unreduced = False
        for model in self._models.values():
            model.forget_backward()

    def forward_begins(self, ddp: Any) -> None:
        """A DDP forward with gradients."""
        model = self._models.get(id(ddp))
        if model is None:
            return
        model.forwards += 1
        model.forward_step = self._recorder.step
        prepares = ddp.require_backward_grad_sync
        if ddp.training:
            model.training_forwards += 1
            model.prepared_forwards += prepares
        if prepares:
            model.prepared = True

    def backward_ends(self) -> None:
        """The outermost backward has ended."""
        if self._with_gradients:
            try:
                self._settle_models(self._with_gradients)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
                self.stop_watching()

    def _settle_models(self, models: list[WatchedModel]) -> None:
        for model in models:
            if model.prepared or (
                model.sharing and any(sharing_model.prepared for sharing_model in model.sharing)
            ):
                model.unreduced = ""
            elif model.forwards or model.is_forward_known:
                self._not_reduced(model)
            if model.training_forwards == model.usual_forwards:
                model.backwards_with_more = 0
            elif model.training_forwards:
                self._compare_forwards(model)
        # Only now: models that share parameters look at each other's `prepared`.
        for model in models:
            model.settle_backward()
        models.clear()
        self.has_unreduced = any(model.unreduced for model in self._models.values())

    def _not_reduced(self, model: WatchedModel) -> None:
        recorder = self._recorder
        if model.forwards:
            model.unreduced = "no_sync"
        elif model.forward_step == recorder.step and not recorder.has_stepped:
            # A second backward of the same forward: the reducer was prepared for one.
            model.unreduced = "again"
        else:
            model.unreduced = "bypass"
            if recorder.bypass_ends():
                self._report_unreduced(model)

    def _compare_forwards(self, model: WatchedModel) -> None:
        """Report forwards that had no backward: more of them came before this one than usual."""
        usual, count = model.usual_forwards, model.training_forwards
        if usual is None:
            model.usual_forwards = count
            return
        if count < usual:
            model.backwards_with_more = 0
            return
        model.backwards_with_more += 1
        if model.backwards_with_more >= USUAL_AFTER:
            model.usual_forwards, model.backwards_with_more = count, 0
            return
        if self._reports < MOST_REPORTS:
            self._reports += 1
            fields = {"forwards": count - usual, "prepared": max(0, model.prepared_forwards - usual)}
            self._report("skipped_backward", self._recorder.step, _of_model(model) | fields)

    def optimizer_begins(self, optimizer: Any) -> None:
        """`step()` of an optimizer is called while there are unreduced gradients."""
        try:
            for model in self._stepped_models(optimizer):
                self._report_unreduced(model)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
            self.stop_watching()

    def optimizer_ends(self, optimizer: Any) -> None:
        """`step()` has returned; likewise."""
        try:
            for model in self._stepped_models(optimizer):
                model.after_step = model.checksum()
                model.waits_after_step = self._recorder.own_waits
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
            self.stop_watching()

    def _stepped_models(self, optimizer: Any) -> Sequence[WatchedModel]:
        models = [*self._models.values()]
        return [model for model in models if model.unreduced and model.is_stepped_by(optimizer)]

    def _report_unreduced(self, model: WatchedModel) -> None:
        step = self._recorder.step
        if model.reported_step == step:  # by another optimizer
            return
        model.reported_step = step
        self._recorder.bypassed |= model.unreduced == "bypass"
        model.unreduced_steps += 1
        count, checksum = model.unreduced_steps, model.checksum()
        changed = model.after_step is not None and model.after_step != checksum
        if count > FIRST_REPORTS and count & (count - 1):
            if not changed or self._reports >= MOST_REPORTS:
                return
            self._reports += 1
        self._report(
            "unreduced",
            step,
            {
                **_of_model(model),
                "why": model.unreduced,
                "count": count,
                "checksum": checksum,
                "waits": self._recorder.own_waits - model.waits_after_step,
                "averaged": averagers.made,
            },
        )


def _of_model(model: WatchedModel) -> dict[str, Scalar]:
    return {"model": model.number, "name": model.name}
