"""Keys that open views, and that move the cursor in them, also in the timeline and the heat map."""

from __future__ import annotations

from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import Alert, LoggedEvent
from ddptop.frames.hosts import host_index
from ddptop.frames.phrases import blamed
from ddptop.frames.verdict import run_state
from ddptop.render.trouble import in_trouble
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.keys import VIEWS, Do, ViewName
from ddptop.tui.scene import TO_STALL, Scroll
from ddptop.tui.views.charts import logarithmic
from ddptop.tui.views.columns import chooses, figure_titles
from ddptop.tui.views.events import listed
from ddptop.tui.views.hosts import exactly

LANES_A_PAGE = 4
"""Lanes of the timeline that PgUp and PgDn move by: a lane has several lines."""

FAR = 1_000_000
"""More lines than any list has."""


class ViewActions(ActionsBase):
    """Views, cursor and mouse."""

    def action_view(self, name: ViewName) -> None:
        """Open a view."""
        self.open_view(name)

    def action_help(self) -> None:
        """Open the help, or leave it."""
        if self.place.view == "help":
            self.open_view(self.place.before)
            return
        self.place.before = self.place.view
        self.place.scrolls["help"] = Scroll()
        self.open_view("help")

    def action_figures(self) -> None:
        """Open the figures of the page, at the one that is sorted by or mapped; or leave them."""
        place = self.place
        if place.view == "columns":
            self.open_view(place.before)
        elif self.shown is not None:
            place.before = place.view
            titles = figure_titles(self.scene())
            sort = place.hosts.sort if place.view == "hosts" else place.sort
            now = place.heat.figure if place.view == "heat" else "excess" if sort in ("rank", "") else sort
            place.scrolls["columns"] = Scroll(titles.index(now) if now in titles else 0)
            self.open_view("columns")

    def _choose_figure(self) -> None:
        """Map the metric under the cursor, or show its column always, never, or where it fits."""
        place = self.place
        titles = figure_titles(self.scene())
        title = titles[min(place.scroll.cursor, len(titles) - 1)]
        if place.before == "heat":
            place.heat.choose(title)
            self.open_view("heat")
            return
        if not chooses(place.before):
            return
        now = place.columns.pop(title, None)
        if now is not False:
            place.columns[title] = now is None
        how = {None: "where it fits", True: "always shown", False: "never shown"}[place.columns.get(title)]
        self.show_note(f"{title}: {how}, kept for later runs")

    def action_open(self) -> None:
        """Open the page of the rank under the cursor, or the subject of the line under it."""
        place = self.place
        if place.view == "overview" and self._on_row_of_host():
            self.act(Do.FOLD())
        elif place.view == "overview" and place.rank in place.order:
            self.open_view("rank")
        elif place.view == "events" and self.shown is not None:
            found = listed(self.shown, place.event_filter)
            if found:
                self._open_event(found[min(place.scroll.cursor, len(found) - 1)])
        elif place.view == "hosts":
            self._to_ranks_of_host()
        elif place.view == "columns" and self.shown is not None:
            self._choose_figure()
        elif place.view == "picker":
            self.act(Do.SWITCH())
        elif place.view == "timeline":
            self.action_rank(place.timeline.rank)
        elif place.view == "heat":
            rank = place.heat.enter()
            self.action_rank(rank) if rank is not None else self.repaint()

    def action_why(self) -> None:
        """Open the page of what the verdict is about: a stall, missing ranks, silent hosts, a slow rank."""
        if self.shown is None:
            return
        late, state = self.shown.straggler or self.shown.suspect, run_state(self.shown)
        if in_trouble(self.shown) or state == "waiting":
            self.open_view("stall")
        elif state == "unreachable":
            self.open_view("hosts")
        elif state in ("stalled", "lost", "failed") and state in self.shown.ranks.state:
            self.action_rank(self.shown.ranks.state.index(state))
        elif self.shown.straggler is not None and not blamed(self.shown.straggler):
            self.show_note("batches differ in size between ranks: no rank is to blame")
        elif late is not None:
            self.action_rank(late.rank)
        else:
            self.show_note("no rank is flagged, and nothing is stalled")

    def action_compare_runs(self) -> None:
        """Show the two recordings side by side."""
        if hasattr(self.source, "other"):
            self.open_view("runs")
        else:
            self.show_note("only one run is open; ddptop replay A --compare B opens two")

    def action_rank(self, rank: int) -> None:
        """Open the page of a rank."""
        self.place.rank, self.place.pointed = rank, True
        self.open_view("rank")

    def action_threads(self) -> None:
        """On the stall page: all threads and every call, or a summary."""
        self.place.every = not self.place.every
        self.repaint()

    def action_leave(self) -> None:
        """Go one step back: from the crosshair, page, filter, marks."""
        place = self.place
        if (place.view == "overview" and place.charts.off()) or self._out_of_view():
            self.repaint()
        elif place.view == "picker" and place.run_filter:
            place.run_filter = ""
            self.repaint()
        elif place.view in ("help", "picker", "columns"):
            self.open_view(place.before)
        elif place.view == "events" and place.event_filter:
            place.event_filter = ""
            self.repaint()
        elif place.view == "hosts" and place.hosts.filter:
            place.hosts.filter = ""
            self.repaint()
        elif place.view != "overview":
            self.open_view("overview")
        else:
            self._forget()

    def _out_of_view(self) -> bool:
        """Whether the view had a state of its own to leave: a picked step, an unfolded cell."""
        place = self.place
        if place.view == "timeline":
            return place.timeline.release()
        return place.view == "heat" and place.heat.leave()

    def _forget(self) -> None:
        """Clear the filter (its matches stay marked), then the search, then the rank to compare."""
        place = self.place
        if place.filter:
            place.filter = ""
        elif place.searched:
            place.searched = ""
        else:
            place.marked = None
        self.repaint()

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        place = self.place
        if place.view == "overview":
            self._to_row(place.scroll.cursor + lines)
        elif place.view in ("rank", "compare"):
            self.action_sideways(1 if lines > 0 else -1)
        elif place.view == "timeline":
            place.timeline.move(lines, len(self.shown.ranks.state) if self.shown is not None else 0)
            self.repaint()
        elif place.view == "heat":
            place.heat.move(lines)
            self.repaint()
        elif place.view == "hosts":
            place.point_at_host(place.scroll.cursor + lines)
            self.repaint()
        else:
            place.scroll.cursor = max(0, place.scroll.cursor + lines)
            self.repaint()

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        place = self.place
        lines = {"timeline": LANES_A_PAGE, "heat": place.heat.page}.get(place.view, place.scroll.page)
        if place.view not in ("rank", "compare"):
            self.action_move(pages * lines)

    def action_sideways(self, by: int) -> None:
        """Move the crosshair; else open the neighbouring view, or on a rank's page the neighbouring rank."""
        place = self.place
        if place.view == "overview" and place.charts.move(by):
            self.repaint()
        elif place.view in ("rank", "compare"):
            if not place.order:
                return
            at = place.order.index(place.rank) if place.rank in place.order else 0
            place.rank = place.order[(at + by) % len(place.order)]
            self.open_view(place.view)
        elif place.view in VIEWS:
            self.action_next_view(by)

    def action_next_view(self, by: int) -> None:
        """Open the neighbouring one of the views with a number; from any other page the overview."""
        at = VIEWS.index(self.place.view) + by if self.place.view in VIEWS else 0
        self.open_view(VIEWS[at % len(VIEWS)])

    def action_to_end(self, which: int) -> None:
        """Go to the start (0) or end (1) of the recording, else of the list."""
        if self.playback is not None and self.place.view != "picker":
            self.source.seek(share=float(which))
        elif self.place.view not in ("rank", "compare"):
            self.action_move(FAR if which else -FAR)

    def action_log(self) -> None:
        """The axis of the loss: first the one that is not shown, then the other one, then automatic again."""
        if self.shown is None:
            return
        charts = self.place.charts
        before, charts.log_loss = charts.log_loss, None
        by_itself = logarithmic(self.scene())
        if before is None:
            charts.log_loss = not by_itself
        elif before is not by_itself:
            charts.log_loss = by_itself
        shown = "logarithmic" if logarithmic(self.scene()) else "linear"
        how = f"automatic, now {shown}" if charts.log_loss is None else f"{shown} until you leave"
        self.show_note(f"axis of the loss: {how}")

    def action_cross(self) -> None:
        """Crosshair on the charts, or none."""
        self.place.charts.toggle()
        self.repaint()

    def action_cross_by(self, cells: int) -> None:
        """Move the crosshair."""
        if self.place.charts.move(cells):
            self.repaint()

    def choose(self, target: int, enter: bool) -> None:
        """A click on a line of a list."""
        if target == TO_STALL:
            self.open_view("stall")
            return
        if self.place.view == "overview":
            self.place.point_at(target)
        elif self.place.view == "timeline":
            self.place.timeline.rank = target
        elif self.place.view == "hosts":
            self.place.point_at_host(target)
        else:
            self.place.scroll.cursor = target
        if enter:
            self.action_open()
        self.repaint()

    def _open_event(self, event: Alert | LoggedEvent) -> None:
        """Go to its time in a recording, and open the page with its details."""
        played = self.playback
        if played is not None and played.duration_s > 0 and isinstance(event, LoggedEvent):
            assert self.shown is not None
            begin = self.shown.unix_s - played.position_s
            self.source.seek(share=min(1.0, max(0.0, (event.unix_s - begin) / played.duration_s)))
        if page := condition_of(event.kind).page:
            self.open_view(page)
        elif event.rank is not None and played is None:
            self.action_rank(event.rank)

    def _to_row(self, row: int) -> None:
        rows = self.place.table.rows
        if rows:
            self.place.point_at(rows[min(max(row, 0), len(rows) - 1)])
            self.repaint()

    def _to_ranks_of_host(self) -> None:
        """The table of ranks, with those of the host under the cursor alone."""
        place = self.place
        names = place.hosts.order
        if not names or self.shown is None:
            return
        host = (
            place.hosts.cursor
            if place.hosts.cursor in names
            else names[min(place.scroll.cursor, len(names) - 1)]
        )
        index = host_index(self.shown.ranks.host)
        if host not in index.names:
            self.show_note("no rank runs on this host")
            return
        place.filter, place.follow = exactly(index.names, host), False
        place.rank, place.on_host = index.ranks(index.names.index(host))[0], False
        self.open_view("overview")

    def _on_row_of_host(self) -> bool:
        """Whether the cursor is on the row of a host, folded or not."""
        place = self.place
        return place.table.grouped and (place.on_host or self._host_of(place.rank) in place.table.folded)

    def _host_of(self, rank: int) -> int | None:
        """The place of a rank's host in the index of hosts."""
        of_rank = host_index(self.shown.ranks.host).of_rank if self.shown is not None else ()
        return int(of_rank[rank]) if rank < len(of_rank) else None

    def action_fold(self) -> None:
        """Fold or unfold the host under the cursor, or of the rank under it."""
        place = self.place
        host = self._host_of(place.rank)
        if host is not None and host in place.table.hosts:
            folded = host not in place.table.folded
            place.folds.fold(place.table.hosts[host], folded)
            place.on_host, place.pointed = True, True
        self.repaint()

    def action_fold_all(self) -> None:
        """Fold all hosts; where all are folded, unfold all."""
        place = self.place
        if place.table.grouped:
            place.folds.fold_all(len(place.table.folded) < len(place.table.hosts))
            place.on_host = True
        self.repaint()

    def action_group(self) -> None:
        """Group the ranks by host, or not."""
        place = self.place
        if self.shown is not None and len(host_index(self.shown.ranks.host).names) < 2:
            self.show_note("all ranks are on one host")
            return
        place.folds.grouped = not place.table.grouped
        self.repaint()


