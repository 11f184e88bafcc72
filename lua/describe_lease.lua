-- Writes fields into a borrowed lease's record. Its worker does so repeatedly, since Redis may have lost them.
--
-- KEYS  none
-- ARGV  1 id: "lease:" and more    2 key prefix    3 browser type    4 worker id    5 TTL of the record, seconds
--       then fields of the record: name, value …
-- Returns 1; or 0, and writes nothing, if there is no such record, it is another worker's, or the lease is over.
-- Keys  lease:{id}. Idempotent.

local key, worker = ARGV[2] .. ARGV[1], ARGV[3] .. ':' .. ARGV[4]
local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId')
if (was[1] ~= 'running' and was[1] ~= 'pending') or was[2] .. ':' .. was[3] ~= worker then return 0 end
redis.call('HSET', key, unpack(ARGV, 6))
redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[5]) * 1000))
return 1
