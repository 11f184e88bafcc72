-- Takes back the lease of a failed handoff: slot, lifetime and shutdown command become as before its selection. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 session id    2 reason    3 now, Unix seconds    4 key prefix
--       5 "1" if no other worker is tried: the session is recorded as failed; else its record is removed
--       6 how long the record of a failed session is kept, seconds
-- Returns 1 if a lease was taken back, else 0 (not known, started, or ended before).
-- Keys  session:{id}, sessions:live:{type}:{id}, sessions:index, both counters (-1 once, never below 0); the shutdown command
--       that the selection left in worker:cmd:{type}:{id}, if this session used the worker up; sessions:outcomes and
--       sessions:ends, or sessions:taken_back if the end of the session was only presumed; publishes slots:{pool} if a client
--       waits.
--
-- Idempotent by the session's state. A running session stays: its worker has it, even if the proxy heard otherwise.

local id, reason, now, prefix, last = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local key, totals = record_of(prefix, id)
local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'startedAt', 'presumed')
if not was[1] then return 0 end

local given_up = was[1] ~= 'pending' and was[5] and not was[4] -- presumed ended, with its worker, before it started
if was[1] ~= 'pending' and not given_up then return 0 end

local field = was[2] .. ':' .. was[3]
local leased = redis.call('ZREM', prefix .. 'sessions:live:' .. field, id) == 1
if leased then
  take_one(KEYS[1], field)
  take_back(prefix, KEYS[2], field)
end
if last then
  -- Does not change a session that was given up: it has ended already.
  finish(prefix, KEYS[1], field, id, 'failed', reason, now, tonumber(ARGV[6]), false)
else
  if given_up then add(totals .. 'taken_back', was[1], 1) end
  redis.call('DEL', key)
  redis.call('ZREM', totals .. 'index', id)
end
if not leased then return 0 end
wake(prefix, field)
return 1
