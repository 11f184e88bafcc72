-- Writes fields into a record that exists. Needs lib.lua. A worker becomes draining, a session was looked at, a lease is
-- described, which its worker does repeatedly, since Redis may have lost that.
--
-- KEYS  1 worker:{type}:{id}, session:{id} or lease:{id} (full name, with the prefix if there is one)
-- ARGV  1 "{type}:{id}" of the worker whose live lease it has to be ("" = it may be any record)
--       2 TTL of the record from now on, seconds ("" = as before)
--       then fields of the record: name, value …
-- Returns 1; or 0, and writes nothing, if there is no such hash, or it is not that worker's, or the lease is over. None is
--       made then: one with nothing but these fields would never expire.
-- Keys  the hash; of a worker also cluster:index:…. Idempotent.

local key, worker = KEYS[1], ARGV[1]
if redis.call('EXISTS', key) == 0 then return 0 end
if worker ~= '' then
  local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId')
  if (was[1] ~= 'running' and was[1] ~= 'pending') or was[2] .. ':' .. was[3] ~= worker then return 0 end
end
redis.call('HSET', key, unpack(ARGV, 3))
local prefix, field = string.match(key, '^(.*)worker:([^:]+:[^:]+)$')
if field then note_change(prefix, field) end
if ARGV[2] ~= '' then redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[2]) * 1000)) end
return 1
