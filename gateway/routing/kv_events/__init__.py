"""What engines' prefix caches hold, by their own word: SGLang publishes KV events over ZeroMQ (`--kv-events-config`).

messages.py decodes them, index.py keeps what they say, subscriber.py follows one publisher, follow.py all of one gateway."""
