"""How long this rank evaluates between two steps: from the first batch of the evaluation to the last one.

A batch belongs to an evaluation if a forward without gradients follows it, or another batch of the same
iterator, and no training forward came between. So the batch that is trained on next does not, nor do those of
a second DataLoader of the training. Without the pauses beside it, and without waits in collectives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ddptop.training.guard import guard

now = time.monotonic_ns

LEAST_NS = 10_000_000
"""An evaluation is reported if the next training forward comes so long after its begin: training may run a
forward without gradients in each step."""

NoteEvaluated = Callable[[int, int, int], None]
"""Takes when an evaluation ended, how long it was, and how long it fetched batches, in ns."""


class EvaluationSpan:
    """Watches what comes between two training forwards; on the training thread.

    Nothing is called where each step fetches a batch of the iterator that is trained on."""

    def __init__(self) -> None:
        self.note_evaluated: NoteEvaluated = _ignore
        self.is_open = False
        """Whether anything has been noted since the last training forward."""
        self.waited_ns = 0
        """What the thread has waited in collectives since then; added by the recorder."""
        self.forget()

    def forget(self) -> None:
        """Nothing is known of the time since the last training forward."""
        self.is_open = False
        self.waited_ns = 0
        self._began = self._ended = self._data_ns = 0
        self._waited_until = self._waited_before = 0
        """What had been waited at the end and at the begin of the evaluation."""
        self._iterator: Any = None
        """A weak reference to that of the newest batch; None: a forward came after it, or it is exhausted."""
        self._evaluated: Any = None
        """To the iterator of which batches are known to be evaluated."""
        self._fetch_began = self._fetch_ended = 0
        self._waited_at_begin = self._waited_at_end = 0
        """What had been waited at the begin and the end of the newest fetch."""

    def fetch_begins(self, iterator: Any) -> None:
        """A batch is fetched that may be one of an evaluation. `iterator`: a weak reference."""
        at_ns = now()
        self.is_open = True
        if self._iterator is iterator:
            self._add_batch(at_ns, self.waited_ns)
        elif self._iterator is not None and self._iterator is self._evaluated:  # its loop was left
            self._add_batch(self._fetch_ended, self._waited_at_end)
        self._iterator = iterator
        self._fetch_began = self._fetch_ended = at_ns
        self._waited_at_begin = self._waited_at_end = self.waited_ns

    def fetch_ends(self, *, is_exhausted: bool) -> None:
        """The batch is there, or the iterator has no more."""
        self._fetch_ended, self._waited_at_end = now(), self.waited_ns
        if is_exhausted:
            if self._iterator is self._evaluated:
                self._add_batch(self._fetch_ended, self._waited_at_end)
            self._iterator = None

    def forward_begins(self, newest: Any) -> None:
        """A forward without gradients begins. `newest`: the iterator that the newest batch came from."""
        at_ns = now()
        self.is_open = True
        if self._iterator is not None and self._iterator is newest:
            self._add_batch(at_ns, self.waited_ns)
            self._iterator = None
        self._extend(at_ns, self.waited_ns, at_ns, self.waited_ns)

    def forward_ends(self) -> None:
        """A forward without gradients has ended."""
        if self._began:
            self._ended, self._waited_until = now(), self.waited_ns

    def training_goes_on(self, newest: Any) -> None:
        """A training forward begins, with the batch of the iterator `newest`: report the evaluation."""
        if self._iterator is not None and newest is not self._iterator is self._evaluated:
            self._add_batch(self._fetch_ended, self._waited_at_end)
        began, length_ns = self._began, self._ended - self._began
        length_ns -= self._waited_until - self._waited_before
        ended, data_ns = self._ended, self._data_ns
        self.forget()
        if length_ns > 0 and now() - began >= LEAST_NS:
            try:
                self.note_evaluated(ended, length_ns, min(data_ns, length_ns))
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)

    def _add_batch(self, until_ns: int, waited_ns: int) -> None:
        """The newest batch belongs to the evaluation, which lasts until then."""
        self._evaluated = self._iterator
        self._data_ns += self._fetch_ended - self._fetch_began
        self._extend(self._fetch_began, self._waited_at_begin, until_ns, waited_ns)

    def _extend(self, begin_ns: int, waited_before: int, until_ns: int, waited_until: int) -> None:
        if not self._began:
            self._began, self._waited_before = begin_ns, waited_before
        self._ended, self._waited_until = until_ns, waited_until


def _ignore(_ended: int, _length_ns: int, _data_ns: int) -> None:
    pass
