"""audit.doctor: profiler traces of a run -> why it is slow: parts of the step beside what they should be, and known faults.

scan.py       events of a Chrome trace one by one, in bounded memory
timeline.py   Timeline: one rank as arrays, from torch's profiler; nsight.py from Nsight Systems; snapshot.py memory snapshots
intervals.py  unions and gaps of time spans
kinds.py      parts of kernels and operators by name; steps.py where steps begin; split.py seconds by part, which add up to the step
profile.py    Profile: parts, products by shape, messages by size; Evidence: what rules read
fault.py      Fault: what costs time, how sure that is, and what to change; rules/ finds them
predicted.py  what each part should take: from a plan, a run's folder, launch files and flags, or the trace alone
diagnosis.py  Diagnosis: everything together, with a verdict
"""
