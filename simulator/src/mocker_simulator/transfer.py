"""How long the KV of a prompt takes from a prefill worker to a decode worker."""

from mocker_protocol.engine_args import EngineArgs, KvTransferTiming


class KvTransfer:
    """Bytes over bandwidth, as `kv_transfer_bandwidth` and `kv_bytes_per_token` say."""

    def __init__(self, args: EngineArgs) -> None:
        self._ms_per_token = args.kv_transfer_ms_per_token
        self._block_size = args.block_size
        self.counts_missing_only = (
            args.kv_transfer_timing_mode is KvTransferTiming.DESTINATION_MISSING
        )

    @property
    def is_instant(self) -> bool:
        """Whether nothing takes time."""
        return self._ms_per_token == 0

    def delay_ms(self, prompt_tokens: int, cached_blocks: int) -> float:
        """Return the transfer time of a prompt of which the destination has some blocks."""
        if self.counts_missing_only:
            missing = -(-prompt_tokens // self._block_size) - cached_blocks
            prompt_tokens = missing * self._block_size
        return prompt_tokens * self._ms_per_token
