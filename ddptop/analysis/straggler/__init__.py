"""Who is slow, since when, by how much, and what it costs.

There are two sets of rules, because their evidence differs, and not only their thresholds:

- `own_time_rules` judges durations of every step. The excess has no bound, its onset is found (CUSUM), and a
  rank is flagged if the excess is certain in both halves of the steps since then, in one place of the step or
  in all. A flag is kept by the newest excess alone. What it costs is found afterwards (`cost.py`).
- `arrival_rules` judges moments in steps with bucket detail. Each lateness has a bound, that of the clocks.
  A rank is flagged by what it costs, which is simulated (`recoverable`), and by how often it comes last. Its
  own phases must confirm it (`flagged.py`). A flag is kept by lower thresholds of the same figures.

The patterns (intermittent, rotating) differ in the same way: sizes and gaps of single steps in one, odds that
it comes last by chance and simulated cost in the other. They share `occurrences` and the statistics.
"""
