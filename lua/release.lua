-- Ends one session or lease: record, live set, active counter and outcome total in one atomic step. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections (full name, with the prefix if there is one)
-- ARGV  1 session id    2 completed | ended | failed | expired    3 reason    4 when it ended, Unix seconds
--       All others are optional; "" stands for the default.
--       5 key prefix ("")    6 how long the record is kept, seconds (3600)    7 bytes in    8 bytes out
--       9 browser type  10 worker id of its worker, by default those in the record
--      11 when it started, Unix seconds, if Redis may not know that yet    12 client's address
--      13 when the drain of its worker began, Unix seconds, if there was one
--      14 what the worker was told of its client: JSON, fields of the record and "caps", as in lib.lua
--      15 kind of the reason, by which the end is counted ("other")
--      16 kind ("session") or "lease"; 1 is a lease's id then      17 the lease that a session came with
-- Returns 1 if this call ended the session, 0 if it had ended before, is another worker's, or is not known.
-- Keys  session:{id}, sessions:live:{type}:{id}, sessions:index, sessions:index:live, sessions:outcomes (and sessions:taken_back), sessions:ends, sessions:lengths,
--       sessions:of:{…}, sessions:leased:{type}:{id}; for a lease the same under lease:{id} and leases:…; the worker's
--       counter (-1 once, never below 0); cluster:index:…; publishes slots:{pool} if a client waits for the slot (slots:wanted:{pool}, set by
--       the selector).
--
-- Idempotent by the session's state. A pending session that completes or was ended, or for which 11 is given, had run: its
-- start, which Redis missed, is recorded now. A report of the worker itself (9 and 10 given) replaces an end that was only
-- presumed ("worker lost", "lost by worker", "lease expired"); totals only rise, so the presumed end is counted as taken
-- back. A session that Redis does not know is recorded; it holds no slot there, so no counter changes.

local id, status, reason, ended_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if status ~= 'completed' and status ~= 'ended' and status ~= 'failed' and status ~= 'expired' then
  return redis.error_reply('ERR a session ends completed, ended, failed or expired, not ' .. tostring(status))
end
local prefix, kind, lease = given(5, ''), given(16, 'session'), given(17)
local key = prefix .. name_of(kind, id)
local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'presumed')
local browser_type, worker_id = given(9, was[2]), given(10, was[3])
if not browser_type or not worker_id then return 0 end
local field = browser_type .. ':' .. worker_id

local mine, started_at = was[1] and was[2] .. ':' .. was[3] == field, given(11)
if mine and was[4] and given(10) then
  add(all_of(prefix, kind) .. 'taken_back', was[1], 1)
  redis.call('HDEL', key, 'presumed')
  redis.call('HSET', key, 'status', 'running')
  redis.call('HSETNX', key, 'startedAt', started_at or ended_at)
elseif mine and was[1] == 'pending' and (started_at or status == 'completed' or status == 'ended') then
  redis.call('HSET', key, 'status', 'running', 'startedAt', started_at or ended_at)
elseif not was[1] and started_at then
  write_anew(prefix, field, kind, id, lease, started_at, given(12, ''), given(14, ''))
end
local ended, freed = finish(
  prefix, KEYS[1], field, kind, id, status, given(15, 'other'), reason, ended_at, tonumber(given(6, 3600)), false, lease)
if freed then
  index_freed(prefix, KEYS[1], prefix .. 'cluster:lifetime_connections', field)
  wake(prefix, field)
end
if not ended then return 0 end
redis.call('HSET', key, 'bytesIn', given(7, 0), 'bytesOut', given(8, 0))
if given(13) then redis.call('HSET', key, 'drainAt', ARGV[13]) end
return 1
