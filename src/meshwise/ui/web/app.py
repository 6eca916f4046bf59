"""The application: routes of pages, their .json and .csv, fragments that a page replaces itself with, suggestions, and static files."""

import logging
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from meshwise.errors import DoesNotFit, UserError
from meshwise.ui.views.tables import as_csv, as_json
from meshwise.ui.web import drawing, render, report, suggest
from meshwise.ui.web.answers import Busy, Gone, Kept, Pool
from meshwise.ui.web.asking import Pairs, one, safe_name
from meshwise.ui.web.guard import MAX_BODY_BYTES, Guard
from meshwise.ui.web.named import Named
from meshwise.ui.web.pages import PAGES, accuracy, plan, runs, serve, timeline, whatif
from meshwise.ui.web.pages.page import Page, Reply, Site

FRAGMENT = "x-meshwise-fragment"  # the header with which a page asks for its answer alone
DOWNLOAD = "download"  # the parameter of .json and .csv with which a browser saves the file instead of showing it
STATES = {400: "invalid", 422: "does-not-fit"}
MAX_PAGES_KEPT = 128  # rendered answers that are kept
MAX_FIELDS, PASTED = 200, "pasted"  # fields of a form that is sent with files, at most; the one with text instead of a file
WEEK = "public, max-age=604800"
MultiPartParser.spool_max_size = MAX_BODY_BYTES  # an upload stays in memory: a full disk must not break the page
log = logging.getLogger("meshwise.ui")


@dataclass(frozen=True)
class Web:
    """State that all requests share."""

    site: Site
    pool: Pool = field(default_factory=Pool)
    rendered: Kept = field(default_factory=partial(Kept, MAX_PAGES_KEPT))


def create(named: Named | None = None, *, hosts: frozenset[str], token: str = "") -> Guard:
    """Return the application. `hosts`: names that it answers to; `token`: the secret that requests must carry."""
    web = Web(Site(named or Named()))
    routes: list[BaseRoute] = [
        Route("/", home),
        Route("/suggest", partial(suggested, web)),
        Route("/static/parts.css", styles),
        Route("/favicon.ico", icon),
        Mount("/static", StaticFiles(directory=render.STATIC)),
        Route("/plan/why", _handler(web, lambda query: fragment("why.html", plan.why(web.site, query)))),
        Route("/plan/believe", _handler(web, lambda query: fragment("why.html", plan.believe(web.site, query)))),
        Route("/serve/believe", _handler(web, lambda query: fragment("why.html", serve.believe(web.site, query)))),
        Route("/accuracy/score",
            _handler(web, lambda query: JSONResponse(accuracy.score(web.site, query).values["figures"]), plain=True)),
        Route("/what-if/front", _handler(web, lambda query: JSONResponse(whatif.front(web.site, query).data), plain=True)),
        Route("/timeline/trace", _handler(web, partial(traced, web), plain=True)),
        Route("/runs/events", partial(followed, web)),
    ]  # fmt: skip
    if (manual := render.manual()) is not None:
        routes.append(Mount("/docs", StaticFiles(directory=manual, html=True)))
    for page in PAGES:
        routes.append(Route(f"/{page.name}", partial(shown, web, page)))
        if page.upload:
            routes.append(Route(f"/{page.name}", partial(uploaded, web, page), methods=["POST"]))
        if page.planned:
            routes.append(Route(f"/{page.name}/report", _handler(web, partial(saved, web, page))))
        routes.append(Route(f"/{page.name}.json", _handler(web, partial(as_data, web, page, csv=False), plain=True)))
        routes.append(Route(f"/{page.name}.csv", _handler(web, partial(as_data, web, page, csv=True), plain=True)))
    application = Starlette(routes=routes, exception_handlers={HTTPException: not_found, Exception: broken})
    return Guard(application, hosts, token)


async def home(request: Request) -> Response:
    return _html(render.render("start.html", pages=PAGES))


async def styles(request: Request) -> Response:
    return Response(drawing.styles(), media_type="text/css", headers={"cache-control": WEEK})


async def icon(request: Request) -> Response:
    return RedirectResponse("/static/icon.svg", status_code=308)


