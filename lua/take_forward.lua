-- Takes what one host has left for another out of Redis, so that nobody gets it a second time. Stands alone.
--
-- KEYS  1 cluster:forward:{id}, or cluster:forwarded:{id} (full name, with the prefix if there is one)
-- ARGV  none
-- Returns its value, or nil if there is none (any more).
-- Keys  deletes KEYS[1]. GETDEL would do the same, but Redis 6.0 has none.

local value = redis.call('GET', KEYS[1])
if value then redis.call('DEL', KEYS[1]) end
return value
