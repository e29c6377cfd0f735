"""Stand-in: sglang.utils imports two display helpers."""
