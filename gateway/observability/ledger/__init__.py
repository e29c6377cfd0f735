"""The usage ledger: who used how much of which model.

writer.py   the running gateway's side: one thread writes what has ended, a batch at a time
sqlite.py   sums per minute in an SQLite file (the default);  jsonl.py  one line per request, one file per day
report.py   totals and costs of a ledger, for `catalejo usage`
"""

from gateway.observability.ledger.writer import UsageLedger

__all__ = ["UsageLedger"]
