-- Writes a worker's record and both counters in one step: at its start, and again when Redis has lost them. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 browser type    2 worker id    3 now, Unix seconds    4 lifetime: what the worker itself counts
--       5 TTL of the worker's key, seconds    6 key prefix    7 TTL of a live session's record, seconds
--       8 n, the number of live sessions and leases that follow; for each: its kind ("session" or "lease"), its id, the lease
--       that it came with (or ""), when it started (Unix seconds, or ""), its client's address (or ""), what its worker was
--       told of it (JSON, see lib.lua, or "")
--       then fields of the worker's hash: name, value …
-- Returns the active counter as written: the slots of these sessions, of leases (a client is on its way), and of callers of
--       selector.lua without a session id.
-- Keys  worker:{type}:{id} (with TTL), both counters, sessions:live:{type}:{id}, leases:live:{type}:{id},
--       cluster:index:…; sessions:leased:{type}:{id}; session:{id}, lease:{id}, sessions:of:{…}, and the index (sessions:index …) of the given sessions and leases;
--       publishes slots:{pool} and slots:{type}.
--
-- Idempotent. The lifetime never goes down.

local prefix, field, now = ARGV[6], ARGV[1] .. ':' .. ARGV[2], ARGV[3]
local key = prefix .. 'worker:' .. field

local _, last = adopt_all(prefix, field, 8, now, tonumber(ARGV[7]))

local outside = redis.call('HMGET', key, 'outside', 'outsideLifetime')
local fields = {'browserType', ARGV[1], 'lastHeartbeat', math.floor(now),
  'outside', whole(outside[1]) or 0, 'outsideLifetime', whole(outside[2]) or 0}
for i = last + 1, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('DEL', key)
redis.call('HSET', key, unpack(fields))
redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[5]) * 1000))

local active = slots_taken(prefix, field) + (whole(outside[1]) or 0)
local lifetime = math.max(tonumber(ARGV[4]), whole(redis.call('HGET', KEYS[2], field)) or 0)
redis.call('HSET', KEYS[1], field, active)
redis.call('HSET', KEYS[2], field, lifetime)
index(prefix, KEYS[1], KEYS[2], field, {own = true})
local pool = pool_of(prefix, field)
for _, line in ipairs(pool == ARGV[1] and {pool} or {pool, ARGV[1]}) do
  redis.call('DEL', prefix .. 'slots:wanted:' .. line)
  redis.call('PUBLISH', prefix .. 'slots:' .. line, field)
end
return active
