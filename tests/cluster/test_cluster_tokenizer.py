"""A model's own tokenizer from a ConfigMap: waited for, mounted, and used by the workers."""

from pathlib import Path

import aiohttp
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from kubectl import Kubectl, until

ROOT = Path(__file__).parent.parent.parent
WORDS = ("[UNK]", "the", "quick", "brown", "fox")


def words_model() -> Tokenizer:
    """Return a tokenizer whose ids, unlike the built-in one's, are 0 to 4."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return model


def config_map(model: Tokenizer) -> str:
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tokenizer-v1"},
        "data": {"tokenizer.json": model.to_str()},
    }
    return yaml.safe_dump(manifest)


def until_said(kubectl: Kubectl, reason: str, what: str) -> None:
    """Wait until an event of the reason says what is missing."""

    def is_said() -> bool:
        events = kubectl.items("events.events.k8s.io")
        return any(event["reason"] == reason and what in event["note"] for event in events)

    until(f"{reason}: {what}", is_said, timeout_s=60)


async def test_workers_wait_for_the_config_map_and_then_tokenize_as_the_model(
    kubectl: Kubectl,
) -> None:
    kubectl.apply((ROOT / "examples/tokenizer.yaml").read_text())
    until_said(kubectl, "FailedMount", 'configmap "tokenizer-v1" not found')

    def waiting() -> tuple[str, str] | None:
        # The kubelet may complain before the operator has first reported.
        status = kubectl.get("mockerdeployment", "tokenizer").get("status", {})
        ready = [each for each in status.get("conditions", []) if each["type"] == "Ready"]
        told = [each for each in ready if "aggregated 0/2" in each["message"]]
        return (told[0]["status"], told[0]["reason"]) if told else None

    assert until("the resource says that it waits", waiting) == ("False", "Progressing")

    model = words_model()
    kubectl.apply(config_map(model))
    kubectl.run("wait", "mockerdeployment/tokenizer", "--for=condition=Ready", "--timeout=120s")
    text = "the quick fox jumps over the brown fox"
    with kubectl.forwarded("service/tokenizer-frontend", 8000) as port:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", raise_for_status=True) as session,
            session.post("/tokenize", json={"prompt": text}) as answer,
        ):
            tokens = (await answer.json())["tokens"]
    assert tokens == model.encode(text).ids == [1, 2, 4, 0, 0, 1, 3, 4]


def test_a_claim_that_is_missing_is_named_and_keeps_the_workers_waiting(kubectl: Kubectl) -> None:
    resource = yaml.safe_load((ROOT / "examples/tokenizer.yaml").read_text())
    resource["spec"]["tokenizer"] = {"persistentVolumeClaim": {"claimName": "models"}}
    kubectl.apply(yaml.safe_dump(resource))
    until_said(kubectl, "FailedScheduling", 'persistentvolumeclaim "models" not found')
