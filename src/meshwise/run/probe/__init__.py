"""probe: time this machine's kernels and links, and install the result as the cluster `here`.

ask.py      ProbeAsk: how long to measure and on which devices, in the words of the command line
measure.py  start the program `meshwise.workers.probe` and read its rows
power.py    power of the devices in each phase, and the shares of their limit
store.py    fit the rows, and write chip, calibration and rows to the user's folder
"""
