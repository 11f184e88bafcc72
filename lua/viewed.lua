-- Notes in a session's record when an operator last looked at its pages. Stands alone.
--
-- KEYS  1 session:{id} (full name, with the prefix if there is one)
-- ARGV  1 when, Unix seconds
-- Returns 1, or 0 if there is no such session (a record of this field alone would have no TTL, so none is made).
-- Keys  the session's hash. Idempotent.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'viewedAt', ARGV[1])
return 1
