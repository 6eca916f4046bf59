"""trainer.ranks: the processes of a run: how they start, find each other, fail and stop.

agent.py          torchrun with restarts that stop if a failure would repeat; the program the launcher starts
rendezvous.py     reports missing nodes while the nodes of a run wait for each other
store.py          the store of a run: on one address, without pickles
signed.py         values in the store and objects between ranks, signed with the run's secret
process_group.py  the rank of this worker, the store that all share, the process group
heartbeat.py      a thread per worker: reports that it is alive, agrees when to stop, names a rank that hangs
pace.py           which rank is slower than the others, and in which phase
faults.py         failures: their kinds, failure.json, skipped steps
"""
