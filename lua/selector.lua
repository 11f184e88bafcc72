-- Chooses a worker for one session and takes one of its slots, in one atomic step. Stands alone.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 browser type    2 MAX_CONCURRENT_SESSIONS    3 MAX_LIFETIME_SESSIONS    4 now, Unix seconds
--       All others are optional; "" stands for the default.
--       5 stale threshold, seconds (30)         6 key prefix ("")
--       7 session id: with it the slot is held by a lease and session:{id} is written
--       8 lease of the pending session, seconds (10)                    9 client's address
--      10 worker ids that shall not be chosen, comma-separated         11 Playwright major.minor that the worker must have
--      12 the one worker id that may be chosen                         13 TTL of the record while live, seconds (900)
--      14 most sessions in sessions:index (10000)                      15 TTL of the shutdown command, seconds (60)
--      16, 17 … further fields of the session record: name, value, name, value …
-- Returns the worker's wsEndpoint, or nil when no worker is eligible.
-- Keys  reads worker:{type}:{id}; adds 1 to both counters; when that makes lifetime reach its limit: worker:cmd:{type}:{id}
--       is set to "shutdown" and published; with a session id: session:{id}, sessions:live:{type}:{id}, sessions:index; and when
--       none is eligible slots:wanted:{type}, so that whoever frees a slot publishes slots:{type}.
--
-- Serving: status available, heartbeat no older than the threshold, key with a TTL. Eligible: serving, active below the
-- concurrent limit (the worker's own `slots` where that is lower), lifetime below its limit, passes 10 to 12.
-- margin = max(1, floor(max lifetime / workers)). Workers are all that serve, full ones and those that a filter hides too:
-- load and filters must not move the border. Of the eligible ones below max lifetime - margin the highest lifetime wins, ties
-- go to the lowest active; without any such, the same among all eligible.
--
-- Idempotent by the session: one that is pending already gets the same endpoint again and no second slot. When its worker
-- is excluded now, that lease is taken back first, as rollback.lua does. One that ran already gets nil.

local active_hash, lifetime_hash = KEYS[1], KEYS[2]
local browser_type, max_active, max_lifetime, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function given(index, default)
  local value = ARGV[index]
  if value == nil or value == '' then return default end
  return value
end

local function milliseconds(seconds)
  return string.format('%.0f', seconds * 1000)
end

local stale_s, prefix, session_id = tonumber(given(5, 30)), given(6, ''), given(7)
local only, wanted_version = given(12), string.match(given(11, ''), '^%d+%.%d+')
local excluded = {}
for id in string.gmatch(given(10, ''), '[^,]+') do excluded[id] = true end

local session_key = session_id and prefix .. 'session:' .. session_id
if session_id then
  local was = redis.call('HMGET', session_key, 'status', 'browserType', 'workerId', 'startedAt', 'presumed')
  local worker_id = was[3]
  if was[1] == 'pending' and not excluded[worker_id] then
    return redis.call('HGET', prefix .. 'worker:' .. was[2] .. ':' .. worker_id, 'wsEndpoint')
  end
  if was[1] == 'pending' then
    local field = was[2] .. ':' .. worker_id
    if redis.call('ZREM', prefix .. 'sessions:live:' .. field, session_id) == 1 then
      for _, hash in ipairs({active_hash, lifetime_hash}) do
        if (tonumber(redis.call('HGET', hash, field)) or 0) > 0 then redis.call('HINCRBY', hash, field, -1) end
      end
    end
    redis.call('DEL', session_key)
  elseif was[1] and was[5] and not was[4] then
    -- Its worker was given up before the session started: as if that attempt had never been.
    redis.call('HINCRBY', prefix .. 'sessions:outcomes', was[1], -1)
    redis.call('DEL', session_key)
  elseif was[1] then
    return false
  end
end

local function counters(hash)
  local flat, found = redis.call('HGETALL', hash), {}
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, #browser_type + 1) == browser_type .. ':' then found[flat[i]] = tonumber(flat[i + 1]) or 0 end
  end
  return found
end

local active, lifetime = counters(active_hash), counters(lifetime_hash)
for field in pairs(lifetime) do active[field] = active[field] or 0 end

local serving, eligible = 0, {}
for field, live in pairs(active) do
  local key = prefix .. 'worker:' .. field
  local worker = redis.call('HMGET', key, 'status', 'lastHeartbeat', 'wsEndpoint', 'slots', 'playwrightVersion')
  local beat = tonumber(worker[2])
  if worker[1] == 'available' and worker[3] and beat and now - beat <= stale_s and redis.call('PTTL', key) >= 0 then
    serving = serving + 1
    local id, version = string.sub(field, #browser_type + 2), string.match(worker[5] or '', '^%d+%.%d+')
    local allowed = not excluded[id] and (not only or only == id)
      and (not wanted_version or not version or version == wanted_version)
    if allowed and live < math.min(max_active, tonumber(worker[4]) or max_active) and (lifetime[field] or 0) < max_lifetime then
      eligible[#eligible + 1] = {field = field, active = live, lifetime = lifetime[field] or 0, endpoint = worker[3]}
    end
  end
end

local border = max_lifetime - math.max(1, math.floor(max_lifetime / math.max(1, serving)))

local function better(one, other)
  if not other then return true end
  if (one.lifetime < border) ~= (other.lifetime < border) then return one.lifetime < border end
  if one.lifetime ~= other.lifetime then return one.lifetime > other.lifetime end
  if one.active ~= other.active then return one.active < other.active end
  return one.field < other.field -- the order of a hash means nothing; this makes the choice repeatable
end

local chosen
for _, worker in ipairs(eligible) do
  if better(worker, chosen) then chosen = worker end
end
if not chosen then
  if session_id then redis.call('SET', prefix .. 'slots:wanted:' .. browser_type, 1) end
  return false
end

redis.call('HINCRBY', active_hash, chosen.field, 1)
if redis.call('HINCRBY', lifetime_hash, chosen.field, 1) >= max_lifetime then
  local command = prefix .. 'worker:cmd:' .. chosen.field
  redis.call('SET', command, 'shutdown', 'PX', milliseconds(tonumber(given(15, 60))))
  redis.call('PUBLISH', command, 'shutdown')
end

if session_id then
  local record = {
    'browserType', browser_type, 'workerId', string.sub(chosen.field, #browser_type + 2), 'status', 'pending',
    'createdAt', ARGV[4], 'client', given(9, ''),
  }
  for i = 16, #ARGV do record[#record + 1] = ARGV[i] end
  redis.call('HSET', session_key, unpack(record))
  redis.call('PEXPIRE', session_key, milliseconds(tonumber(given(13, 900))))
  local lease_until = string.format('%.3f', now + tonumber(given(8, 10)))
  redis.call('ZADD', prefix .. 'sessions:live:' .. chosen.field, lease_until, session_id)
  redis.call('ZADD', prefix .. 'sessions:index', ARGV[4], session_id)
  redis.call('ZREMRANGEBYRANK', prefix .. 'sessions:index', 0, -tonumber(given(14, 10000)) - 1)
end
return chosen.endpoint
