"""Passes over a small world: what is applied, deleted, reported and acknowledged."""

import copy
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocker_operator.reconcile.model import DecisionState, Observed, Plan
from mocker_operator.reconcile.plan import plan
from mocker_operator.render import RenderSettings

PLANNER = {"source": "planner"}
SETTINGS = RenderSettings("mocker:test", "IfNotPresent", "nats://nats:4222")


def steady(world) -> bool:
    intent = world.look()
    return not (
        intent.apply or intent.delete or intent.status or intent.events or intent.acknowledge
    )


def test_the_first_pass_applies_all_children(make_world):
    world = make_world()
    intent = world.step()
    assert [(m["kind"], m["metadata"]["name"]) for m in intent.apply] == [
        ("ConfigMap", "demo-prefill"),
        ("Deployment", "demo-prefill"),
        ("ConfigMap", "demo-decode"),
        ("Deployment", "demo-decode"),
        ("Deployment", "demo-frontend"),
        ("Service", "demo-frontend"),
    ]
    assert world.condition("Ready") == ("False", "Progressing")
    assert intent.held == {"prefill": 2, "decode": 2}


def test_a_settled_world_is_ready_and_needs_nothing(make_world):
    world = make_world()
    world.settle()
    assert world.condition("Ready") == ("True", "AllReady")
    assert world.condition("Progressing") == ("False", "Complete")
    assert world.condition("Degraded") == ("False", "AsExpected")
    assert world.condition("ScalingActive") == ("False", "Manual")
    assert world.resource["status"]["endpoint"] == "http://demo-frontend.team.svc:8000/v1"
    assert world.resource["status"]["roles"]["decode"] == {
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "desiredReplicas": 2,
        "ready": "2/2",
    }
    assert world.events == ["Ready"]
    assert steady(world)


