"""`python -m tfparallel_operator.cli`: the command where no script is installed."""

from tfparallel_operator import cli

if __name__ == "__main__":
    cli.main()
