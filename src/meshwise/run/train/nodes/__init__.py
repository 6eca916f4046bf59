"""train.nodes: runs on a number of machines that changes.

membership.py  which nodes are there
replan.py      a layout for the nodes that are left
elastic.py     runs on MIN:MAX nodes
"""
