"""replay.traces: timed requests, from files of any common format or from stated distributions.

request.py     one request, and what a row may hold       text.py      lines of a plain or compressed file, bounded
tables.py      CSV of any service, Azure and BurstGPT     events.py    JSON lines: Mooncake, AIPerf, GuideLLM, OpenTelemetry
documents.py   whole JSON: vLLM and GuideLLM results      logs.py      access logs by a pattern
trace.py       Trace: opened, cut, sped up and scaled     facts.py     what a trace is: rates, bursts, lengths, reuse
made.py        traces from stated distributions
"""
