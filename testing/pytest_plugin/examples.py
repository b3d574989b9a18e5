"""How many examples property tests take, and which.

The same few in every run and no limits of time, on any machine. The long tier looks for many new
ones with the profile `random`. A test that says how many it takes costs more for each.
"""

import hypothesis

CI = hypothesis.settings(hypothesis.settings.get_profile("ci"), max_examples=40)
hypothesis.settings.register_profile("ci", CI)
hypothesis.settings.load_profile("ci")
hypothesis.settings.register_profile(
    "random", CI, derandomize=False, database=None, max_examples=1000
)