def test_a_restarted_operator_finds_nothing_to_do(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(3, decode=5)
    world.settle()
    world.held = {}
    assert steady(world)


def test_a_deleted_child_is_applied_again(make_world):
    world = make_world()
    world.settle()
    for identity in list(world.children):
        child = world.children.pop(identity)
        (again,) = world.look().apply
        assert (again["kind"], again["metadata"]["name"]) == identity
        world.children[identity] = child


def test_an_edited_child_is_applied_again(make_world):
    world = make_world()
    world.settle()
    world.deployment("decode")["spec"]["replicas"] = 7
    intent = world.step()
    assert [m["metadata"]["name"] for m in intent.apply] == ["demo-decode"]
    assert world.replicas()["decode"] == 2
    assert world.condition("Ready") == ("False", "Progressing")


def test_a_resource_that_is_being_deleted_is_left_alone(make_world):
    world = make_world()
    world.resource["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:06Z"
    assert world.look() == Plan()


def test_ready_is_withdrawn_in_the_pass_that_sees_a_new_generation(make_world):
    world = make_world(prefill={"template": {"nodeSelector": {"a": "b"}}}, decode={})
    world.settle()
    world.edit(prefill={})
    world.step()
    ready = next(c for c in world.resource["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["observedGeneration"]) == ("False", 2)


def test_old_counts_of_a_deployment_are_not_ready(make_world):
    world = make_world()
    world.settle()
    world.deployment("decode")["metadata"]["generation"] += 1
    world.step()
    assert world.condition("Ready") == ("False", "Progressing")


def test_a_transition_time_changes_with_the_status_alone(make_world):
    world = make_world()
    world.settle()
    before = {c["type"]: c for c in world.resource["status"]["conditions"]}
    world.edit(engine={"seed": 1})
    world.settle()
    after = {c["type"]: c for c in world.resource["status"]["conditions"]}
    assert after["Degraded"]["lastTransitionTime"] == before["Degraded"]["lastTransitionTime"]
    assert after["Degraded"]["observedGeneration"] == 2
    assert after["Ready"]["lastTransitionTime"] > before["Ready"]["lastTransitionTime"]


def test_conditions_of_others_do_not_matter(make_world):
    world = make_world()
    world.settle()
    world.resource["status"]["conditions"].insert(0, {"type": "Audited", "status": "True"})
    assert steady(world)


def test_another_shape_deletes_the_children_of_the_old_one(make_world):
    world = make_world()
    world.settle()
    world.edit(prefill=None, decode=None, aggregated={"replicas": 3})
    intent = world.step()
    assert {(ref.kind, ref.name, ref.uid) for ref in intent.delete} == {
        ("ConfigMap", "demo-prefill", "uid-of-demo-prefill"),
        ("Deployment", "demo-prefill", "uid-of-demo-prefill"),
        ("ConfigMap", "demo-decode", "uid-of-demo-decode"),
        ("Deployment", "demo-decode", "uid-of-demo-decode"),
    }
    world.settle()
    assert world.replicas() == {"aggregated": 3, "frontend": 1}
    assert set(world.resource["status"]["roles"]) == {"aggregated", "frontend"}


def test_a_disabled_frontend_is_deleted(make_world):
    world = make_world()
    world.settle()
    world.edit(frontend={"enabled": False})
    assert {ref.kind for ref in world.step().delete} == {"Deployment", "Service"}
    assert "endpoint" not in world.resource["status"]


def test_children_of_others_are_never_deleted(make_world):
    world = make_world()
    world.settle()
    other = copy.deepcopy(world.deployment("decode"))
    other["metadata"] |= {"name": "demo-other", "uid": "x", "ownerReferences": []}
    world.children["Deployment", "demo-other"] = other
    assert world.look().delete == ()


def test_children_of_a_deleted_namesake_are_adopted_with_the_new_uid(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=9)
    world.settle()
    successor = make_world(uid="uid-2", scaling=PLANNER)
    successor.children, successor.held = world.children, dict(world.held)
    intent = successor.step()
    owners = {m["metadata"]["ownerReferences"][0]["uid"] for m in intent.apply}
    assert (len(intent.apply), owners) == (6, {"uid-2"})
    assert successor.replicas()["decode"] == 2


def test_a_pod_that_cannot_be_made_degrades(make_world):
    world = make_world()
    world.settle()
    world.deployment("decode")["status"] |= {
        "readyReplicas": 1,
        "conditions": [
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
        ],
    }
    intent = world.step()
    assert world.condition("Degraded") == ("True", "ReplicaFailure")
    assert world.condition("Ready") == ("False", "Progressing")
    assert "exceeded quota" in intent.events[0].message


def test_a_rollout_that_does_not_finish_degrades(make_world):
    world = make_world()
    world.settle()
    world.deployment("prefill")["status"]["conditions"] = [
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    ]
    world.step()
    assert world.condition("Degraded") == ("True", "ProgressDeadlineExceeded")


# --- invalid specs


def test_an_invalid_spec_leaves_the_children_alone(make_world):
    world = make_world()
    world.settle()
    world.edit(engine={"extraEngineArgs": {"blocksize": 1}})
    intent = world.step()
    assert (intent.apply, intent.delete, intent.held) == ((), (), {"prefill": 2, "decode": 2})
    assert world.condition("Ready") == ("False", "InvalidSpec")
    ready = next(c for c in world.resource["status"]["conditions"] if c["type"] == "Ready")
    assert ready["message"].startswith("spec.engine.extraEngineArgs.blocksize: unknown")
    assert world.resource["status"]["observedGeneration"] == 2
    assert world.resource["status"]["roles"]["decode"]["ready"] == "2/2"
    assert world.events == ["Ready", "InvalidSpec"]
    assert steady(world)


def test_a_mended_spec_is_carried_out(make_world):
    world = make_world()
    world.edit(prefill=None)
    world.step()
    world.edit(prefill={})
    world.settle()
    assert world.condition("Ready") == ("True", "AllReady")


rubbish = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("model name engine prefill decode aggregated replicas scaling".split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(spec=rubbish, status=rubbish)
def test_no_content_makes_a_pass_fail(spec, status):
    resource = {
        "metadata": {"name": "demo", "namespace": "team", "uid": "u", "generation": 1},
        "spec": spec,
        "status": status,
    }
    now = datetime(2026, 1, 1, tzinfo=UTC)
    plan(Observed(resource), DecisionState(), {}, SETTINGS, now)


# --- scaling


def test_a_decision_scales_and_is_acknowledged_when_all_pods_are_there(make_world):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.decide(7, prefill=1, decode=5)
    world.step()
    assert world.replicas() == {"prefill": 1, "decode": 5, "frontend": 1}
    assert world.acknowledged == []
    assert world.resource["status"]["decision"] == {
        "observedId": 7,
        "source": "planner",
        "time": "2026-01-02T03:04:08Z",
        "clamped": False,
    }
    world.roll_out()
    world.step()
    assert world.acknowledged == [7]
    assert world.resource["status"]["decision"]["appliedId"] == 7
    assert world.events == ["Ready", "ScaledDown", "ScaledUp", "DecisionApplied", "Ready"]
    assert steady(world)


def test_a_decision_that_changes_nothing_is_acknowledged_at_once(make_world):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.decide(0, prefill=2, decode=2)
    world.step()
    assert world.acknowledged == [0]


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_a_decision_waits_for_old_pods_to_be_gone(make_world, phase):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.decide(1, decode=1)
    world.step()
    world.roll_out()
    leaving = world.pod(world.deployment("decode")["metadata"]["labels"], phase)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:06Z"
    world.pods.append(leaving)
    intent = world.step()
    assert world.acknowledged == []
    assert intent.requeue_after_s is not None
    assert world.condition("Ready") == ("True", "AllReady")
    world.pods.remove(leaving)
    world.step()
    assert world.acknowledged == [1]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_decision_does_not_wait_for_the_record_of_an_evicted_pod(make_world, phase):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.decide(1, decode=1)
    world.step()
    world.roll_out()
    world.pods.append(world.pod(world.deployment("decode")["metadata"]["labels"], phase))
    world.step()
    assert world.acknowledged == [1]


@pytest.mark.parametrize("field", ["readyReplicas", "updatedReplicas", "replicas"])
def test_a_decision_waits_for_every_count(make_world, field):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.decide(1, decode=3)
    world.step()
    world.roll_out()
    world.deployment("decode")["status"][field] = 2
    world.step()
    assert world.acknowledged == []


def test_an_absent_role_is_left_alone(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, prefill=4, decode=4)
    world.settle()
    world.decide(2, decode=1)
    world.settle()
    assert world.replicas() == {"prefill": 4, "decode": 1, "frontend": 1}


def test_zero_is_legal(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, prefill=0, decode=0)
    world.settle()
    assert world.replicas()["decode"] == 0
    assert world.acknowledged == [1]
    assert world.condition("Ready") == ("True", "AllReady")


def test_a_lower_id_is_a_new_epoch(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(9, decode=4)
    world.settle()
    world.decide(0, decode=1)
    world.settle()
    assert world.replicas()["decode"] == 1
    assert world.acknowledged == [9, 0]


def test_a_decision_out_of_bounds_is_clamped_and_acknowledged(make_world):
    world = make_world(
        prefill={"scaling": {"minReplicas": 1}},
        decode={"scaling": {"maxReplicas": 3}},
        scaling=PLANNER,
    )
    world.decide(1, prefill=0, decode=50)
    world.settle()
    assert world.replicas() == {"prefill": 1, "decode": 3, "frontend": 1}
    assert world.acknowledged == [1]
    assert world.condition("ScalingActive") == ("True", "Clamped")
    assert world.resource["status"]["decision"]["clamped"] is True
    assert world.events.count("DecisionClamped") == 1


def test_rubbish_is_ignored_with_one_event(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=4)
    world.settle()
    world.decisions = DecisionState(invalid="decode: must be an integer", acknowledged_id=1)
    world.settle()
    assert world.replicas()["decode"] == 4
    assert world.condition("ScalingActive") == ("True", "DecisionIgnored")
    assert world.events.count("DecisionIgnored") == 1
    assert world.acknowledged == [1]
    assert steady(world)


def test_a_decision_for_a_deleted_namesake_is_ignored(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=9, age=timedelta(hours=1))
    world.settle()
    assert world.replicas()["decode"] == 2
    assert world.condition("ScalingActive") == ("True", "DecisionIgnored")
    assert (world.acknowledged, world.events.count("DecisionIgnored")) == ([], 1)


def test_a_manual_source_ignores_decisions(make_world):
    world = make_world()
    world.decide(1, decode=9)
    world.settle()
    assert world.replicas()["decode"] == 2
    assert world.condition("ScalingActive") == ("False", "DecisionIgnored")
    assert (world.acknowledged, world.events.count("DecisionIgnored")) == ([], 1)


def test_a_vanished_key_leaves_the_counts_alone(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=5)
    world.settle()
    world.decisions = DecisionState()
    world.settle()
    assert world.replicas()["decode"] == 5
    assert world.condition("ScalingActive") == ("True", "WaitingForDecision")


@pytest.mark.parametrize("restarted", [False, True])
def test_an_unreadable_bucket_leaves_the_counts_alone(make_world, restarted):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=5)
    world.settle()
    decision = world.resource["status"]["decision"]
    world.decisions = None
    if restarted:
        world.held = {}
    world.settle()
    assert world.replicas()["decode"] == 5
    assert world.condition("ScalingActive") == ("Unknown", "BucketUnavailable")
    assert world.condition("Ready") == ("True", "AllReady")
    assert world.resource["status"]["decision"] == decision


def test_the_spec_is_the_seed_of_a_planner(make_world):
    world = make_world(scaling=PLANNER, prefill={"replicas": 3}, decode={"replicas": 4})
    world.settle()
    assert world.replicas() == {"prefill": 3, "decode": 4, "frontend": 1}


def test_an_edit_of_the_spec_does_not_move_a_planners_counts_and_says_so_once(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=5)
    world.settle()
    world.edit(decode={"replicas": 1})
    intent = world.step()
    (event,) = intent.events
    assert event.reason == "ReplicasHeld"
    assert "decode stays at 5 although spec.decode.replicas is 1" in event.message
    world.settle()
    assert world.replicas()["decode"] == 5
    assert world.events.count("ReplicasHeld") == 1


def test_the_spec_counts_again_when_the_source_becomes_manual(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=5)
    world.settle()
    world.edit(scaling={"source": "manual"})
    world.settle()
    assert world.replicas()["decode"] == 2
    assert "decision" not in world.resource["status"]


def test_a_hand_on_the_deployment_does_not_move_a_planners_count(make_world):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.deployment("decode")["spec"]["replicas"] = 8
    world.settle()
    assert world.replicas()["decode"] == 2


def test_aggregated_workers_take_the_count_for_decode(make_world):
    world = make_world(aggregated={"replicas": 1}, scaling=PLANNER)
    world.decide(1, prefill=7, decode=3)
    world.settle()
    assert world.replicas() == {"aggregated": 3, "frontend": 1}
    assert world.acknowledged == [1]


def test_a_lost_acknowledgement_is_given_again(make_world):
    world = make_world(scaling=PLANNER)
    world.decide(1, decode=3)
    world.settle()
    world.decisions = DecisionState(world.decisions.decision, None, world.decisions.written_at)
    assert world.look().acknowledge == 1
    assert world.look().events == ()


def test_a_decision_is_never_acknowledged_while_the_spec_is_invalid(make_world):
    world = make_world(scaling=PLANNER)
    world.settle()
    world.decide(1, prefill=2, decode=2)
    world.edit(prefill=None)
    world.step()
    assert world.acknowledged == []
    assert world.condition("ScalingActive") == ("False", "InvalidSpec")
