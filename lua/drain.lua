-- Marks a worker as draining, so that no selection chooses it. Stands alone.
--
-- KEYS  1 worker:{type}:{id} (full name, with the prefix if there is one)
-- ARGV  none
-- Returns 1, or 0 if there is no such worker (a hash of a status alone would have no TTL, so none is made).
-- Keys  the worker's hash. Idempotent.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'status', 'draining')
return 1
