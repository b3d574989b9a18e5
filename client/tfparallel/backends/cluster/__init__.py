"""Jobs in a cluster: connects to it, reads from it and writes to it.

`access` finds the context as kubectl does, `backend` carries out the client's calls, and `refusals`
turns errors of the API server into sentences with a remedy.
"""
