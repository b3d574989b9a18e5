"""What a job leaves: where it is kept, and how it comes to this machine.

`files` says what is brought, `download` copies it so that no file is half written. `claim`,
`bucket` and `folder` are the places that keep results, and `stores` finds the place of a job.
`event_files` copies the event files of TensorBoard while a job writes them.
"""
