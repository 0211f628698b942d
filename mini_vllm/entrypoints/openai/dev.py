"""Routes for operators of the server: pause and resume it, put it to sleep, record profiles.

Those that pause it or put it to sleep exist only if ``VLLM_SERVER_DEV_MODE=1`` is set, because
they stop the server for all clients. If the server has an API key, the routes need it.

Source: vllm/entrypoints/serve/rlhf/api_router.py#L30-L110 (pause_generation) @ v0.22.1
"""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from mini_vllm.config.vllm_names import ROUTES
from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.state import ServerState

CONTROLS = (
    "/pause", "/resume", "/is_paused", "/reset_prefix_cache", "/reset_mm_cache",
    "/reset_encoder_cache", "/sleep", "/wake_up", "/is_sleeping",
)  # fmt: skip
RECORDINGS = ("/start_profile", "/stop_profile")
PATHS = CONTROLS + RECORDINGS
MODES = ("abort", "wait", "keep")


def is_enabled() -> bool:
    """Raises ValueError for a setting that is neither 0 nor 1."""
    value = os.environ.get("VLLM_SERVER_DEV_MODE", "0")
    if value not in ("0", "1"):
        raise ValueError(f"VLLM_SERVER_DEV_MODE is {value!r}; it must be 0 or 1")
    return value == "1"


def why_not(path: str) -> str:
    """What to do about a path that this server does not have, to stand behind "there is none"."""
    if path in CONTROLS:
        return "start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
    if path in RECORDINGS:
        return "start the server with --profiler-config"
    return ROUTES.get(path, "see /docs for what there is")


def add_dev_routes(app: FastAPI, state: ServerState) -> None:
    """Add the routes, if the environment enables them; those of profiles, if a folder is given."""
    if state.engine.profiler_config:
        _add_profile(app, state)
    if is_enabled():
        _add_pause(app, state)
        _add_sleep(app, state)


def _add_profile(app: FastAPI, state: ServerState) -> None:
    """Source: vllm/entrypoints/serve/profile/api_router.py#L21-L26 (start_profile) @ v0.22.1"""

    @app.post("/start_profile")
    async def start_profile() -> Response:
        await state.engine.start_profile()
        return Response(status_code=HTTPStatus.OK)

    @app.post("/stop_profile")
    async def stop_profile() -> Response:
        await state.engine.stop_profile()
        return Response(status_code=HTTPStatus.OK)


def _add_sleep(app: FastAPI, state: ServerState) -> None:
    """Source: vllm/entrypoints/serve/sleep/api_router.py#L21-L56 (sleep) @ v0.22.1"""
    engine = state.engine

    @app.post("/sleep")
    async def sleep(level: int = 1, mode: str = "abort") -> Response:
        await engine.sleep(level, mode)
        return Response(status_code=HTTPStatus.OK)

    @app.post("/wake_up")
    async def wake_up(tags: Annotated[list[str] | None, Query()] = None) -> Response:
        await engine.wake_up(tags)
        return Response(status_code=HTTPStatus.OK)

    @app.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": await engine.is_sleeping()}


def _add_pause(app: FastAPI, state: ServerState) -> None:
    engine = state.engine

    @app.post("/pause")
    async def pause(
        mode: str = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> dict[str, str]:
        if mode not in MODES:
            raise APIError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}", param="mode")
        waits = wait_for_inflight_requests
        try:
            await engine.pause_generation(
                mode=mode, wait_for_inflight_requests=waits, clear_cache=clear_cache
            )
        except RuntimeError as error:  # another client has resumed it before the pause was complete
            raise APIError(str(error), HTTPStatus.CONFLICT) from error
        return {"status": "paused"}

    @app.post("/resume")
    async def resume() -> dict[str, str]:
        await engine.resume_generation()
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": await engine.is_paused()}

    @app.post("/reset_mm_cache")
    async def reset_mm_cache() -> Response:
        await engine.reset_mm_cache()
        return Response(status_code=HTTPStatus.OK)

    @app.post("/reset_encoder_cache")
    async def reset_encoder_cache() -> Response:
        await engine.reset_encoder_cache()
        return Response(status_code=HTTPStatus.OK)

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache(
        reset_running_requests: bool = False, reset_external: bool = False
    ) -> Response:
        if not await engine.reset_prefix_cache(reset_running_requests, reset_external):
            raise APIError(
                "requests hold blocks of the cache; pause with mode=abort or mode=wait first",
                HTTPStatus.CONFLICT,
            )
        return Response(status_code=HTTPStatus.OK)
