-- Sets one field of a record that exists: a worker becomes draining, a session was looked at. Stands alone.
--
-- KEYS  1 worker:{type}:{id} or session:{id} (full name, with the prefix if there is one)
-- ARGV  1 field    2 value
-- Returns 1; or 0 if there is no such hash. None is made then: one with nothing but this field would never expire.
-- Keys  the hash. Idempotent.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
