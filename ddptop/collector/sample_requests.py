"""Has ranks sample their own stacks while the others wait for them: which line takes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.agent.internal_errors import InternalErrors
from ddptop.frames.phrases import blamed
from ddptop.frames.sampled_stack import RARE, place_to_sample
from ddptop.protocol.evidence import samples_request
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.reducer import Reducer
    from ddptop.frames.frame import Straggler

LOOK_NS, MANY_LOOK_NS, MANY_RANKS = 2 * NS, 10 * NS, 1024
"""Time between two looks at who is flagged, each of which takes up to some milliseconds."""

MOST_RANKS = 4
"""Slow ranks that are asked at a time."""

ASK_AGAIN_NS = 15 * NS
"""An ASK may get lost, and an answer takes up to ten seconds."""

MOST_UNANSWERED = 3
"""How many times a rank is asked that does not answer: one of an earlier version never does."""

REFRESH_NS, LONGEST_REFRESH_NS = 60 * NS, 600 * NS
"""After an answer, a rank that is still slow in the same place is asked again, each time twice as late: what
it does there may change, and who looks hours later wants to see what it does now."""

MOST_QUESTIONS = 1000
"""Sessions and places that are remembered."""


class _Asked:
    """What a rank was asked about one place."""

    def __init__(self) -> None:
        self.due_ns = 0
        self.unanswered = 0
        self.refresh_ns = REFRESH_NS
        self.answered = 0
        """Number of the newest ASK that was answered: once by its first samples, later by all of them."""


class SampleRequests:
    """Decides which ranks are to take samples, and when. Never raises."""

    def __init__(
        self,
        reducer: Reducer,
        ask: Callable[[int, int], None],
        askable: Callable[[int], list[int]],
    ) -> None:
        """`ask` sends an ASK of a number to a session, and may fail silently. `askable` gives the sessions
        that can be asked at a moment."""
        self._reducer = reducer
        self._ask = ask
        self._askable = askable
        self._due_ns = self._answered_ns = 0
        self._asked: dict[tuple[int, str], _Asked] = {}
        """By session and place."""
        self._errors = InternalErrors()

    def ask_due(self, now_ns: int) -> None:
        """Ask what is due."""
        if now_ns < self._due_ns:
            return
        many = self._reducer.state.world >= MANY_RANKS
        self._due_ns = now_ns + (MANY_LOOK_NS if many else LOOK_NS)
        with self._errors:
            straggler = self._reducer.straggler()
            self._note_answers()
            # Such a rank is sampled by itself, in its long steps.
            if straggler is None or straggler.pattern == RARE:
                return
            place = place_to_sample(straggler.cause, straggler.place)
            if place is not None:
                self._ask_slow(straggler, place, now_ns)

    def _note_answers(self) -> None:
        state = self._reducer.state
        for received in state.stack_samples:
            if received.t_ns > self._answered_ns and received.samples.number:
                question = self._question(state.ranks[received.rank].session, received.samples.place)
                if question.answered != received.samples.number:
                    question.answered = received.samples.number
                    question.unanswered, question.due_ns = 0, received.t_ns + question.refresh_ns
                    question.refresh_ns = min(2 * question.refresh_ns, LONGEST_REFRESH_NS)
        # Only what is newer the next time: an answer must count once.
        self._answered_ns = max((received.t_ns for received in state.stack_samples), default=0)

    def _ask_slow(self, straggler: Straggler, place: str, now_ns: int) -> None:
        ranks = self._reducer.state.ranks
        sessions = [ranks[rank].session for rank in blamed(straggler)[:MOST_RANKS] if rank < len(ranks)]
        due = [name for name in sessions if now_ns >= self._question(name, place).due_ns]
        # Looked up only where something is due, as it goes through all ranks.
        askable = self._askable(now_ns) if due else []
        for session in due:
            question = self._question(session, place)
            if session in askable and question.unanswered < MOST_UNANSWERED:
                question.unanswered += 1
                question.due_ns = now_ns + ASK_AGAIN_NS
                # Unix time, which a collector that is started again does not repeat.
                unix_ms = int(self._reducer.state.unix_s(now_ns) * 1000)
                self._ask(session, samples_request(unix_ms, place))

    def _question(self, session: int, place: str) -> _Asked:
        # All at once: it only means that some ranks are asked again.
        if len(self._asked) > MOST_QUESTIONS:
            self._asked.clear()
        return self._asked.setdefault((session, place), _Asked())
