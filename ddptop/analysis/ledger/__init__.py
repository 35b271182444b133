"""The ledger: sums over the whole run of where the ranks' time went, and of what they waited for whom."""
