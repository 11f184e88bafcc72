-- Notes in a session's record when an operator last looked at its pages. Stands alone.
--
-- KEYS  1 session:{id} (full name, with the prefix if there is one)
-- ARGV  1 when, Unix seconds
-- Returns 1; or 0 if the session has no record. None is made then: a record with nothing but this field would never expire.
-- Keys  the session's hash. Idempotent.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'viewedAt', ARGV[1])
return 1
