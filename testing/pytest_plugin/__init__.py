"""What this project adds to pytest.

tiers         the tier of a test, by its fixtures and imports; `--tier`, `--part`
essential     the files of which `make test` runs process tests
guard         fails a unit test that starts a process, listens for strangers or imports TensorFlow
times         writes seconds and CPU seconds of each test into build/tests
scopes        what a worker runs as a whole: a file, or all files with real pods
heap          spares the garbage collector what stays alive
graph         which files a module imports
examples      how many examples property tests take
interruption  keeps pytest silent after Ctrl-C
"""
