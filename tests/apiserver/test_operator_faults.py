"""An API server that goes away, with the operator asleep: nothing may be believed afterwards."""

import json
import os
import signal

import aiohttp
from control_plane import ControlPlane, free_port
from operator_account import OPERATOR_USER
from operators import OperatorProcess
from test_reconciling import writes
from waiting import until
from world import World, mocker_deployment


async def test_what_vanished_while_the_api_server_was_away_is_noticed(
    control_plane: ControlPlane, world: World, operator_process: OperatorProcess
) -> None:
    """A watch that begins anew says nothing of what has gone: a cache would keep ghosts.

    Stopping the operator alone is not enough, for the kernel keeps its streams: the server is
    killed first. The second start makes the watch cache begin after the operator's version, and
    that is what makes its watches end with 410 Gone.
    """
    await operator_process.start()
    for name in ("gone", "twin", "keep"):
        await world.create(mocker_deployment(name))
    for name in ("gone", "twin", "keep"):
        await world.has_children(name)
    old = (await world.resource("twin"))["metadata"]["uid"]

    control_plane.kill_apiserver()
    os.kill(operator_process.pid, signal.SIGSTOP)
    control_plane.start_apiserver()
    await world.api.reconnect()
    for name in ("gone", "twin"):
        await world.api.delete("mockerdeployments", name, world.namespace)
    twin = await world.create(mocker_deployment("twin"))
    await world.api.delete("deployments", "keep-decode", world.namespace)
    control_plane.kill_apiserver()
    control_plane.start_apiserver()
    await world.api.reconnect()
    seen = len(control_plane.audit(user=OPERATOR_USER, namespace=world.namespace))
    os.kill(operator_process.pid, signal.SIGCONT)

    async def healed() -> bool:
        assert len(await world.children("keep")) == 6
        twins = await world.children("twin")
        owners = {c["metadata"]["ownerReferences"][0]["uid"] for c in twins.values()}
        assert owners == {twin["metadata"]["uid"]}, (owners, old)
        return len(twins) == 6 and not await world.children("gone")

    await until(healed)
    requests = control_plane.audit(user=OPERATOR_USER, namespace=world.namespace)[seen:]
    about_gone = [
        (event["verb"], event["objectRef"]["resource"], event["responseStatus"]["code"])
        for event in requests
        if event["objectRef"].get("name", "").startswith("gone")
    ]
    assert set(about_gone) <= {("get", "mockerdeployments", 404)}
    async with world.carried_out():
        for name in ("twin", "keep"):
            await world.is_condition("Ready", "True", name)
    assert len(writes(control_plane, world.namespace)) < 80


async def test_the_operator_goes_on_after_the_api_server_was_away(
    control_plane: ControlPlane, world: World, operator_process: OperatorProcess
) -> None:
    await operator_process.start()
    await world.create(mocker_deployment())
    await world.has_children()
    control_plane.kill_apiserver()
    control_plane.start_apiserver()
    await world.api.reconnect()
    await world.edit({"decode": {"replicas": 4}})

    async def scaled() -> bool:
        return await world.replicas("decode") == 4

    await until(scaled)


async def test_an_operator_ends_cleanly_on_sigterm(
    world: World, operator_process: OperatorProcess
) -> None:
    await operator_process.start()
    await world.create(mocker_deployment())
    await world.has_children()
    os.kill(operator_process.pid, signal.SIGTERM)
    assert await operator_process.wait() == 0, operator_process.log
    assert "Traceback" not in operator_process.log


async def test_probes_and_metrics_are_served(
    world: World, operator_process: OperatorProcess
) -> None:
    liveness, metrics = free_port(), free_port()
    flags = [f"--liveness-port={liveness}", f"--metrics-port={metrics}", "--log-format=json"]
    await operator_process.start(*flags)
    await world.create(mocker_deployment())
    await world.has_children()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{liveness}/healthz") as answer:
            assert (answer.status, await answer.json()) == (
                200,
                {"queue_depth": 0, "decisions_followed": False},
            )
        async with session.get(f"http://127.0.0.1:{metrics}/metrics") as answer:
            text = await answer.text()
    assert 'mocker_operator_passes_total{result="ok"}' in text
    assert "mocker_operator_api_writes_total" in text
    assert all(json.loads(line)["message"] for line in operator_process.log.splitlines())
