"""contract.process: parent.py (ends a process with its parent), lease.py (the locks of a run's folder), stop.py (the launcher's request to
stop) and kill_points.py (named points at which tests kill a process)."""
