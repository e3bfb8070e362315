"""Effects of a plan change on workers: those that stay, start or end, and loads.

A worker is the process of one vGPU and holds every stage of its pool. It goes on under the next
plan where both plans have a vGPU of the same class and share at the same place, it holds a stage
that the next plan wants there, and batches of the others find room in its slots; those are loaded
into it before the change. What it no longer needs is dropped after it:

    before   GPU 0: [ a ]   [ b ]          GPU 1: [ c ]
    after    GPU 0: [ a d ] [ e ]          GPU 1: [ c ]
             goes on, d is loaded          goes on, nothing happens
                      b ends, e starts beside it

New workers start beside those that end: for a while a GPU holds both. Where its memory does not
allow that, the change is made in steps, each a plan of its own.

Scheduler, simulator, gateway and `rollout` ask here, so that they agree. Nothing is done here.
"""
