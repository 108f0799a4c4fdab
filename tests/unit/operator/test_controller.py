"""Passes that are cut short: what the next pass must still know."""

import copy

import pytest

from mocker_operator.controller import Controller
from mocker_operator.kube.errors import Conflict
from mocker_operator.reconcile.model import Key
from mocker_operator.render import RenderSettings

KEY = Key("default", "demo")


class Cluster:
    """The small world behind the controller's protocol; `conflicts` status writes are refused."""

    def __init__(self, world):
        self.world = world
        self.conflicts = 0

    async def get_resource(self, key):
        return copy.deepcopy(self.world.resource)

    async def list_children(self, key):
        return tuple(copy.deepcopy(list(self.world.children.values())))

    async def list_pods(self, key):
        return tuple(copy.deepcopy(self.world.pods))

    async def claim(self, manifest):
        pass

    async def apply(self, manifest):
        self.world._apply(copy.deepcopy(manifest))

    async def delete(self, namespace, ref):
        del self.world.children[ref.kind, ref.name]

    async def apply_status(self, resource, status):
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("the object has been modified")
        self.world.resource["status"] = copy.deepcopy(status)

    async def post_event(self, resource, event, now):
        pass


class Source:
    def __init__(self, world):
        self.world = world

    def state(self, key):
        return self.world.decisions

    async def acknowledge(self, key, decision_id):
        self.world.acknowledged.append(decision_id)


@pytest.fixture
def world(make_world):
    return make_world(scaling={"source": "planner"})


@pytest.fixture
def cluster(world):
    return Cluster(world)


@pytest.fixture
def controller(world, cluster):
    return Controller(
        cluster,
        Source(world),
        RenderSettings("mocker:test", "IfNotPresent", "nats://nats.mocker:4222"),
        now=lambda: world.now,
        resync_s=lambda: 300.0,
    )


async def test_a_role_left_out_keeps_what_a_pass_that_was_cut_short_gave_it(
    world, cluster, controller
):
    await controller.reconcile(KEY)
    world.decide(1, decode=5)
    cluster.conflicts = 1
    with pytest.raises(Conflict):
        await controller.reconcile(KEY)
    world.decide(2, prefill=3)
    await controller.reconcile(KEY)
    assert world.replicas() == {"prefill": 3, "decode": 5, "frontend": 1}
