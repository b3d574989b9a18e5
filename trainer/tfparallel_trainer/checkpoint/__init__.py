"""State on disk: keys that survive a rebuild, atomic files, retention and fencing."""
