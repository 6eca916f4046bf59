"""audit.doctor.rules: known faults, one function each: Evidence of one rank, or the profiles of all, -> Faults.

device.py    what the device computes: attention, precision, optimizer, loss, shapes, clocks
host.py      what it waits for: data, synchronisation, launches, compiling, allocating, writing files, copies
messages.py  communication: small messages, no overlap, slow links
ranks.py     one rank against the others
"""
