"""One module per algorithm, named as on the command line (with `_` after a keyword of Python): its `ENTRY`."""
