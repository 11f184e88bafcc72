-- Renews a worker's record and repairs Redis from what the worker says it has, the authority for its slots. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 browser type    2 worker id    3 now, Unix seconds    4 status    5 TTL of the worker's key, seconds
--       6 stale threshold, seconds    7 key prefix    8 TTL of a live session's record, seconds
--       9 how long records of ended sessions are kept, seconds    10 rssMib ("" = as before)    11 lifetime ("" = as before)
--      12 … of each live session of the worker its id, when it started (Unix seconds, or ""), its client's address (or "")
-- Returns {known, command, repaired}: known is 0 when the worker's key is gone (nothing was touched: register again);
--       command is what worker:cmd:{type}:{id} says, or "serve" for a spare that a selection has made available (it stays so),
--       or ""; a shutdown waits for the next heartbeat while a client with a lease is on its way, the last one of a worker
--       that is used up, perhaps; repaired is by how much the counter was wrong.
-- Keys  worker:{type}:{id}, both counters, sessions:live:{type}:{id}, session:{id}, sessions:outcomes, sessions:index,
--       cluster:counter_repairs (+1 for a repair); publishes slots:{type} if the worker may be eligible again and
--       somebody waits.
--
-- A running session that the worker does not have: failed, "lost by worker". A pending one past its lease: expired, and the
-- lifetime is taken back, since nobody came with it. One that only the worker has: running again. The counter is then the
-- number of live sessions; another figure there is a repair. The lifetime is at least what the worker itself counts.

local prefix, field, now, status = ARGV[7], ARGV[1] .. ':' .. ARGV[2], ARGV[3], ARGV[4]
local key, live = prefix .. 'worker:' .. field, prefix .. 'sessions:live:' .. field
local command = redis.call('GET', prefix .. 'worker:cmd:' .. field) or ''
local was = redis.call('HMGET', key, 'status', 'lastHeartbeat')
if not was[2] then return {0, command, 0} end

if status == 'spare' and was[1] == 'available' then
  status = 'available'
  if command == '' then command = 'serve' end
end
redis.call('HSET', key, 'lastHeartbeat', now, 'status', status)
if ARGV[10] ~= '' then redis.call('HSET', key, 'rssMib', ARGV[10]) end
redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[5]) * 1000))

local own, before, is_awaited = {}, tonumber(redis.call('HGET', KEYS[1], field)), false
for i = 12, #ARGV, 3 do
  own[ARGV[i]] = true
  adopt(prefix, field, ARGV[i], now, tonumber(ARGV[8]), ARGV[i + 1], ARGV[i + 2])
end
local members = redis.call('ZRANGE', live, 0, -1, 'WITHSCORES')
for i = 1, #members, 2 do
  local id, lease_until = members[i], members[i + 1]
  if not own[id] then
    if lease_until == 'inf' then
      finish(prefix, KEYS[1], field, id, 'failed', 'lost by worker', now, tonumber(ARGV[9]), true)
    elseif tonumber(lease_until) <= tonumber(now) then
      finish(prefix, KEYS[1], field, id, 'expired', 'lease expired', now, tonumber(ARGV[9]), true)
      if (tonumber(redis.call('HGET', KEYS[2], field)) or 0) > 0 then redis.call('HINCRBY', KEYS[2], field, -1) end
    else
      is_awaited = true
    end
  end
end
if is_awaited and command == 'shutdown' then command = '' end

local active, counted = redis.call('ZCARD', live), tonumber(redis.call('HGET', KEYS[1], field))
local repaired = active - (counted or 0)
if counted ~= active then
  redis.call('HSET', KEYS[1], field, active)
  redis.call('INCR', prefix .. 'cluster:counter_repairs')
end
local lifetime = tonumber(redis.call('HGET', KEYS[2], field))
if not lifetime or lifetime < (tonumber(ARGV[11]) or 0) then
  redis.call('HSET', KEYS[2], field, tonumber(ARGV[11]) or active)
end

-- These make a worker eligible: a slot was given back or counted too much, it had been taken for stale, had another status.
local stale = tonumber(now) - (tonumber(was[2]) or 0) > tonumber(ARGV[6])
if status == 'available' and (stale or was[1] ~= status or active < (before or 0)) then wake(prefix, ARGV[1]) end
return {1, command, repaired}
