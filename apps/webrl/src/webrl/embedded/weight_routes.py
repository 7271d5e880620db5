"""HTTP endpoints of weight updates, and of what the server is.

Invariants:

* One update at a time; each either applies as a whole or changes nothing.
* A broadcast whose names, shapes or dtypes do not fit is still received, so that rank 0 and the
  other members are not left waiting in it; then it is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import fields
from typing import Any

import msgspec
from aiohttp import web

from webrl.embedded.state import STATE
from webrl.embedded.weight_group import parse_specs
from webrl.embedded.weights import read_checkpoint, refuse
from webrl.embedded.wire import (
    CheckWeightsBody,
    DestroyGroupBody,
    DiskUpdateBody,
    DistributedUpdateBody,
    InitGroupBody,
    VersionBody,
    decode_body,
)
from webrl.errors import WeightUpdateError


async def _init_group(http: web.Request) -> web.Response:
    body = decode_body(await http.read(), InitGroupBody)
    await asyncio.to_thread(http.app[STATE].groups.join, body)
    return _success("Succeeded to initialize custom process group.")


async def _destroy_group(http: web.Request) -> web.Response:
    body = decode_body(await http.read(), DestroyGroupBody)
    await asyncio.to_thread(http.app[STATE].groups.leave, body.group_name)
    return _success("Succeeded to destroy custom process group.")


async def _from_distributed(http: web.Request) -> web.Response:
    state = http.app[STATE]
    body = decode_body(await http.read(), DistributedUpdateBody)
    if body.load_format not in (None, "flattened_bucket"):
        raise WeightUpdateError(
            f"load_format must be absent or 'flattened_bucket', got {body.load_format!r}."
        )
    specs = parse_specs(body.names, body.dtypes, body.shapes)
    async with state.update_lock:
        tensors = await asyncio.to_thread(
            state.groups.receive,
            body.group_name,
            specs,
            is_flattened=body.load_format == "flattened_bucket",
        )
        refuse(state.table.problems(specs))
        await state.update(
            lambda: state.table.apply(tensors),
            weight_version=body.weight_version,
            abort_all=body.abort_all_requests,
        )
    return _success("Succeeded to update parameter online." + _label(body.weight_version))


async def _from_disk(http: web.Request) -> web.Response:
    state = http.app[STATE]
    body = decode_body(await http.read(), DiskUpdateBody)
    async with state.update_lock:
        tensors = await asyncio.to_thread(
            read_checkpoint, body.model_path, state.table, model_type=state.runner.model_type
        )
        await state.update(
            lambda: state.table.apply(tensors),
            weight_version=body.weight_version,
            abort_all=body.abort_all_requests,
        )
        state.model_path = body.model_path
    message = "Succeeded to update model weights." + _label(body.weight_version)
    return _success(message, num_paused_requests=0)


async def _set_version(http: web.Request) -> web.Response:
    state = http.app[STATE]
    body = decode_body(await http.read(), VersionBody)
    if body.abort_all_requests:
        await state.engine.call(lambda scheduler: scheduler.abort(""))
    await state.engine.call(lambda scheduler: scheduler.set_version(body.new_version))
    message = f"Weight version updated to {body.new_version}"
    return _success(message, new_version=body.new_version)


async def _check_weights(http: web.Request) -> web.Response:
    state = http.app[STATE]
    body = decode_body(await http.read(), CheckWeightsBody)
    if body.action != "checksum":
        raise WeightUpdateError(f"action must be 'checksum', got {body.action!r}.")
    checksums = await state.engine.call(lambda _: state.table.checksums(body.names))
    total = hashlib.sha256()
    for name in sorted(checksums):
        total.update(name.encode())
        total.update(checksums[name].encode())
    size = state.config.tp_size
    ranks = [
        {
            "checksums": checksums,
            "per_gpu_checksum": total.hexdigest(),
            "parallelism_info": {
                "tp_rank": rank,
                "tp_size": size,
                "dp_rank": 0,
                "dp_size": 1,
                "pp_rank": 0,
                "pp_size": 1,
                "rank": rank,
                "size": size,
            },
        }
        for rank in range(size)
    ]
    of_all = hashlib.sha256(total.hexdigest().encode() * size)
    return _success("Success", ranks=ranks, per_engine_checksum=of_all.hexdigest())


async def _health(http: web.Request) -> web.Response:
    return web.Response(status=200 if http.app[STATE].engine.is_alive else 503)


async def _model_info(http: web.Request) -> web.Response:
    state = http.app[STATE]
    return _json(
        {
            "model_path": state.model_path,
            "tokenizer_path": state.config.model_path,
            "is_generation": True,
            "weight_version": state.weight_version,
            "has_image_understanding": True,
            "model_type": state.runner.model_type,
            "architectures": state.runner.architectures,
        }
    )


async def _server_info(http: web.Request) -> web.Response:
    state = http.app[STATE]
    statistics = await state.engine.call(lambda scheduler: scheduler.statistics())
    settings = {field.name: getattr(state.config, field.name) for field in fields(state.config)}
    return _json(
        {
            **settings,
            "backend": "embedded",
            "version": "embedded",
            "model_path": state.model_path,
            "weight_version": state.weight_version,
            "weight_groups": state.groups.names,
            "weight_shapes": state.table.shapes(),
            "tied_weights": state.table.aliases(),
            "internal_states": [msgspec.to_builtins(statistics)],
        }
    )


def _success(message: str, **more: Any) -> web.Response:
    return _json({"success": True, "message": message, **more})


def _label(weight_version: str | None) -> str:
    return f" Weight version updated to {weight_version}." if weight_version is not None else ""


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def weight_routes() -> list[web.RouteDef]:
    """Return the routes of weight updates, health and information."""
    return [
        web.post("/init_weights_update_group", _init_group),
        web.post("/destroy_weights_update_group", _destroy_group),
        web.post("/update_weights_from_distributed", _from_distributed),
        web.post("/update_weights_from_disk", _from_disk),
        web.post("/update_weight_version", _set_version),
        web.post("/weights_checker", _check_weights),
        web.get("/weights_checker", _check_weights),
        web.get("/health", _health),
        web.get("/health_generate", _health),
        web.get("/get_model_info", _model_info),
        web.get("/model_info", _model_info),
        web.get("/get_server_info", _server_info),
        web.get("/server_info", _server_info),
    ]
