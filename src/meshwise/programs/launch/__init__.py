"""launch: ways to start processes, one file each, with `LAUNCHER` (see programs.program).

script.py     the lines that a node runs
manifests.py  manifests of Kubernetes, both ways
containers.py docker compose, Helm values and Ray Serve, read only
"""
