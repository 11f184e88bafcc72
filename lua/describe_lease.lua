-- Writes what the worker of a borrowed lease knows of it into its record: again and again, since Redis may have lost that.
--
-- KEYS  none
-- ARGV  1 id: "lease:" and more    2 key prefix    3 browser type    4 worker id    5 TTL of the record, seconds
--       then fields of the record: name, value …
-- Returns 1 if the record is there, the worker's, and the lease not over; else 0, and nothing is written.
-- Keys  lease:{id}. Idempotent.

local key, worker = ARGV[2] .. ARGV[1], ARGV[3] .. ':' .. ARGV[4]
local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId')
if (was[1] ~= 'running' and was[1] ~= 'pending') or was[2] .. ':' .. was[3] ~= worker then return 0 end
redis.call('HSET', key, unpack(ARGV, 6))
redis.call('PEXPIRE', key, string.format('%.0f', tonumber(ARGV[5]) * 1000))
return 1
