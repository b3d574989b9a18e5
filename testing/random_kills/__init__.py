"""`python -m testing.random_kills`: jobs whose processes and pods are killed at random.

Each run must end as if nothing had happened: the same bits, where the strategy is synchronous; one
restart recorded for each attempt; and no process of an attempt beside one of another attempt.
"""
