"""The mock engine's core: scheduler, KV cache and timing of a vLLM-like engine without a model.

Everything here is pure and synchronous: no I/O, no clock, no logging. `EngineCore.step` says how
long a forward pass takes; the driver (real time) and the simulator (virtual time) let it pass.
"""

from mocker_worker.engine.block_pool import BlockKey
from mocker_worker.engine.core import EngineCore
from mocker_worker.engine.decode_run import DecodeRun
from mocker_worker.engine.outline_request import OutlineRequest
from mocker_worker.engine.outputs import PassOutput, StepOutput, TokenOutput
from mocker_worker.engine.request import (
    FinishReason,
    Request,
    RequestRefused,
    RequestStatus,
)

__all__ = [
    "BlockKey",
    "DecodeRun",
    "EngineCore",
    "FinishReason",
    "OutlineRequest",
    "PassOutput",
    "Request",
    "RequestRefused",
    "RequestStatus",
    "StepOutput",
    "TokenOutput",
]
