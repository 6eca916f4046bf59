"""cost.serve.load: throughput and latency of a served model under the requests that it gets.

requests.py    lengths, users or a rate, limits, percentiles, targets   admission.py  what an engine admits at once
queue.py       when queued prompts end                                  estimate.py   throughput and latency at a load, by formula
pools.py       replicas for prompts apart from replicas for outputs
"""
