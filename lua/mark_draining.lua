-- Marks a worker as draining, so that no selection chooses it. Stands alone.
--
-- KEYS  1 worker:{type}:{id} (full name, with the prefix if there is one)
-- ARGV  none
-- Returns 1; or 0 if the worker has no hash. None is made then: a hash with nothing but a status would never expire.
-- Keys  the worker's hash. Idempotent.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'status', 'draining')
return 1
