"""Networks and baselines of other people, to compare with."""
