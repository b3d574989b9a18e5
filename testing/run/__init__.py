"""The runner behind `make test` and `.ci/run`: tiers in order, failures once more, one verdict.

__main__       the command line
parts          runs pytest, and reads what it reports
verdict        counts, flaky tests, the exit code
preconditions  what a tier needs of this machine
processes      ends what Ctrl-C leaves running
long_page      writes docs/benchmarks/long-tier.md
costs          `make test-times`

Why no plugin does it: pytest-rerunfailures repeats a failed test at once, in the same process and
next to other tests, where this runner repeats it last and alone. pytest-split divides tests among
machines, and there is one. pytest-testmon sees only the process of pytest.
"""
