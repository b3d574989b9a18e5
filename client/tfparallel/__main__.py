"""`python -m tfparallel`: the command where no script is installed."""

from tfparallel import cli

if __name__ == "__main__":
    cli.main()
