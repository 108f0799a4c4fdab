"""Which block hashes an engine's prefix cache uses."""

from functools import partial

from mocker_protocol.block_hash import Xxh3Chain
from mocker_protocol.engine_args import EngineArgs, PrefixCachingHashAlgo
from mocker_worker.engine.request import ChainFactory


def chain_factory(args: EngineArgs) -> ChainFactory:
    """Return what starts the hashes of a prompt; vLLM's are loaded only where they are used."""
    if args.prefix_caching_hash_algo is PrefixCachingHashAlgo.XXH3:
        return partial(Xxh3Chain, args.block_size)
    from mocker_protocol.vllm_block_hash import Sha256CborChain

    return partial(Sha256CborChain, args.block_size)
