"""replay: timed traffic through a planned deployment, as a discrete-event simulation.

traces/        timed requests, from files or distributions       engine/      the simulation: copies, caches, routers, policies
ask.py         the question                                      deployment.py  a planned layout as a fleet, with price and power
answer.py      percentiles, goodput, cost, and their course      compared.py    several deployments beside each other
cheapest.py    the cheapest copies or policy within targets      what_if.py     what a deployment could be instead
manifests.py   a policy as a manifest of Kubernetes             energy.py      power of copies, and carbon by hour
"""
