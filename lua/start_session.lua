-- The worker has admitted the session, or keeps the lease: it becomes running, and its slot has no end. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections (full name, with the prefix if there is one)
-- ARGV  1 session id    2 when it started, Unix seconds    3 key prefix    4 TTL of a live session's record, seconds
--       5 browser type  6 worker id of the caller; "" = the worker in the record       7 client's address, or ""
--       All others are optional; "" stands for the default.
--       8 what the worker was told of its client: JSON, fields of the record and "caps", as in lib.lua
--       9 kind ("session") or "lease"; 1 is a lease's id then       10 the lease that a session came with
-- Returns 1 if the session runs, 0 if it does not (not known, ended, or another worker's), 2 if it holds a slot again: its end
--       was presumed wrongly, which counts as a repair, or Redis had no record of it (was away, or lost it).
-- Keys  session:{id}, sessions:live:{type}:{id} or sessions:leased:{type}:{id}; for a lease lease:{id} and
--       leases:live:{type}:{id}; in the last case also the counter, for a lease that of the lifetime (see note_lifetime), cluster:index:…, cluster:counter_repairs, sessions:of:{…}, sessions:index and sessions:index:live.
--
-- Idempotent by the session's state.

local id, now, prefix, kind = ARGV[1], ARGV[2], ARGV[3], given(9, 'session')
local key = prefix .. name_of(kind, id)
local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'presumed')
local browser_type = ARGV[5] ~= '' and ARGV[5] or was[2]
local worker_id = ARGV[6] ~= '' and ARGV[6] or was[3]
if not browser_type or not worker_id then return 0 end
local field = browser_type .. ':' .. worker_id
if was[1] and was[2] .. ':' .. was[3] ~= field then return 0 end

if was[1] == 'pending' then
  redis.call('HSET', key, 'status', 'running', 'startedAt', now)
  redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[4]) * 1000))
  redis.call('ZADD', all_of(prefix, kind) .. 'live:' .. field, 'XX', '+inf', id)
  return 1
end
if was[1] == 'running' then return 1 end
-- What follows is rare, and so is what it needs: to make it takes several times as long as all before.
-- [lib.lua]
-- Only the worker itself may report a session that Redis does not have as running. An unregistered worker reports all of
-- its sessions when it registers.
if (was[1] and not was[4]) or ARGV[6] == '' or redis.call('EXISTS', prefix .. 'worker:' .. field) == 0 then return 0 end
if adopt(prefix, field, kind, id, given(10, ''), now, tonumber(ARGV[4]), now, ARGV[7], given(8, '')) == 1 then
  add(KEYS[1], field, 1)
  note_change(prefix, field)
  if was[1] then note_repair(prefix) end
end
return 2
