-- Notes on a session's record that somebody looked at it. Stands alone.
--
-- KEYS  1 session:{id} (full name, with the prefix if there is one)
-- ARGV  1 when, Unix seconds
-- Returns 1, or 0 if there is no such session (a record is never made of this alone: it would have no TTL).
-- Keys  the session's hash. Idempotent; the last look counts.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'viewedAt', ARGV[1])
return 1
