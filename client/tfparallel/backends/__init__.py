"""Where jobs run: `cluster`, or `local`, this machine."""
