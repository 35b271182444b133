"""The last line: the keys of the view. Above it the bar of a recording, PAUSED, or an internal error."""

from __future__ import annotations

from collections.abc import Iterable

from ddptop.frames.conditions import Tone, condition_of
from ddptop.frames.frame import Playback
from ddptop.frames.numbers import clock, count, duration
from ddptop.frames.verdict import run_state, run_state_word
from ddptop.render.line import Line, Role, combine_roles, join_parts, of_state
from ddptop.render.text import fit_text, text_width, wrap_lines
from ddptop.tui.actions.playback import speed_word
from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import COMMON_KEYS, PAIRS, RECORDING_KEYS, Do, ScreenKey
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Scene
from ddptop.tui.view import View

_FIXED = ("/", "space", ":")
"""At the left of the keys, in the same cells on every page."""

_ALWAYS = ("?", "q")
"""At the right end of the keys, however narrow the terminal is."""

_LAST = ("s", "c", "F", "r")
"""After the page's own keys where there is room, the most useful first."""

_KEY = combine_roles("accent", "key")
_WORD = combine_roles("text", "word")
_OPENED = combine_roles("ink", "opened")

NAMES_FROM, APART_FROM = 77, 100
"""Cells from which the views are named, and from which there is a gap between them and a key after them."""

GUIDE_SHARE = 8
"""Lines of the screen for each of the guide: on the lowest screens the page needs them all."""

TWO_LINES_FROM = 22
"""Lines of the screen from which the views have a line of their own above the keys of the page."""