class LaneActions(ActionsBase):
    """Timeline (zoom, pan, pick) and heat map (metric, shape, cursor)."""

    def action_zoom(self, by: int) -> None:
        """Zoom in or out."""
        self.place.timeline.zoom(by)
        self.repaint()

    def action_fit(self) -> None:
        """The whole step."""
        self.place.timeline.fit()
        self.repaint()

    def action_pan(self, by: int) -> None:
        """To the right, or to the left."""
        self.place.timeline.pan(by)
        self.repaint()

    def action_pick_step(self, by: int) -> None:
        """Some steps forward or back among those kept in full."""
        if self.shown is not None:
            stuck = self.shown.stall is not None and self.shown.stall.step is not None
            self.place.timeline.pick(by, self.shown.timeline, stuck=stuck)
            self.repaint()

    def action_newest(self) -> None:
        """Follow the newest step again."""
        self.place.timeline.release()
        self.repaint()

    def action_all_lanes(self) -> None:
        """The all-reduces of every lane, or of one."""
        self.place.timeline.toggle_all()
        self.repaint()

    def action_cell(self, by: int) -> None:
        """Move the cursor of the heat map some cells to the right."""
        self.place.heat.move(0, by)
        self.repaint()

    def action_metric(self, by: int) -> None:
        """Show the next metric in the heat map, or the one before."""
        self.place.heat.next_figure(by)
        self.repaint()

    def action_choose_metric(self, name: str) -> None:
        """Show a metric in the heat map, by its name."""
        self.place.heat.choose(name)
        self.open_view("heat")

    def action_shape(self) -> None:
        """Ranks by steps, or hosts by local ranks."""
        self.place.heat.toggle_shape()
        self.repaint()
