"""Preflight: what is really there where a run is to train, each known trap checked, each with its remedy.

`facts` finds out, on every rank; `checks` judges what was found, as pure functions; `job` is the job around both, and
`page` puts the answers of all jobs onto one page.
"""
