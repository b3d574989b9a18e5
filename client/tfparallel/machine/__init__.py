"""Jobs on this machine: each pod becomes a process."""
