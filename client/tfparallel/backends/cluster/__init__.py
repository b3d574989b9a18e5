"""Jobs in a cluster: how it is reached, and what is read from it and written to it.

`access` finds the context as kubectl does, `backend` does what the client asks for, `answers` turns
refusals of the API server into sentences with a remedy.
"""
