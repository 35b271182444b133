"""The views of the screen, in the order of their number keys. A new view is added to this list."""

from __future__ import annotations

from ddptop.tui.view import Views
from ddptop.tui.views.bill import BillView
from ddptop.tui.views.buckets import BucketsView
from ddptop.tui.views.columns import FiguresView
from ddptop.tui.views.compare import CompareRunsView, CompareView
from ddptop.tui.views.events import EventsView
from ddptop.tui.views.heat import HeatView
from ddptop.tui.views.help import HelpView
from ddptop.tui.views.hosts import HostsView
from ddptop.tui.views.overview import OverviewView
from ddptop.tui.views.picker import PickerView
from ddptop.tui.views.rank_page import RankView
from ddptop.tui.views.run_page import RunView
from ddptop.tui.views.stall import StallView
from ddptop.tui.views.start import StartView
from ddptop.tui.views.timeline import TimelineView

HOSTS = HostsView()

VIEWS = Views(
    OverviewView(),
    TimelineView(),
    BucketsView(),
    HeatView(),
    EventsView(),
    RunView(),
    StallView(),
    HOSTS,
    BillView(),
    RankView(),
    CompareView(),
    PickerView(),
    CompareRunsView(),
    StartView(),
)
# These two explain the others, so they are given them.
VIEWS.add(HelpView(VIEWS))
VIEWS.add(FiguresView(VIEWS))
