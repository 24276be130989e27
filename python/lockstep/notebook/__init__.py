"""Cells that run on the ranks of a job: an extension for IPython and Jupyter.

    magics       what the user types
    everywhere   %dist_mode: plain cells run on all ranks
    cluster      the ranks of a job, as the notebook sees them: start, requests, end
    call         one request to some ranks, from sending it to the last reply
    admission    which connections are ranks of this job
    peer         the notebook's end of one rank: its socket, its output, its process
    launcher     `lockstep run` as a child process, and what it reports
    bound        ends `lockstep run` together with the notebook's kernel
    view         labelled output
    messages     the frames on a socket between the kernel and a rank

    worker       the process of a rank
    cell         one cell in a rank: its last expression, its traceback

    properties   get("ws"), get("rank"), ...
    ranks        lists of ranks: "0,2", "0-1", "all"
    errors       the errors that the magics raise
"""
