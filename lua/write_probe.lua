-- Says whether a script may write now. Changes nothing. Stands alone.
--
-- KEYS  1 sessions:index      (full name, with the prefix if there is one)
-- ARGV  none
-- Returns 1; fails with the reason of Redis while Redis takes no writes.
-- Keys  renews a member of sessions:index that is not in it.

redis.call('ZADD', KEYS[1], 'XX', 0, 'of no session')
return 1