def draw_footer(scene: Scene, width: int, height: int) -> list[Line]:
    """The views, and below them the keys of the page; in place of these the prompt while it is open, and
    what the last key did. `height`: lines of the screen."""
    views = [draw_views(scene, width)] if height >= TWO_LINES_FROM else []
    if scene.place.prompt is not None:
        return [*views, prompt_line(scene.place.prompt, width, scene.ascii_only)]
    if scene.place.note:
        note = _draw_note(scene.clean(scene.place.note), width)[-max(1, height // 2) :]
        return [*views, *note] if len(note) == 1 else note
    guide = [
        Line("▸ ", "accent").add(text, "dim") for text in wrap_lines(scene.clean(scene.guide), width - 2)
    ]
    return [*guide[: height // GUIDE_SHARE], *views, draw_keys(scene, width, with_views=not views)]


def draw_views(scene: Scene | None, width: int) -> Line:
    """Every view at a place of its own, which is the same in all of them; where there is room, at the right
    end the key that explains the verdict, or on a page without a number the one that leads back. Where the
    views have no room for their names, the keys of all pages are beside their numbers."""
    opened = _find_opened(scene)
    if width < NAMES_FROM:
        return _fit_footer([_draw_range(), *_draw_fixed_keys(opened)], [_draw_way(opened)], width)
    shown = [view for view in VIEWS.numbered if view.always_named or view is opened]
    way = [_draw_way(opened)] if width >= APART_FROM else []
    return _fit_footer([_draw_view_key(view, scene, opened) for view in shown], way, width)


def draw_keys(scene: Scene | None, width: int, *, with_views: bool, view: View | None = None) -> Line:
    """The keys of the page, as many as fit, and at the right end help and quit. None: no frame has come
    yet, and the page is `view`. `with_views`: where the views have no line of their own."""
    view = view or _find_opened(scene)
    tail = [_draw_key(_find_common_key(shown)) for shown in _ALWAYS]
    parts = []
    if with_views and not (scene is None and view.lists_runs):
        parts.append(_draw_range())
    if with_views or width >= NAMES_FROM:
        parts += _draw_fixed_keys(view)
        has_way = (width >= APART_FROM and not with_views) or (view.lists_runs and scene is None)
        tail = tail if has_way else [_draw_way(view), *tail]
    if view.lists_runs:
        parts.append(_draw_key(_find_common_key("Enter"), "open"))
    parts += [_draw_key(key) for key in _list_own_keys(view, scene)]
    if not view.lists_runs:
        parts += [_draw_key(_find_common_key(shown)) for shown in _LAST]
    return _fit_footer(parts, tail, width)


def _find_opened(scene: Scene | None) -> View:
    return VIEWS[scene.place.view if scene is not None else "start"]


def _fit_footer(parts: list[Line], tail: list[Line], width: int) -> Line:
    """The footer: as many parts as fit at the left, and at the right as much of the tail as fits, its end
    first. Where not even the numbers of the views fit, they have no word."""
    gap = 1 if width >= APART_FROM else 0
    while sum(part.width + gap for part in tail) > width + gap:
        tail = tail[1:]
    end = join_parts(tail, width, gap)
    if parts and str(parts[0]) == str(_draw_range()) and parts[0].width + gap + end.width > width:
        parts = [_draw_range(""), *parts[1:]]
    line = join_parts(parts, width - end.width - gap, gap)
    return line.pad(width - end.width).extend(end)


def _draw_range(word: str = "views") -> Line:
    """All views by their numbers."""
    numbers = [view.number for view in VIEWS.numbered if view.always_named]
    return _draw_word(f"{numbers[0]}-{numbers[-1]}", word)


def _draw_way(opened: View) -> Line:
    """The key that explains the verdict; on a page without a number the one that leads back."""
    return _draw_key(_find_common_key("w")) if opened.number else _draw_key(_find_common_key("Esc"), "back")


def _draw_fixed_keys(view: View) -> list[Line]:
    """The keys of all pages; the word of one that means something else on this page is as wide."""
    fixed = ("/",) if view.lists_runs else _FIXED
    keys = {key.shown: key for key in (*COMMON_KEYS, *view.keys)}
    return [_draw_key(keys[shown]) for shown in fixed]


def _list_own_keys(view: View, scene: Scene | None) -> Iterable[ScreenKey]:
    """The keys of a recording that is played, which are in the same cells on every page, and the view's
    own."""
    played = scene is not None and scene.frame.playback is not None
    for key in (*(RECORDING_KEYS if played else ()), *view.keys_of_use(scene)):
        if key.short and key.shown not in (*_FIXED, *_LAST, *_ALWAYS):
            yield key


def _draw_view_key(view: View, scene: Scene | None, opened: View) -> Line:
    key, label = view.number_key, view.label(scene)
    if view is opened:
        line = Line(f"{key.shown} {label}", _OPENED).add(" ")
    elif view.exists(scene):
        line = _draw_word(key.shown, label)
    else:
        line = Line(f"{key.shown} {label} ", "faint")
    return line.spot(0, line.width, key.action)


def _draw_key(key: ScreenKey, short: str = "") -> Line:
    line = _draw_word(PAIRS.get(key.shown, key.shown), short or key.short)
    return line.spot(0, line.width, key.action)


def _draw_word(keys: str, word: str) -> Line:
    """A key, and what it does on a ground of its own, as in htop."""
    return Line(keys, _KEY).add(f" {word} " if word else " ", _WORD)


def _find_common_key(shown: str) -> ScreenKey:
    return next(key for key in COMMON_KEYS if key.shown == shown)


def _draw_note(text: str, width: int) -> list[Line]:
    """A word longer than a line, such as a path, goes on in the next."""
    room = max(1, width - 2)
    lines: list[str] = []
    for part in wrap_lines(text, room):
        # A path has no blank at which it could be wrapped.
        while text_width(part) > room:
            end = next(
                index for index in range(room, 0, -1) if text_width(part[:index]) <= room or index == 1
            )
            lines.append(part[:end])
            part = part[end:]
        lines.append(part)
    return [Line(f" {line}", "strong", ground="cursor") for line in lines]


SHORTEST = 10
"""Cells below which a bar shows no position."""

_SEVERITY: tuple[Tone, ...] = ("dim", "warn", "bad")
"""The tones of marks, ascending: of several in one cell the most severe is shown."""


def draw_banner(scene: Scene, width: int) -> Line | None:
    """The line, or None where it would be empty."""
    if scene.failure is not None:
        return Line(fit_text(f" {scene.clean(scene.failure)}", width), ground="banner")
    if scene.frozen:
        return _draw_frozen(scene, width)
    if scene.frame.playback is not None:
        return draw_replay_bar(scene, scene.frame.playback, width)
    return None


def draw_replay_bar(scene: Scene, played: Playback, width: int) -> Line:
    """Speed, the bar with its marks, and the step; damage of the file is shown beside the step."""
    sign = "▶" if played.playing else "‖"
    speed = speed_word(played.speed)
    head = _draw_buttons(sign, speed).add(clock(_begin_s(scene, played)) + " ", "dim")
    tail = Line(" ").add(clock(_begin_s(scene, played) + played.duration_s), "dim")
    tail.add("+" if played.growing else "", "good")
    tail.add(f"  step {count(played.step)}", "strong").add(f" / {count(played.last_step)}", "dim")
    if played.damage:
        tail.add("  ▲ damaged", "warn")
    room = width - head.width - tail.width
    if room < SHORTEST:
        head = _draw_buttons(sign, speed)
        tail = Line(f" step {count(played.step)}", "strong")
        room = width - head.width - tail.width
    if room >= SHORTEST:
        head.extend(_draw_track(played, room))
    return head.extend(tail).cut(width)


def _draw_buttons(sign: str, speed: str) -> Line:
    """A click on the sign plays or holds, one on the speed doubles it."""
    line = Line(f"{sign} {speed} ", "accent")
    return line.spot(0, 2, Do.PAUSE()).spot(2, line.width - 1, Do.FASTER(1))


def _begin_s(scene: Scene, played: Playback) -> float:
    return scene.frame.unix_s - played.position_s


def _draw_track(played: Playback, width: int) -> Line:
    inside = width - 2
    cells: list[tuple[str, Role]] = [("─", "rule")] * inside
    for share, kind in sorted(played.marks, key=lambda mark: _SEVERITY.index(_find_mark(mark[1])[1])):
        cells[_find_cell(share, inside)] = _find_mark(kind)
    share = played.position_s / played.duration_s if played.duration_s > 0 else 0.0
    position = _find_cell(share, inside)
    line = Line("├", "rule")
    for cell, (sign, role) in enumerate(cells):
        line.add("●" if cell == position else sign, "accent" if cell == position else role)
    return line.add("┤", "rule").spot(1, 1 + inside, Do.SCRUB())


def _find_mark(kind: str) -> tuple[str, Tone]:
    condition = condition_of(kind)
    return condition.sign, condition.tone


def _find_cell(share: float, cells: int) -> int:
    return min(cells - 1, max(0, int(share * cells)))


def _draw_frozen(scene: Scene, width: int) -> Line:
    frame, newest = scene.frame, scene.newest or scene.frame
    age = duration(max(0.0, newest.unix_s - frame.unix_s))
    text = f" ‖ PAUSED  picture of {clock(frame.unix_s)}, {age} old"
    state, word = run_state(newest), run_state_word(newest)
    if word != run_state_word(frame):
        text += f" · now {of_state(state)[0]} {word.upper()}"
    text += " · the run goes on" if state == "live" and width >= 70 else ""
    text += " · space: show it" if width >= 70 else " · space"
    return Line(fit_text(text, width), ground="banner")
