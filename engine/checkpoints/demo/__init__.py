"""Maker of the demo checkpoint: a small MiniMax-M3-shaped model trained on synthetic tasks. See README.md."""
