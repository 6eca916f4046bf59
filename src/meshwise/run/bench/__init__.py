"""bench: measure an endpoint that speaks OpenAI's protocol.

ask.py       BenchAsk: the settings to measure, in the words of the command line
endpoint.py  probe an endpoint for its model and accepted fields, warm it up, and time each setting
client.py    an HTTP client on asyncio that records when bytes arrive and parses nothing meanwhile
stream.py    recorded bytes -> HTTP, server-sent events, tokens with their arrival times
openloop.py  requests that arrive at a rate
traced.py    requests of a trace, at their times and with their shared prefixes
speeds.py    arrival times -> rates, latencies, their spread, and whether two measurements differ
"""
