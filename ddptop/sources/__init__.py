"""Where a screen's frames come from: a live run or a recording, behind one interface."""
