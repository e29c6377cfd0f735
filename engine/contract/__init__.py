"""What every engine that speaks the contract needs, whatever computes the tokens: refusals, the media store, reading a
body, streaming a reply. Knows `engine.wire` and ASGI; no torch, no model."""
