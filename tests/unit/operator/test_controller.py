"""Passes that are cut short, or whose writes are refused: what is done, and what is remembered."""

import copy
from datetime import timedelta

import pytest

from mocker_operator.controller import Controller
from mocker_operator.kube.errors import Conflict, Terminal
from mocker_operator.reconcile.model import Key
from mocker_operator.render import RenderSettings

KEY = Key("default", "demo")


class Cluster:
    """The small world behind the controller's protocol.

    `conflicts` status writes are refused, and so are applies to the children in `refused`: a
    value in it is the HTTP status.
    """

    def __init__(self, world):
        self.world = world
        self.conflicts = 0
        self.refused = {}
        self.deleted = []

    async def get_resource(self, key):
        return copy.deepcopy(self.world.resource)

    async def list_children(self, key):
        return tuple(copy.deepcopy(list(self.world.children.values())))

    async def list_pods(self, key):
        return tuple(copy.deepcopy(self.world.pods))

    async def claim(self, manifest):
        pass

    async def apply(self, manifest):
        identity = manifest["kind"], manifest["metadata"]["name"]
        if identity in self.refused and identity in self.world.children:
            raise Terminal("is invalid", status=self.refused[identity])
        self.world._apply(copy.deepcopy(manifest))

    async def delete(self, namespace, ref, *, keep_pods=False):
        self.deleted.append((ref.name, keep_pods))
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


DECODE = ("Deployment", "demo-decode")
SERVICE = ("Service", "demo-frontend")


@pytest.fixture
async def edited(world, cluster, controller):
    """Children with edits that an apply does not undo."""
    await controller.reconcile(KEY)
    for identity in (DECODE, SERVICE):
        del world.children[identity]["spec"]["selector"]
        cluster.refused[identity] = 422
    return world


async def test_a_child_whose_edits_an_apply_cannot_undo_is_made_again(edited, cluster, controller):
    assert await controller.reconcile(KEY) <= 1.0
    assert cluster.deleted == [("demo-decode", True), ("demo-frontend", False)]
    assert edited.condition("Ready") == ("False", "Progressing")
    await controller.reconcile(KEY)
    assert "selector" in edited.children[DECODE]["spec"]
    assert "selector" in edited.children[SERVICE]["spec"]


async def test_a_child_that_is_going_already_is_waited_for(edited, cluster, controller):
    for identity in (DECODE, SERVICE):
        edited.children[identity]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert await controller.reconcile(KEY) <= 1.0
    assert cluster.deleted == []
    assert edited.condition("Ready") == ("False", "Progressing")


async def test_a_child_is_made_again_at_most_once_a_minute(edited, cluster, controller):
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    del edited.children[SERVICE]["spec"]["selector"]
    await controller.reconcile(KEY)
    assert edited.condition("Ready") == ("False", "ApplyFailed")
    edited.now += timedelta(seconds=60)
    await controller.reconcile(KEY)
    assert [name for name, _ in cluster.deleted].count("demo-frontend") == 2


async def test_a_child_is_never_deleted_for_a_manifest_that_was_not_accepted_before(
    edited, cluster, controller
):
    edited.edit(decode={"replicas": 2, "template": {"labels": {"a": "b"}}})
    cluster.refused.pop(SERVICE)
    await controller.reconcile(KEY)
    assert cluster.deleted == []
    assert edited.condition("Ready") == ("False", "ApplyFailed")


async def test_a_child_is_never_deleted_for_a_policy_that_refuses_it(edited, cluster, controller):
    cluster.refused = dict.fromkeys(cluster.refused, 403)
    await controller.reconcile(KEY)
    assert cluster.deleted == []
    assert edited.condition("Ready") == ("False", "ApplyFailed")
