"""The Model Context Protocol: tools and resources of `tools.py`, over standard input and output, or over HTTP on loopback."""

from collections.abc import Callable
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from jsonschema import Draft202012Validator
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from meshwise.errors import DoesNotFit, UserError, nearest, quoted
from meshwise.ui.mcp import tools
from meshwise.ui.mcp.tools import Answer, Desk, Tool
from meshwise.ui.web.answers import Busy, Gone, Pool
from meshwise.version import VERSION

INSTRUCTIONS = (
    "Predicts how fast and whether a model trains or serves on given accelerators. Clusters are written 8xh100-sxm, 48x8xa100-80gb, "
    "tpu-v5p:16x20x28; batches in sequences (1024, 2048x2048) or tokens (4M). 'show' lists models and chips. A result's resource has the "
    "whole answer as JSON."
)
MAX_REFUSAL_CHARS, MAX_SESSIONS, IDLE_SECONDS = 2000, 256, 600.0  # agents at a time over HTTP, and how long one may be silent


async def stays() -> bool:
    """Return that the agent has not left: over a pipe, the protocol cancels a call that nobody waits for."""
    return False


def create(desk: Desk | None = None) -> "Server[dict[str, object]]":
    """Return the server; each has results of its own."""
    at = desk or Desk()
    offered, pool = tools.tools(), Pool()

    async def list_tools(context: object, params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[
            types.Tool(
                name=name, description=tool.about, input_schema=tool.schema, output_schema=tools.FORM,
                annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
            )
            for name, tool in offered.items()
        ])  # fmt: skip

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = offered.get(params.name)
        if tool is None:
            return _refused(f"there is no tool {quoted(params.name)}{nearest(params.name, offered)}")
        try:
            left = context.request.is_disconnected if context.request is not None else stays
            return answered(at, await pool.run(left, lambda: called(at, tool, params.arguments or {})))
        except (Busy, Gone):
            return _refused("too many questions at once: try again in a few seconds")

    async def list_resources(context: object, params: object) -> types.ListResourcesResult:
        shown = tools.resources(at)
        return types.ListResourcesResult(
            resources=[types.Resource(uri=uri, name=uri.rpartition("//")[2], description=about) for uri, about in shown.items()]
        )

    async def read_resource(context: object, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            text, kind = tools.read(at, str(params.uri))
        except UserError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text, mime_type=kind)])

    return Server(
        "meshwise", version=VERSION, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool,
        on_list_resources=list_resources, on_read_resource=read_resource,
    )  # fmt: skip


def called(desk: Desk, tool: Tool, words: dict[str, object]) -> Answer | str:
    """Return the answer, or why there is none, in a sentence."""
    validator: Any = Draft202012Validator(tool.schema)
    try:
        fault = next(validator.iter_errors(words), None)
        repr(words)
    except (ValueError, RecursionError):
        return "an argument has a number of thousands of digits, or is nested too deeply"
    if fault is not None:
        return ": ".join(filter(None, (".".join(map(str, fault.absolute_path)), str(fault.message))))
    try:
        return tool.answer(desk, words)
    except DoesNotFit as error:
        return Answer(str(error), code=1)
    except UserError as error:
        return str(error)


def answered(desk: Desk, answer: Answer | str) -> types.CallToolResult:
    if isinstance(answer, str):
        return _refused(answer)
    uri = desk.keep(answer.result) if answer.result is not None else ""
    form = {"command": str(getattr(answer.result, "command", "")), "resource": uri, "exit_code": answer.code}
    lines = [answer.text, *(f"{name}: {form[name]}" for name in ("command", "resource") if form[name])]
    return types.CallToolResult(content=[types.TextContent(type="text", text="\n".join(lines))], structured_content=form)


def _refused(message: str) -> types.CallToolResult:
    """Return a refusal: one line, which does not send back what may be megabytes of an argument."""
    said = types.TextContent(type="text", text=str(UserError(message[:MAX_REFUSAL_CHARS])))
    return types.CallToolResult(content=[said], is_error=True)


def serve_pipe() -> None:
    """Answer one agent on standard input and output until it closes them."""
    server = create()

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)


def serve_http(port: int, token: str, say: Callable[[str], None]) -> None:
    """Answer agents over HTTP on loopback until Ctrl-C, under the guard of the page."""
    from meshwise.ui.web.guard import LOOPBACK, MAX_BODY_BYTES, Guard
    from meshwise.ui.web.server import GRACE_SECONDS, check, listen

    check("127.0.0.1", token)
    bound = listen("127.0.0.1", port)
    say(f"meshwise mcp: http://127.0.0.1:{bound.getsockname()[1]}/mcp  (Ctrl-C stops it)")
    app = create().streamable_http_app(  # it answers a body that has no length and is too large before the guard has to break it off
        max_sessions=MAX_SESSIONS, session_idle_timeout=IDLE_SECONDS, max_request_body_size=MAX_BODY_BYTES - 2**20
    )
    guarded = Guard(app, frozenset(LOOPBACK), token)
    settings = uvicorn.Config(
        guarded, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_SECONDS
    )
    uvicorn.Server(settings).run(sockets=[bound])
