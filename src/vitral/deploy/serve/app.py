"""The addresses of a server, and what each of them answers."""

import time
import traceback
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from vitral.deploy.serve.bodies import pictures_of, read_body
from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.guard import check_host, check_origin, check_token
from vitral.deploy.serve.openapi import openapi
from vitral.deploy.serve.options import Options
from vitral.deploy.serve.page import STYLE, page
from vitral.deploy.serve.questions import Refusal
from vitral.deploy.serve.replies import SAFE, as_json, refused
from vitral.deploy.serve.service import Service
from vitral.deploy.serve.v2 import V2

Handler = Callable[[Request], Awaitable[Response]]
PAGE = {
    **SAFE,
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'",
}


def app_of(service: Service) -> Starlette:
    """All addresses."""
    v2 = V2(service)
    routes: list[tuple[str, str, Handler]] = [
        ("GET", "/", partial(_page, service)),
        ("GET", "/page.css", partial(_page, service)),
        ("GET", "/openapi.json", partial(_openapi, service)),
        ("GET", "/metrics", partial(_metrics, service)),
        ("POST", "/predict", partial(_predict, service)),
        ("GET", "/v2", v2.server),
        ("GET", "/v2/health/live", v2.live),
        ("GET", "/v2/health/ready", v2.ready),
        *(
            (method, f"/v2/models/{{name}}{numbered}{end}", handler)
            for numbered in ("", "/versions/{version}")
            for method, end, handler in (
                ("GET", "", v2.model),
                ("GET", "/ready", v2.model_ready),
                ("POST", "/infer", v2.infer),
            )
        ),
    ]
    if service.settings.glass:
        routes += [
            ("GET", "/glass", partial(_to_glass, service)),
            ("GET", "/glass/{name}", partial(_to_glass, service)),
            ("GET", "/glass/{name}/{path:path}", partial(_glass, service)),
            ("POST", "/glass/{name}/{path:path}", partial(_glass, service)),
        ]
    app = Starlette(
        routes=[Route(path, _answered(service, path, handler), methods=[method]) for method, path, handler in routes],
        exception_handlers={HTTPException: _no_such_address},
    )
    app.router.redirect_slashes = False
    return app


def _answered(service: Service, path: str, handler: Handler) -> Handler:
    """The handler behind the checks that are the same for all, with sentences for what goes wrong."""
    settings = service.settings
    is_open = path.startswith("/v2/health")  # for those who look whether it lives

    async def answer(request: Request) -> Response:
        started_at = time.perf_counter()
        try:
            check_origin(request)
            if not is_open:
                check_token(request, service.tokens)
            if settings.is_local and not service.tokens:
                check_host(request)
            response = await handler(request)
        except Refusal as refusal:
            response = refused(refusal)
        except Exception:
            service.tell("".join(traceback.format_exc()).rstrip())
            response = refused(Refusal(500, "Something went wrong here; the log has the details."))
        service.metrics.count(path, response.status_code, time.perf_counter() - started_at)
        if settings.log == "requests":
            service.tell(f"{request.method} {path} {response.status_code}")
        return response

    return answer


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return as_json({"error": f"{request.method} is not for this address."}, 405, dict(error.headers or {}))
    return as_json({"error": "There is nothing at this address. / lists what there is."}, error.status_code)


async def _page(service: Service, request: Request) -> Response:
    if request.url.path == "/page.css":
        return Response(STYLE, 200, PAGE, "text/css")
    place = request.headers.get("host", "127.0.0.1:8000")
    html = page(service.pool.models, place, bool(service.tokens), service.settings.glass)
    return Response(html, 200, PAGE, "text/html")


async def _openapi(service: Service, request: Request) -> Response:
    return as_json(openapi(service.pool.models))


async def _metrics(service: Service, request: Request) -> Response:
    pool, metrics = service.pool, service.metrics
    metrics.waiting.set(len(pool.queue))
    metrics.workers.set(len(pool.workers))
    metrics.restarts.set(pool.restarts)
    metrics.held.set(service.room.held)
    return Response(metrics.text(), 200, SAFE, metrics.content_type)


async def _predict(service: Service, request: Request) -> Response:
    options = Options.read(request.query_params)
    service.facts(options.model)
    service.pool.check_room()  # before the pictures are sent
    with service.room.hold() as take:
        content = await read_body(request, take, service.settings.most_bytes)
        pictures = pictures_of(content, request.headers.get("content-type", ""), service.settings.queue)
        pool, facts = service.pool, service.facts(options.model)
        if options.map:
            return await _map(service, facts, options, [one.content for one in pictures])
        question = service.question(request, [("f", one.content) for one in pictures], options.deadline)
        answers = await pool.ask(facts.name, question)
    if errors := [one.error for one in answers if one.error]:
        if len(errors) == len(answers):
            raise Refusal(422, errors[0])
    rows = []
    for (name, _), one in zip(pictures, answers, strict=True):
        said = (
            facts.prediction(one.values, one.distance).write(options.unsure, options.top)
            if not one.error
            else {"error": one.error}
        )
        rows.append({"path": name, **said})
    return as_json(rows)


async def _map(service: Service, facts: ModelFacts, options: Options, pictures: list[bytes]) -> Response:
    if len(pictures) != 1:
        raise Refusal(400, "A map is of one picture: send one at a time.")
    if options.map not in facts.methods:
        if not facts.methods:
            raise Refusal(400, f"{facts.name} is an exported file, which has no maps: serve the run that it is from.")
        there = ", ".join(facts.methods)
        raise Refusal(400, f"There is no map {options.map[:100]!r} of {facts.name}. There are: {there}.")
    head = {"kind": "map", "model": facts.name, "method": options.map}
    answer = await service.pool.look(head, pictures[0], service.expires(options.deadline))
    return Response(bytes(answer.parts[0]), 200, SAFE, "image/png")


async def _to_glass(service: Service, request: Request) -> Response:
    facts = service.facts(request.path_params.get("name"))
    return RedirectResponse(f"/glass/{facts.name}/", 307, SAFE)


async def _glass(service: Service, request: Request) -> Response:
    facts = service.facts(request.path_params["name"])
    path = request.path_params["path"]
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and path:
        raise Refusal(403, "Another page asked, and only the pages of this server are answered.")
    with service.room.hold() as take:
        content = await read_body(request, take, service.settings.most_bytes)
        query = f"?{request.url.query}" if request.url.query else ""
        head = {"kind": "glass", "model": facts.name, "method": request.method, "path": f"/{path}{query}"}
        answer = await service.pool.look(head, content, service.expires(None))
    body = b"".join(bytes(part) for part in answer.parts)
    return Response(body, answer.head["status"], answer.head["headers"])