def _handler(web: Web, make: Callable[[Pairs], Response], *, plain: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that calls `make` with the query, in a thread of the pool; `plain`: errors are JSON."""

    async def handle(request: Request) -> Response:
        query = request.query_params.multi_items()
        return await in_pool(web, request, lambda: _caught(make, query, plain=plain))

    return handle


async def in_pool(web: Web, request: Request, make: Callable[[], Response]) -> Response:
    """Run `make` in the pool; say so where too many wait."""
    try:
        return await web.pool.run(request.is_disconnected, make)
    except Busy:
        return PlainTextResponse("too many questions at once: try again in a few seconds\n", 503, {"retry-after": "3"})
    except (Gone, CancelledError):  # cancelled: the server ends, and its terminal shows no traceback
        return Response(status_code=499)


def _caught(make: Callable[[Pairs], Response], query: Pairs, *, plain: bool) -> Response:
    try:
        return make(query)
    except UserError as error:
        status = _status(error)
        return (
            JSONResponse({"error": str(error)}, status)
            if plain
            else _html(render.render("error.html", message=str(error)), status)
        )


def _status(error: UserError) -> int:
    return 422 if isinstance(error, DoesNotFit) else 400


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html; charset=utf-8", headers={"vary": FRAGMENT})


async def shown(web: Web, page: Page, request: Request) -> Response:
    """Answer with a whole page, or with its answer alone where the page asks for that."""
    query, alone = request.query_params.multi_items(), FRAGMENT in request.headers
    key = (page.name, tuple(query), alone)
    make = partial(_page, web, page, query, alone=alone)
    return await in_pool(web, request, lambda: make() if page.live else _copy(web.rendered.get(key, make)))


def _copy(reply: Response) -> Response:
    """Return a response of its own for each request: sending one changes it."""
    return Response(reply.body, reply.status_code, dict(reply.headers))


def _page(web: Web, page: Page, query: Pairs, *, alone: bool) -> Response:
    missing = page.missing(query)
    return _shown(web, page, query, lambda: None if missing else page.answer(web.site, query), missing=missing, alone=alone)


def _shown(
    web: Web, page: Page, query: Pairs, answer: Callable[[], Reply | None], *, missing: list[str] | None = None, alone: bool
) -> Response:
    """Render an answer, or why there is none, as a whole page or alone."""
    reply, message, status = None, "", 200
    try:
        reply = answer()
    except UserError as error:
        message, status = str(error), _status(error)
    values: dict[str, Any] = {
        "page": page, "pages": PAGES, "query": query,
        "missing": missing if missing and any(value for _, value in query) else [], "reply": reply, "message": message,
        "state": STATES.get(status, "answer" if reply else "empty"), "named": web.site.named, "path": f"/{page.name}",
        "static": False,
    }  # fmt: skip
    if alone:  # the page shows the error; a browser's console need not
        return _html(render.render("fragment.html", **values))
    return _html(render.render("page.html", groups=page.form(query), **values), status)


def fragment(template: str, reply: Reply) -> Response:
    return _html(render.render(template, **reply.values))


def as_data(web: Web, page: Page, query: Pairs, *, csv: bool) -> Response:
    """Answer with JSON or CSV. UserError where the query lacks something."""
    asked = [pair for pair in query if pair[0] != DOWNLOAD]
    missing = page.missing(asked)
    if missing:
        raise UserError(f"missing: {', '.join(missing)}")
    reply = page.answer(web.site, asked)
    if reply is None:
        raise UserError("nothing was asked")
    name = f"attachment; filename={page.name}.{'csv' if csv else 'json'}"
    headers = {"content-disposition": name} if one(query, DOWNLOAD) else {}
    if csv:
        return PlainTextResponse(as_csv(reply.rows) + "\n", headers=headers, media_type="text/csv")
    return Response(as_json(reply.data) + "\n", headers=headers, media_type="application/json")


def saved(web: Web, page: Page, query: Pairs) -> Response:
    """Answer with a report: one file that opens without a server."""
    if missing := page.missing(query):
        raise UserError(f"missing: {', '.join(missing)}")
    assert page.planned
    text = report.of_plan(page.planned(web.site, query), query)
    headers = {"content-disposition": f"attachment; filename=meshwise-{page.name}.html"}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def traced(web: Web, query: Pairs) -> Response:
    """Answer with the trace of a step for ui.perfetto.dev."""
    headers = {"content-disposition": "attachment; filename=step.json.gz"}
    return Response(timeline.saved(web.site, query), media_type="application/gzip", headers=headers)


async def uploaded(web: Web, page: Page, request: Request) -> Response:
    """Answer what a page reads from uploaded files, or from pasted text, and forget them."""
    upload = page.upload
    assert upload
    try:
        async with request.form(max_files=upload.files, max_fields=MAX_FIELDS, max_part_size=MAX_BODY_BYTES) as form:
            sent = [file for file in form.getlist("file") if isinstance(file, UploadFile)]
            files = [(file.filename or "", await file.read()) for file in sent]
            query = [(key, value) for key, value in form.multi_items() if isinstance(value, str)]
    except ClientDisconnect:
        return Response(status_code=499)
    files = [(name, content) for name, content in files if content]
    if upload.pasted and not files and (text := one(query, PASTED).strip()):
        files = [("pasted.sh", text.encode())]

    def answer() -> Reply:
        if len(files) != upload.files:
            raise UserError(
                f"expected {'two files' if upload.files == 2 else 'a file'} that {'are' if upload.files == 2 else 'is'} not empty"
            )
        return upload.read(web.site, paths, [pair for pair in query if pair[0] != PASTED])

    def shown(reply: Callable[[], Reply]) -> Response:
        return _shown(web, page, [], reply, alone=FRAGMENT in request.headers)

    def make() -> Response:
        """Answer with the files in a folder of their own, whose name the answer does not show; refuse them where the disk is full."""
        try:
            return kept()
        except OSError as error:
            why = f"the file cannot be kept while it is read: {error.strerror}; TMPDIR names the folder"
            return shown(partial(_refused, why))

    def kept() -> Response:
        with TemporaryDirectory(prefix="meshwise-") as folder:
            for number, (name, content) in enumerate(files, 1):
                known, safe = [path.name for path in paths], safe_name(name)
                paths.append(Path(folder, f"{number}-{safe}" if safe in known else safe))
                paths[-1].write_bytes(content)
            reply = shown(answer)
            return Response(bytes(reply.body).replace(f"{folder}/".encode(), b""), reply.status_code, media_type=reply.media_type)

    paths: list[Path] = []
    return await in_pool(web, request, make)


def _refused(why: str) -> Reply:
    raise UserError(why)


async def followed(web: Web, request: Request) -> Response:
    """Answer with the steps of a run as they come."""
    name = one(request.query_params.multi_items(), "run")
    folder = web.site.named.runs.get(name)
    if folder is None:
        return JSONResponse({"error": "no run of that name was given on the command line of 'meshwise ui'"}, 404)
    return StreamingResponse(runs.events(folder), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def suggested(web: Web, request: Request) -> Response:
    """Answer with names that fit what was typed."""
    query = request.query_params.multi_items()
    catalogue, typed = one(query, "catalogue"), one(query, "typed")[:100]
    if catalogue not in ("models", "clusters"):
        return JSONResponse({"error": "expected catalogue=models or catalogue=clusters"}, 400)
    serving, whole = one(query, "page") == "serve", bool(one(query, "whole"))

    def answer() -> Response:
        found = suggest.suggest(catalogue, typed, serving=serving, whole=whole)
        return JSONResponse([{"value": each.value, "about": each.about} for each in found])

    return await in_pool(web, request, answer)


async def not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"there is no page {request.url.path}" if error.status_code == 404 else str(error.detail)
    return _html(render.render("lost.html", message=message, pages=PAGES), error.status_code)


async def broken(request: Request, error: Exception) -> Response:
    """Answer an error of ours: its traceback goes to the log, not to the page."""
    log.error("error on %s", request.url.path, exc_info=error)
    return _html(render.render("lost.html", message="an error inside meshwise; the terminal shows it", pages=PAGES), 500)
