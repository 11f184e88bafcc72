-- Leaves the shutdown command for a registered worker's next heartbeat. Any other would not read it, and the command would
-- stay until its TTL ends. Stands alone.
--
-- KEYS  1 worker:{type}:{id}      2 worker:cmd:{type}:{id}      (full names, with the prefix if there is one)
-- ARGV  1 TTL of the command, seconds
-- Returns 1 if the command was left and published, 0 if there is no such worker.
-- Keys  the field usedUp of the worker's hash, and the command; publishes on the channel of the command's name. Idempotent.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], 'usedUp') -- the selection's own command may be taken back; this one stays
redis.call('SET', KEYS[2], 'shutdown', 'PX', string.format('%.0f', tonumber(ARGV[1]) * 1000))
redis.call('PUBLISH', KEYS[2], 'shutdown')
return 1
