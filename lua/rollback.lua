-- Takes back the lease of a failed handoff: slot, lifetime and shutdown command become as before its selection. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 session id    2 key prefix
-- Returns 1 if a lease was taken back, else 0 (not known, started, or ended before).
-- Keys  session:{id} and its entry in sessions:index (removed), sessions:live:{type}:{id}, both counters (-1 once, never below
--       0); the shutdown command that the selection left in worker:cmd:{type}:{id}, if this session used the worker up;
--       sessions:taken_back if an end of the session was only presumed; sessions:of:{…}; publishes slots:{pool} if a client
--       waits.
--
-- Idempotent by the session's state. A running session stays: its worker has it, even if the proxy heard otherwise.

local id, prefix = ARGV[1], ARGV[2]
local key, totals = record_of(prefix, id)
local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'startedAt', 'presumed', 'caps', 'pool')
if not was[1] then return 0 end

local given_up = was[1] ~= 'pending' and was[5] and not was[4] -- presumed ended, with its worker, before it started
if was[1] ~= 'pending' and not given_up then return 0 end

local field = was[2] .. ':' .. was[3]
local leased = redis.call('ZREM', prefix .. 'sessions:live:' .. field, id) == 1
if leased then
  take_one(KEYS[1], field)
  take_back(prefix, KEYS[2], field)
end
if given_up then add(totals .. 'taken_back', was[1], 1) end
leave_caps(prefix, id, was[6], was[7] or was[2])
redis.call('DEL', key)
redis.call('ZREM', totals .. 'index', id)
if not leased then return 0 end
wake(prefix, field)
return 1
