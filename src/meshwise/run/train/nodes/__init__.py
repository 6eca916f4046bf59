"""train.nodes: the machines of a run.

    hosts.py       the machines of a run, from flags or from Slurm, Kubernetes and torchrun
    membership.py  which nodes are there
    replan.py      a layout for the nodes that are left
    elastic.py     runs on MIN:MAX nodes
Inside: elastic imports replan and membership, membership imports hosts. hosts and membership import nothing else of train, so that ask and
launch can import hosts. replan imports train.launch and train.report, elastic also train.attempt. Imported by train and its runs.
"""
