"""A load harness that tells the truth about a long-context multimodal server.

How it works, in the order of a run: `scenario` (what to send) -> `payloads` (seeded text, pictures, conversations) ->
`arrival` (when each request is due) -> `executor` over `wire_client` (send when due, stamp every socket read, parse
nothing) -> `spool` (raw records on disk) -> `reading` (bytes and stamps to events, after the fact) -> `metrics` (one
per file, pure) -> `verdict` (may these figures be quoted?) -> `report`.

Latency counts from the moment a request was *due*, so a stalled server or a late client cannot hide queueing
(coordinated omission). Nothing derived is stored in a record: an old run can be read again with a better formula.
"""
