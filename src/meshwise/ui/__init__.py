"""ui: the command line and everything it prints. No arithmetic: the API computes, views draw.

cli/      one file per verb or pair of verbs; cli/options.py derives flags from questions, cli/help.py prints help that fits a screen
web/      the page: a server (the extra `ui`), one file per page, templates, scripts; web/report.py writes one file
mcp/      the door for agents (the extra `mcp`): verbs as tools
views/    results as tables, bars, SVG and HTML
"""
