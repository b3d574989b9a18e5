"""What this project adds to pytest.

tiers         the tier of a test, by its fixtures and imports; `--tier`, `--part`, `--changed`
essential     the files of which `make test` runs process tests
guard         fails a unit test that starts a process, listens for strangers or imports TensorFlow
times         writes seconds and CPU seconds of each test into build/tests
order         longest file first; files with real pods share a worker
heap          spares the garbage collector what stays alive
graph         which files a module imports
changed       which tests a change selects
examples      how many examples property tests take
interruption  keeps pytest silent after Ctrl-C
"""
