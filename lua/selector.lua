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
--       is set to "shutdown" and published, the status of a spare becomes available, its id is the worker's field replacement, and
--       slots:{type} is published if somebody waits; with a session id: session:{id}, sessions:live:{type}:{id},
--       sessions:index; and when none is eligible slots:wanted:{type}, so that whoever frees a slot publishes slots:{type}.
--
-- Serving: status available, heartbeat no older than the threshold. Eligible: serving, key with a TTL, active below the
-- concurrent limit (the worker's own `slots` where that is lower), lifetime below its limit, passes 10 to 12.
-- margin = max(1, floor(max lifetime / workers)). Workers are all that serve, full ones and those that a filter hides too:
-- load and filters must not move the border. Of the eligible ones below max lifetime - margin the highest lifetime wins, ties
-- go to the lowest active; without any such, the same among all eligible.
--
-- Spare: status spare, heartbeat as above. It serves from the step on that uses another worker up, so that there is never one
-- less; of several the first by id. Until then it is no worker here: it is not chosen, and does not move the border.
--
-- Idempotent by the session: one that is pending already gets the same endpoint again and no second slot. When its worker
-- is excluded now, that lease is taken back first, as rollback.lua does. One that ran already gets nil.

-- [shared: wake]
-- Tells the proxies that a worker may be eligible again, if a selection has found none since the last time.
local function wake(prefix, browser_type)
  if redis.call('DEL', prefix .. 'slots:wanted:' .. browser_type) == 1 then
    redis.call('PUBLISH', prefix .. 'slots:' .. browser_type, 'free')
  end
end
-- [end: wake]

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
if given(10) then
  for id in string.gmatch(ARGV[10], '[^,]+') do excluded[id] = true end
end

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

-- From here on the hot path: few calls, one command for each worker.
local call, find, type_prefix = redis.call, string.find, browser_type .. ':'

local function counters(hash)
  local flat, found = call('HGETALL', hash), {}
  for i = 1, #flat, 2 do
    if find(flat[i], type_prefix, 1, true) == 1 then found[flat[i]] = tonumber(flat[i + 1]) or 0 end
  end
  return found
end

local active, lifetime = counters(active_hash), counters(lifetime_hash)
for field in pairs(lifetime) do active[field] = active[field] or 0 end

local function passes(field, version)
  local id = string.sub(field, #type_prefix + 1)
  version = wanted_version and string.match(version or '', '^%d+%.%d+')
  return not excluded[id] and (not only or only == id) and (not version or version == wanted_version)
end

local serving, spare, eligible, worker_prefix = 0, nil, {}, prefix .. 'worker:'
for field, live in pairs(active) do
  local worker = call('HMGET', worker_prefix .. field, 'status', 'lastHeartbeat', 'slots', 'playwrightVersion', 'wsEndpoint')
  local status, beat = worker[1], tonumber(worker[2])
  if not beat or now - beat > stale_s then
    status = nil
  end
  if status == 'spare' and (not spare or field < spare) then
    spare = field
  elseif status == 'available' then
    serving = serving + 1
    local slots = tonumber(worker[3])
    if live < max_active and (not slots or live < slots) and (lifetime[field] or 0) < max_lifetime
      and passes(field, worker[4]) then
      eligible[field] = worker[5]
    end
  end
end

local border = max_lifetime - math.max(1, math.floor(max_lifetime / math.max(1, serving)))

local function better(one, other)
  local mine, theirs = lifetime[one] or 0, lifetime[other] or 0
  if (mine < border) ~= (theirs < border) then return mine < border end
  if mine ~= theirs then return mine > theirs end
  if active[one] ~= active[other] then return active[one] < active[other] end
  return one < other -- the order of a hash means nothing; this makes the choice repeatable
end

local chosen, endpoint
repeat
  chosen = nil
  for field in pairs(eligible) do
    if not chosen or better(field, chosen) then chosen = field end
  end
  if not chosen then
    if session_id then call('SET', prefix .. 'slots:wanted:' .. browser_type, 1) end
    return false
  end
  endpoint = call('PTTL', worker_prefix .. chosen) >= 0 and eligible[chosen]
  eligible[chosen] = nil -- without a TTL: the next best
until endpoint

call('HINCRBY', active_hash, chosen, 1)
if call('HINCRBY', lifetime_hash, chosen, 1) >= max_lifetime then
  local command = prefix .. 'worker:cmd:' .. chosen
  redis.call('SET', command, 'shutdown', 'PX', milliseconds(tonumber(given(15, 60))))
  redis.call('PUBLISH', command, 'shutdown')
  if spare then
    redis.call('HSET', worker_prefix .. spare, 'status', 'available')
    redis.call('HSET', worker_prefix .. chosen, 'replacement', string.sub(spare, #type_prefix + 1))
    wake(prefix, browser_type)
  end
end

if session_id then
  local record = {
    'browserType', browser_type, 'workerId', string.sub(chosen, #type_prefix + 1), 'status', 'pending',
    'createdAt', ARGV[4], 'client', given(9, ''),
  }
  for i = 16, #ARGV do record[#record + 1] = ARGV[i] end
  redis.call('HSET', session_key, unpack(record))
  redis.call('PEXPIRE', session_key, milliseconds(tonumber(given(13, 900))))
  local lease_until = string.format('%.3f', now + tonumber(given(8, 10)))
  redis.call('ZADD', prefix .. 'sessions:live:' .. chosen, lease_until, session_id)
  redis.call('ZADD', prefix .. 'sessions:index', ARGV[4], session_id)
  redis.call('ZREMRANGEBYRANK', prefix .. 'sessions:index', 0, -tonumber(given(14, 10000)) - 1)
end
return endpoint
