-- Chooses a worker for one session and takes one of its slots, in one atomic step. Stands alone.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 browser type    2 MAX_CONCURRENT_SESSIONS    3 MAX_LIFETIME_SESSIONS    4 now, Unix seconds
--       All others are optional; "" stands for the default.
--       5 stale threshold, seconds (30)         6 key prefix ("")
--       7 session id: with it a lease holds the slot, and session:{id} is written (for a borrowed lease see 17)
--       8 lease of the pending session, seconds (10)                    9 client's address
--      10 worker ids that must not be chosen, comma-separated       11 Playwright major.minor that the worker must have
--      12 the one worker id that may be chosen                         13 TTL of the record while live, seconds (900)
--      14 most sessions in sessions:index (10000)                      15 TTL of the shutdown command, seconds (60)
--      16 the pool whose workers may be chosen, and whose limits 2 and 3 then are ("" = all workers of the type)
--      17 kind: "session" (the default), or "lease" for a slot that is borrowed; 7 is the id of the lease then, and keys of
--       leases, lease:{id} and leases:…, take the place of session:{id}, sessions:live:… and sessions:index
--      18, 19 … further fields of the record: name, value, name, value …; a name that begins with "max:" is no field but
--       a cap: its value is how many sessions and leases of the rest of the name, say "run:nightly", may be live
-- Returns the worker's wsEndpoint, or nil when no worker is eligible.
-- Keys  reads worker:{type}:{id}; adds 1 to both counters.
--       When lifetime reaches its limit by that: sets worker:cmd:{type}:{id} to "shutdown" and publishes it; the worker's
--       field usedUp says until when its last client may be on its way; a spare of its pool becomes available, whose id is
--       the worker's field replacement, and slots:{pool} is published if a client waits.
--       With a session id: session:{id}, sessions:live:{type}:{id}, sessions:index; and when no worker is eligible
--       slots:wanted:{pool} (without a pool: the type), so that slots:{pool} is published when a slot comes free.
--       For each "max:" the set sessions:of:{rest of the name}; when it is full, slots:wanted:{pool} of every pool of its
--       members. The field "caps" of the record has the names.
--
-- A caller without a session id takes 1 from cluster:active_connections itself when its session has ended. The worker's
-- fields outside and outsideLifetime say how much of its counters comes from such callers, so that no heartbeat takes that
-- for wrong.
--
-- Serving: status available, heartbeat no older than the threshold. Eligible: serving, key with a TTL, active below the
-- concurrent limit (the worker's own `slots` where that is lower), lifetime below its limit, passes 10 to 12.
-- margin = max(1, floor(max lifetime / workers)), where workers are all that serve, also full ones and those that 10 to 12
-- exclude: load and filters must not move the border, max lifetime - margin. Of the eligible ones below the border the one
-- with the highest lifetime wins, of equals the one with the lowest active; if none is below it, the same among all eligible.
--
-- Spare: status spare, heartbeat as above. The step that uses up another worker makes a spare (the first by id) serve,
-- so that there is never one worker less. Until then a spare is not chosen, and does not move the border.
--
-- Idempotent by the session: one that is pending already gets the same endpoint again and no second slot. If its worker is
-- now excluded, or the worker's key has run out, that lease is taken back first, as rollback.lua does. One that has run gets
-- nil.

-- [shared: both]
-- An optional argument: nothing and "" stand for the default.
local function given(index, default)
  local value = ARGV[index]
  if value == nil or value == '' then return default end
  return value
end

-- A hash's value as a whole number, or nil: operators and other programs write these hashes, too ("inf", "nan", "").
local function whole(value)
  local number = tonumber(value)
  if number and number > -2^53 and number < 2^53 then return math.floor(number) end
end

-- Adds to a counter; a value that is no number, or below 0, counts as 0.
local function add(hash, field, by)
  redis.call('HSET', hash, field, math.max(0, whole(redis.call('HGET', hash, field)) or 0) + by)
end

-- Takes 1 from a counter that is above 0; does not make a missing one.
local function take_one(hash, field)
  if (whole(redis.call('HGET', hash, field)) or 0) > 0 then add(hash, field, -1) end
end

-- The kinds of what takes a slot (HeldAs in pwgrid/common/session_lifecycle.py).
local KINDS = {'session', 'lease'}

-- Names what has this kind and id: its record's key, behind the prefix, and its name in sessions:of:{…}.
local function name_of(kind, id)
  return kind .. ':' .. id
end

-- The prefix of the keys that are for all of a kind, sessions:… or leases:…: live sets, index and totals.
local function all_of(prefix, kind)
  return prefix .. kind .. 's:'
end

-- Tells the proxies that a slot in this pool may have come free, if a selection found none since the last time. Clients that
-- name no pool wait for a browser type instead.
local function tell(prefix, pool)
  if redis.call('DEL', prefix .. 'slots:wanted:' .. pool) == 1 then
    redis.call('PUBLISH', prefix .. 'slots:' .. pool, 'free')
  end
end

-- A session or lease that has ended, or never began, counts towards its caps no longer. `name` and `caps` are as for
-- join_caps. Who waits for a cap listens to the pools of its sessions; the worker's own pool need not have a free slot now.
local function leave_caps(prefix, name, caps, pool)
  if not caps then return end
  for of in string.gmatch(caps, '[^,]+') do redis.call('SREM', prefix .. 'sessions:of:' .. of, name) end
  tell(prefix, pool)
end
-- [end: both]

-- [shared: selections]
-- The pool of the worker at `field` ("type:id"): that in its hash, or else its browser type.
local function pool_of(prefix, field)
  return redis.call('HGET', prefix .. 'worker:' .. field, 'pool') or string.match(field, '^[^:]*')
end

-- Tells the proxies that the worker at `field` may be eligible again.
local function wake(prefix, field)
  tell(prefix, pool_of(prefix, field))
  tell(prefix, string.match(field, '^[^:]*'))
end

-- Gives a session of its lifetime back to the worker at `field`, since no client came for the lease. If that was the last
-- of its lifetime, the selection's shutdown command goes, too. The replacement that it let serve goes on.
local function take_back(prefix, lifetime_hash, field)
  take_one(lifetime_hash, field)
  local worker = prefix .. 'worker:' .. field
  if redis.call('HDEL', worker, 'usedUp') == 1 then
    redis.call('DEL', prefix .. 'worker:cmd:' .. field)
    redis.call('HDEL', worker, 'replacement')
  end
end

local CAP_KEPT_MS = '2592000000' -- 30 days, longer than any session: after so long without a new member none of them is live

-- Counts a session or lease, by its name_of, towards its caps: `caps` is the field of its record, comma-separated, or nil.
local function join_caps(prefix, name, caps)
  for of in string.gmatch(caps or '', '[^,]+') do
    redis.call('SADD', prefix .. 'sessions:of:' .. of, name)
    redis.call('PEXPIRE', prefix .. 'sessions:of:' .. of, CAP_KEPT_MS)
  end
end

-- Undoes the selection for a client that has not come: slot, lifetime and shutdown command become as before it, and the
-- record is gone. If its end was presumed meanwhile, with its worker, that is taken back. Returns whether there was such a
-- selection, and whether its slot came free.
local function roll_back(prefix, active_hash, lifetime_hash, kind, id)
  local name, all = name_of(kind, id), all_of(prefix, kind)
  local key = prefix .. name
  local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'startedAt', 'presumed', 'caps', 'pool')
  local given_up = was[1] and was[1] ~= 'pending' and was[5] and not was[4]
  if was[1] ~= 'pending' and not given_up then return false, false end
  local field = was[2] .. ':' .. was[3]
  local freed = redis.call('ZREM', all .. 'live:' .. field, id) == 1
  if freed then
    take_one(active_hash, field)
    take_back(prefix, lifetime_hash, field)
  end
  if given_up then add(all .. 'taken_back', was[1], 1) end
  leave_caps(prefix, name, was[6], was[7] or was[2])
  redis.call('DEL', key)
  redis.call('ZREM', all .. 'index', id)
  if freed then wake(prefix, field) end
  return true, freed
