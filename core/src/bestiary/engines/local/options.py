"""Options of the local rollout engine; light: no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOptions:
    """How much is decoded at once. The result does not depend on it beyond float rounding."""

    slots: int = 512
    """Responses decoded at once at most."""
    kv_tokens: int = 131_072
    """Token positions that the KV memory holds: each running response reserves the room of the
    longest one of its call (prompt + max_tokens)."""
    prefill_tokens: int = 8_192
    """Padded prompt tokens in one prefill at most (a longer prompt runs alone)."""
    deterministic: bool = False
    """Fixed batch and KV shapes, prompts prefilled one by one: the tokens of a response do not
    depend on the other requests to the last bit. Every step then costs that of ``slots`` rows
    with ``kv_tokens / slots`` positions, so lower ``slots`` with it."""

    def __post_init__(self) -> None:
        for name in ("slots", "kv_tokens", "prefill_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"local engine {name}={value}: must be at least 1")
        if self.kv_tokens < self.slots * 2 and self.deterministic:
            raise ValueError(
                f"local engine kv_tokens={self.kv_tokens} with slots={self.slots}: deterministic "
                "mode gives each slot kv_tokens/slots positions, at least 2 are needed"
            )
