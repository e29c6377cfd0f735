"""What runs inside Redis for redis_limits.py. Each script touches one key and is atomic."""

from __future__ import annotations

from typing import Final

BUCKET: Final = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local per, units = tonumber(ARGV[1]), tonumber(ARGV[2])
local old = redis.call('HMGET', KEYS[1], 'level', 'at', 'per')
local level, at, was = tonumber(old[1]) or per, tonumber(old[2]) or now, tonumber(old[3]) or per
level = math.min(was, level + math.max(0, now - at) * was / 60) + per - was
local wait = 0
if ARGV[3] == 'take' then
  local needed = math.min(units, per)
  if level >= needed then level = level - units else wait = (needed - level) * 60 / per end
else
  level = math.min(per, level - units)
end
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'at', string.format('%.6f', now), 'per', per)
redis.call('PEXPIRE', KEYS[1], math.ceil((per - level) * 60000 / per) + 1000)
return {string.format('%.6f', level), string.format('%.6f', wait)}
"""
"""gateway.admission.limits.Bucket, line by line. A bucket that would be full again is forgotten."""

ENTER: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

LEAVE: Final = "return redis.call('ZREM', KEYS[1], ARGV[1])"

RENEW: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return #ARGV - 1
"""
"""Also brings back leases that Redis lost, or never got because it was away."""
