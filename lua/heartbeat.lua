-- Renews a worker's record and repairs Redis by the worker's own figures: it is the authority for its slots. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 browser type    2 worker id    3 now, Unix seconds    4 status    5 TTL of the worker's key, seconds
--       6 stale threshold, seconds    7 key prefix    8 TTL of a live session's record, seconds
--       9 how long records of ended sessions are kept, seconds    10 rssMib ("" = as before)
--      11 lifetime: what the worker itself counts ("" = it does not know, and the counter stays)
--      12 n, the number of live sessions and leases that follow; for each: its kind ("session" or "lease"), its id, the lease
--       that it came with (or ""), when it started (Unix seconds, or ""), its client's address (or ""), what its worker was
--       told of it (JSON, see lib.lua, or "")
--       then fields of the worker's hash that another program may have changed: name, value …
-- Returns {known, command, repaired, used up, session id, seconds …}: known is 0 when the worker's key is gone (nothing was
--       changed: register again); command is the value of worker:cmd:{type}:{id}, or "serve" for a spare that a selection
--       made available, or ""; repaired is by how much the active counter was wrong; used up is 1 when the command is the
--       selection's, after the last session of the worker's lifetime; then the ids of sessions and leases for which a proxy
--       may be on its way, and how many seconds they still have for that.
-- Keys  worker:{type}:{id}, both counters, sessions:live:{type}:{id}, session:{id}, sessions:outcomes, sessions:ends,
--       sessions:taken_back, sessions:index, sessions:index:live, sessions:of:{…}; the same for leases, and sessions:leased:{type}:{id};
--       cluster:index:…; cluster:counter_repairs (+1 for a repair of one or both counters); worker:cmd:{type}:{id} as rollback.lua; publishes
--       slots:{pool} if the worker may be eligible again and a client waits.
--
-- A shutdown command makes the worker draining in this very step. Only the selection's own command waits until the last
-- client's lease ends or its session starts, since a failed handoff takes that command back; no other slot can be leased
-- meanwhile.
--
-- A running session that the worker does not have fails, "lost by worker". A pending one past its lease expires, and gives
-- back what it took of the lifetime, since no client came. One that only the worker has is running again.
-- The active counter must then be the number of slots of live sessions and of callers of selector.lua without a session id,
-- which take 1 back themselves; any other value is repaired. The lifetime counter must not be below what the worker itself
-- counts, nor above that plus those callers' sessions and what the leases that still run take of it. A value above, or no
-- number, counts as a repair; one below does not: while Redis was away only the worker counted.

local prefix, field, now, status = ARGV[7], ARGV[1] .. ':' .. ARGV[2], ARGV[3], ARGV[4]
local key = prefix .. 'worker:' .. field
local was = redis.call('HMGET', key, 'status', 'lastHeartbeat', 'outside', 'outsideLifetime')
if not was[2] then return {0, redis.call('GET', prefix .. 'worker:cmd:' .. field) or '', 0, 0} end
local before, awaited, awaited_lifetime = whole(redis.call('HGET', KEYS[1], field)), {}, 0

-- Sessions and leases
local own, last = adopt_all(prefix, field, 12, now, tonumber(ARGV[8]))
local function presume(kind, id, status, why)
  finish(prefix, KEYS[1], field, kind, id, status, why, why, now, tonumber(ARGV[9]), true)
end
for _, each in ipairs(live_in(prefix, field)) do
  local kind, id, lease_until = unpack(each)
  if not own[name_of(kind, id)] then
    local taken = lifetime_taken(redis.call('HGET', prefix .. name_of(kind, id), 'lifetime'))
    if lease_until == 'inf' then
      presume(kind, id, 'failed', 'lost by worker')
    elseif tonumber(lease_until) <= tonumber(now) then
      presume(kind, id, 'expired', 'lease expired')
      if taken == 1 then take_back(prefix, KEYS[2], field) end
    else
      awaited_lifetime = awaited_lifetime + taken
      awaited[#awaited + 1] = id
      awaited[#awaited + 1] = string.format('%.3f', lease_until - now)
    end
  end
end

-- Command and status
local command = redis.call('GET', prefix .. 'worker:cmd:' .. field) or ''
local used_up_until = tonumber(redis.call('HGET', key, 'usedUp'))
if command == 'shutdown' and used_up_until and #awaited > 0 and tonumber(now) < used_up_until then command = '' end
if command == 'shutdown' then
  status = 'draining'
elseif status == 'spare' and was[1] == 'available' then
  status = 'available'
  if command == '' then command = 'serve' end
end
redis.call('HSET', key, 'lastHeartbeat', math.floor(now), 'status', status, unpack(ARGV, last + 1))
if ARGV[10] ~= '' then redis.call('HSET', key, 'rssMib', ARGV[10]) end
redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[5]) * 1000))

-- Counters
local is_wrong = false
local leases, counted, outside = slots_taken(prefix, field), whole(redis.call('HGET', KEYS[1], field)), whole(was[3]) or 0
local returned = outside - math.max(0, math.min(outside, (counted or 0) - leases)) -- what these callers took back, or the counter lost
outside = outside - returned
local active = leases + outside
local repaired = active - (counted or 0)
if counted ~= active then
  redis.call('HSET', KEYS[1], field, active)
  is_wrong = true
end
if returned > 0 then redis.call('HSET', key, 'outside', outside) end

local mine, lifetime = tonumber(ARGV[11]), redis.call('HGET', KEYS[2], field)
local lived, most = whole(lifetime), (mine or 0) + awaited_lifetime + (whole(was[4]) or 0)
local is_lifetime_wrong = lifetime and (not lived or lived < 0 or (mine and lived > most))
if not lived or lived < (mine or 0) then
  redis.call('HSET', KEYS[2], field, mine or active)
elseif is_lifetime_wrong then
  redis.call('HSET', KEYS[2], field, most)
end
if is_wrong or is_lifetime_wrong then note_repair(prefix) end
local came_back = index(prefix, KEYS[1], KEYS[2], field, {own = true})

-- The worker may be eligible again if a slot was given back or a counter was too high, if the worker was stale, or had
-- another status, or if the index did not know that it is.
local stale = math.floor(now) - (whole(was[2]) or 0) > tonumber(ARGV[6])
if status == 'available'
  and (stale or was[1] ~= status or active < (before or 0) or returned > 0 or is_lifetime_wrong or came_back) then
  wake(prefix, field)
end
return {1, command, repaired, command == 'shutdown' and used_up_until and 1 or 0, unpack(awaited)}
