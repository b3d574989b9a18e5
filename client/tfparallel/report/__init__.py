"""One page of HTML about a job: what ran, how it trained, and where its time went.

From the records of a run to the page: `gather` reads what a run left, on this machine or in a
cluster, into the values of `records`. `periods` and `goodput` attribute each second to an activity,
and `content` works out the figures. `draw` turns them into pictures, `page` into HTML. All but the
gathering and the drawing is pure.
"""
