-- A worker ends: removes its record, both counters and its command; sessions that it still has here fail. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 browser type    2 worker id    3 now, Unix seconds    4 key prefix    5 reason for sessions that it still has
--       6 how long their records are kept, seconds
-- Returns how many sessions failed.
-- Keys  worker:{type}:{id}, worker:cmd:{type}:{id}, both counter fields, sessions:live:{type}:{id}, session:{id},
--       sessions:outcomes, sessions:ends, sessions:of:{…}; publishes slots:{pool} if a client waits for one of their caps.
--       Idempotent.

local prefix, field = ARGV[4], ARGV[1] .. ':' .. ARGV[2]
local left = redis.call('ZRANGE', prefix .. 'sessions:live:' .. field, 0, -1)
for _, id in ipairs(left) do
  finish(prefix, KEYS[1], field, id, 'failed', ARGV[5], ARGV[3], tonumber(ARGV[6]), true)
end
redis.call('DEL', prefix .. 'worker:' .. field, prefix .. 'worker:cmd:' .. field)
redis.call('HDEL', KEYS[1], field)
redis.call('HDEL', KEYS[2], field)
return #left
