"""ui.mcp: the door for agents, `meshwise mcp` (Model Context Protocol). Needs the extra `mcp`. tools.py: verbs as tools, their input from
the fields of a question, under the limits of the page; server.py: the protocol, over standard input or HTTP on loopback."""
