"""Who is slow, since when, by how much, and what it costs.

Two kinds of evidence are judged, each as a matrix of ranks and steps with `Thresholds` of its own: own times
of every step (`own_time_rules`, applied by `own_time_flags`), and bucket arrivals in steps with bucket detail
(`arrival_rules`, applied by `arrival_flags`). `shared_rules` has the rules that both use: since when a rank
is late, which ranks are late together, or in turn, who is a suspect, and what counts as one occurrence.
`suspects` has who is late in too few steps yet, `cost` decides which flag counts, and what it costs.

The other rules are not shared, because the evidence differs, and not only the thresholds:

- Own times are durations. Their excess has no bound, and a rank is flagged if it is certain in both halves of
  the steps since its onset, in one place of the step or in all. A flag is kept by the newest excess alone.
  What it costs is found afterwards (`cost.py`).
- Arrivals are moments. Each lateness has a bound, that of the clocks. A rank is flagged by what it costs,
  which is simulated (`recoverable`), and by how often it comes last. Its own phases must confirm it. A flag
  is kept by lower thresholds of the same figures.
- Of a rank that is slow now and then, own times show sizes and gaps, which must be unlike those of the other
  ranks. Of arrivals only the last one of a step is known to be late: it must be the same rank more often than
  by chance.

One set of rules for both was tried on 2026-11-30: those over own times, applied to lateness less its bound.
109 of 114 tests of arrivals passed; random delays, and a phase that varies less than its arrivals, were not
flagged. The recording `straggler` of version 0.1.0 flagged its rank at another step: to replay recordings
to the same figures, the rules over arrivals have to stay.
"""