end
-- [end: selections]

local active_hash, lifetime_hash = KEYS[1], KEYS[2]
local browser_type, max_active, max_lifetime, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function milliseconds(seconds)
  return string.format('%.0f', seconds * 1000)
end

local stale_s, prefix, id, kind = tonumber(given(5, 30)), given(6, ''), given(7), given(17, 'session')
local only, wanted_version = given(12), string.match(given(11, ''), '^%d+%.%d+')
local wanted_pool = given(16)
local excluded = {}
if given(10) then
  for worker_id in string.gmatch(ARGV[10], '[^,]+') do excluded[worker_id] = true end
end

if id then
  local was = redis.call('HMGET', prefix .. name_of(kind, id), 'status', 'browserType', 'workerId')
  if was[1] == 'pending' and not excluded[was[3]] then
    local endpoint = redis.call('HGET', prefix .. 'worker:' .. was[2] .. ':' .. was[3], 'wsEndpoint')
    if endpoint then return endpoint end
  end
  if was[1] and not roll_back(prefix, active_hash, lifetime_hash, kind, id) then return false end
end

local fields, caps, most_of = {}, {}, {}
for i = 18, #ARGV, 2 do
  local of = string.match(ARGV[i], '^max:(.+)$')
  if of then
    caps[#caps + 1], most_of[of] = of, tonumber(ARGV[i + 1])
  else
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = ARGV[i + 1]
  end
end
if #caps > 0 then
  fields[#fields + 1] = 'caps'
  fields[#fields + 1] = table.concat(caps, ',')
end

-- Whether a cap leaves no room. Those whose record has run out, or does not name its caps, may have ended and be in the set
-- until it looks full.
local function is_full(of)
  local members, most = prefix .. 'sessions:of:' .. of, most_of[of]
  if redis.call('SCARD', members) < most then return false end
  local live, pools = 0, {}
  for _, name in ipairs(redis.call('SMEMBERS', members)) do
    local was = redis.call('HMGET', prefix .. name, 'status', 'pool', 'browserType')
    if was[1] == 'pending' or was[1] == 'running' then
      live = live + 1
      pools[was[2] or was[3]] = true
    else
      redis.call('SREM', members, name)
    end
  end
  if live < most then return false end
  for pool in pairs(pools) do redis.call('SET', prefix .. 'slots:wanted:' .. pool, 1) end
  return true
end

for _, of in ipairs(id and caps or {}) do
  if is_full(of) then return false end
end

-- From here on it is the hot path: few calls, one command for each worker.
local call, find, type_prefix = redis.call, string.find, browser_type .. ':'

local function counters(hash)
  local flat, found = call('HGETALL', hash), {}
  for i = 1, #flat, 2 do
    if find(flat[i], type_prefix, 1, true) == 1 then found[flat[i]] = whole(flat[i + 1]) or 0 end
  end
  return found
end

local active, lifetime = counters(active_hash), counters(lifetime_hash)
for field in pairs(lifetime) do active[field] = active[field] or 0 end

local function passes(field, version)
  local worker_id = string.sub(field, #type_prefix + 1)
  version = wanted_version and string.match(version or '', '^%d+%.%d+')
  return not excluded[worker_id] and (not only or only == worker_id) and (not version or version == wanted_version)
end

local serving, spares, pools, eligible, worker_prefix = 0, {}, {}, {}, prefix .. 'worker:'
for field, live in pairs(active) do
  local worker = call(
    'HMGET', worker_prefix .. field, 'status', 'lastHeartbeat', 'slots', 'playwrightVersion', 'wsEndpoint', 'pool')
  local status, beat, pool = worker[1], whole(worker[2]), worker[6] or browser_type
  if not beat or math.floor(now) - beat > stale_s or (wanted_pool and pool ~= wanted_pool) then
    status = nil
  end
  pools[field] = pool
  if status == 'spare' and (not spares[pool] or field < spares[pool]) then
    spares[pool] = field
  elseif status == 'available' then
    serving = serving + 1
    local slots = whole(worker[3])
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
  return one < other -- by id, since pairs() has no order: the choice is repeatable
end

local chosen, endpoint
repeat
  chosen = nil
  for field in pairs(eligible) do
    if not chosen or better(field, chosen) then chosen = field end
  end
  if not chosen then
    if id then call('SET', prefix .. 'slots:wanted:' .. (wanted_pool or browser_type), 1) end
    return false
  end
  endpoint = call('PTTL', worker_prefix .. chosen) >= 0 and eligible[chosen]
  eligible[chosen] = nil -- if it has no TTL, the next best is tried
until endpoint

local lease_until = string.format('%.3f', now + tonumber(given(8, 10)))
-- Not HINCRBY, which refuses a value that is no number; the values are known here.
call('HSET', active_hash, chosen, active[chosen] + 1)
call('HSET', lifetime_hash, chosen, (lifetime[chosen] or 0) + 1)
if not id then
  add(worker_prefix .. chosen, 'outside', 1)
  add(worker_prefix .. chosen, 'outsideLifetime', 1)
end
if (lifetime[chosen] or 0) + 1 >= max_lifetime then
  local command = prefix .. 'worker:cmd:' .. chosen
  if redis.call('SET', command, 'shutdown', 'NX', 'PX', milliseconds(tonumber(given(15, 60)))) then
    redis.call('HSET', worker_prefix .. chosen, 'usedUp', lease_until) -- else there is an operator's command, which stays
  end
  redis.call('PUBLISH', command, 'shutdown')
  local spare = spares[pools[chosen]]
  if spare then
    redis.call('HSET', worker_prefix .. spare, 'status', 'available')
    redis.call('HSET', worker_prefix .. chosen, 'replacement', string.sub(spare, #type_prefix + 1))
    wake(prefix, spare)
  end
end

if id then
  local name, all = name_of(kind, id), all_of(prefix, kind)
  local record = {
    'kind', kind, 'browserType', browser_type, 'workerId', string.sub(chosen, #type_prefix + 1), 'status', 'pending',
    'createdAt', ARGV[4], 'client', given(9, ''), 'pool', pools[chosen],
  }
  for i = 1, #fields do record[#record + 1] = fields[i] end
  redis.call('HSET', prefix .. name, unpack(record))
  redis.call('PEXPIRE', prefix .. name, milliseconds(tonumber(given(13, 900))))
  redis.call('ZADD', all .. 'live:' .. chosen, lease_until, id)
  redis.call('ZADD', all .. 'index', ARGV[4], id)
  redis.call('ZREMRANGEBYRANK', all .. 'index', 0, -tonumber(given(14, 10000)) - 1)
  join_caps(prefix, name, table.concat(caps, ','))
end
return endpoint
