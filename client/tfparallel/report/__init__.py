"""One page of HTML about a job: what ran, how it trained, and where its time went.

From the records of a run to the page: `gather` reads what a run left, on this machine or in a
cluster, into the values of `run_records`; `pods` adds the pods that are gone. `starts` finds when
training started, `periods` how each start ended, with the causes of `losses`. `attribution` gives
each second to an activity of `chronology`. `history` lists starts of training, and `content` works
out all figures, with the goodput that the status has. `report_pictures` draws them, `page` into
HTML.
All but the gathering and the drawing is pure.
"""
