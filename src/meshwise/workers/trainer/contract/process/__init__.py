"""contract.process: parent.py (ends a process with its parent), lease.py (the locks of a run's folder), stop.py (the launcher's request to
stop), secret.py (signs what processes of a run tell each other) and kill_points.py (named points at which tests kill a process)."""
