-- Removes workers that are gone and ends their sessions, so that no slot stays taken. Stands alone.
--
-- KEYS  none, or 1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix)
-- ARGV  1 now, Unix seconds    2 stale threshold, seconds
--       All others are optional; "" stands for the default.
--       3 key prefix ("")    4 how long records of ended sessions are kept, seconds (3600)    5 reason ("worker lost")
--       6 one worker, "{type}:{id}": only it is reaped, with its command, whatever its heartbeat (the caller knows that it is
--       dead, or is this worker, and ends)
--       7 owner and 8 seconds of a lock: while another owner holds it, nothing is done (one reaper at a time)
--       9 "names": return which workers were reaped instead of how many    10 kind of the reason ("worker lost")
--      11 most sessions in sessions:index, and most leases in leases:index (10000)
-- Returns the number of workers reaped; with "names" a list of lists {"{type}:{id}", {session id …}, {lease id …}}, or nil
--       if locked out.
-- Keys  reaper:lock, reaper:cursor; worker:{type}:{id}, both counter fields, sessions:live:{type}:{id},
--       leases:live:{type}:{id} and sessions:leased:{type}:{id} of each reaped worker, worker:cmd:{type}:{id} of the one that
--       is named; its live sessions: session:{id} failed with the reason, sessions:outcomes, sessions:ends, sessions:of:{…};
--       its leases: lease:{id}, leases:outcomes, sessions:of:{…}; publishes slots:{pool} if a client waits for one of their
--       caps; sessions:index and leases:index lose vanished records, and the oldest ones above 11, of which those that live go to
--       sessions:index:live and leases:index:live; these lose who lives no more; what cluster:index:… has of each reaped worker.
--
-- A worker has a counter, or a hash worker:{type}:{id} with a heartbeat or an endpoint. It is stale when its last heartbeat
-- is older than the threshold, or its key or heartbeat is missing. A call scans at most about 100,000 keys of the database
-- for hashes, so that it does not hold up other clients of Redis; the next call goes on from there.

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

-- Names what has this kind and id: its record's key, behind the prefix, and its name in sessions:of:{…}.
local function name_of(kind, id)
  return kind .. ':' .. id
end

-- The prefix of the keys that are for all of a kind, sessions:… or leases:…: live sets, index and totals.
local function all_of(prefix, kind)
  return prefix .. kind .. 's:'
end
-- [end: both]

-- [shared: history]
-- Takes the oldest of this kind out of its index until `most` are left, at most 1000 at once. Those that live go to index:live,
-- where lists find them until they end. Returns whether there are more of them.
local function shorten_index(prefix, kind, most)
  local newest = all_of(prefix, kind) .. 'index'
  local surplus = redis.call('ZCARD', newest) - most
  if surplus <= 0 then return false end
  local last = math.min(surplus, 1000) - 1
  local oldest = redis.call('ZRANGE', newest, 0, last, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    local status = redis.call('HGET', prefix .. name_of(kind, oldest[i]), 'status')
    if status == 'pending' or status == 'running' then redis.call('ZADD', newest .. ':live', oldest[i + 1], oldest[i]) end
  end
  redis.call('ZREMRANGEBYRANK', newest, 0, last)
  return surplus > last + 1
end
-- [end: history]

-- [shared: changes]
-- Adds to a counter; a value that is no number, or below 0, counts as 0.
local function add(hash, field, by)
  redis.call('HSET', hash, field, math.max(0, whole(redis.call('HGET', hash, field)) or 0) + by)
end

-- Takes 1 from a counter that is above 0; does not make a missing one.
local function take_one(hash, field)
  if (whole(redis.call('HGET', hash, field)) or 0) > 0 then add(hash, field, -1) end
end

-- Tells the proxies that a slot in this pool may have come free, if a selection found none since the last time. Clients that
-- name no pool wait for a browser type instead.
local function tell(prefix, pool)
  if redis.call('DEL', prefix .. 'slots:wanted:' .. pool) == 1 then
    redis.call('DEL', prefix .. 'cluster:line:passed', prefix .. 'cluster:line:passed:' .. pool) -- all may ask again
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

local function leave_part(at, part, field)
  local key = at .. 'part:' .. part
  local was_last = redis.call('ZREM', key, field) == 1 and redis.call('EXISTS', key) == 0
  if was_last then redis.call('HDEL', at .. 'parts', part) end
end

-- Takes a worker out of its part, `was`, or out of all if that is not known.
local function leave_parts(at, field, was)
  for _, part in ipairs(was and {was} or redis.call('HKEYS', at .. 'parts')) do
    if string.find(part, ':', 1, true) then leave_part(at, part, field) end
  end
end

-- Notes that `change` more workers are known, and that the next selection has to see until when each is believed. A size
-- that cannot be tells that a key of the index was deleted.
local function note_size(at, change)
  local known = redis.call('ZCARD', at .. 'known')
  local is_whole = (tonumber(redis.call('HGET', at .. 'parts', 'size') or 0)) + change == known
  if is_whole and known == 0 then
    redis.call('DEL', at .. 'parts')
  else
    redis.call('HSET', at .. 'parts', 'size', is_whole and known or -1, 'until', 0)
  end
end

local function forget(prefix, field)
  local at = prefix .. 'cluster:index:'
  leave_parts(at, field, redis.call('HGET', at .. 'part_of', field))
  redis.call('HDEL', at .. 'part_of', field)
  redis.call('HDEL', at .. 'spares', field)
  redis.call('SREM', at .. 'foreign', field)
  if redis.call('ZREM', at .. 'known', field) == 1 then note_size(at, -1) end
end
-- [end: changes]

-- [shared: ends]
-- The kinds of what takes a slot (HeldAs in pwgrid/common/session_lifecycle.py).
local KINDS = {'session', 'lease'}

local LENGTH_BOUNDS_S = {1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400}

-- Counts an end by browser type, pool, status and kind of its reason; and the session's length in seconds, unless it is
-- unknown (nil).
local function tally(prefix, browser_type, pool, status, reason_kind, length_s)
  local field = browser_type .. ':' .. pool .. ':'
  add(prefix .. 'sessions:ends', field .. status .. ':' .. reason_kind, 1)
  if not length_s then return end
  local bound = 'inf'
  for i = #LENGTH_BOUNDS_S, 1, -1 do
    if length_s <= LENGTH_BOUNDS_S[i] then bound = LENGTH_BOUNDS_S[i] end
  end
  add(prefix .. 'sessions:lengths', field .. bound, 1)
  add(prefix .. 'sessions:lengths', field .. 'ms', math.floor(math.max(0, length_s) * 1000))
end

-- Copies fields of a lease's record into the record of a session that came with the lease. Does nothing for nil.
local function note_lease(prefix, id, lease)
  if not lease then return end
  local names = {'pool', 'labels', 'labelKey', 'name', 'run', 'token'}
  local record = {'lease', lease}
  for i, value in ipairs(redis.call('HMGET', prefix .. name_of('lease', lease), unpack(names))) do
    if value then
      record[#record + 1] = names[i]
      record[#record + 1] = value
    end
  end
  redis.call('HSET', prefix .. name_of('session', id), unpack(record))
end

-- What is live in the worker at `field` ("type:id"): a list of {kind, id, end of its pending lease, or "inf" once it runs}.
-- What takes a slot is in the live set of its kind; sessions that came with a lease, and take none, are in sessions:leased.
local function live_in(prefix, field)
  local found = {}
  for _, kind in ipairs(KINDS) do
    local members = redis.call('ZRANGE', all_of(prefix, kind) .. 'live:' .. field, 0, -1, 'WITHSCORES')
    for i = 1, #members, 2 do found[#found + 1] = {kind, members[i], members[i + 1]} end
  end
  for _, id in ipairs(redis.call('HKEYS', prefix .. 'sessions:leased:' .. field)) do
    found[#found + 1] = {'session', id, 'inf'}
  end
  return found
end

-- Ends the session or lease `id` of the worker at `field` ("type:id"): frees its slot, counts its outcome, keeps its record.
-- It has its slot by being in the live set, so the slot is given back once, and the counter never falls below 0.
-- `reason` is a sentence for people, `reason_kind` one of EndReason in pwgrid/common/reasons.py. `presumed`: the worker did
-- not report the end itself, and may prove it wrong. `lease`: which a session came with, where Redis may not know it.
-- Returns whether this call ended it, and whether a slot came free.
local function finish(
  prefix, active_hash, field, kind, id, status, reason_kind, reason, now, history_ttl_s, presumed, lease)
  local name, all, leased = name_of(kind, id), all_of(prefix, kind), prefix .. 'sessions:leased:' .. field
  local key = prefix .. name
  local freed = redis.call('ZREM', all .. 'live:' .. field, id) == 1
  if freed then
    take_one(active_hash, field)
  elseif kind == 'session' then
    lease = redis.call('HGET', leased, id) or lease
    redis.call('HDEL', leased, id)
  end
  local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'startedAt', 'pool', 'caps')
  if was[1] and (was[2] .. ':' .. was[3] ~= field or (was[1] ~= 'pending' and was[1] ~= 'running')) then
    return false, freed
  end
  local browser_type, worker_id = string.match(field, '^([^:]*):(.*)$')
  if not was[1] then
    redis.call('HSET', key, 'kind', kind, 'browserType', browser_type, 'workerId', worker_id, 'createdAt', now)
    note_lease(prefix, id, lease)
    redis.call('ZADD', all .. 'index', now, id)
  end
  redis.call('HSET', key, 'status', status, 'reason', reason, 'reasonKind', reason_kind, 'endedAt', now)
  if presumed then redis.call('HSET', key, 'presumed', 1) end
  redis.call('PEXPIRE', key, string.format('%.0f', history_ttl_s * 1000))
  add(all .. 'outcomes', status, 1)
  redis.call('ZREM', all .. 'index:live', id)
  leave_caps(prefix, name, was[6], was[5] or browser_type)
  if kind ~= 'session' then return true, freed end
  local length_s = not presumed and tonumber(was[4]) and tonumber(now) - tonumber(was[4]) or nil
  tally(prefix, browser_type, was[5] or browser_type, status, reason_kind, length_s)
  return true, freed
end
-- [end: ends]

local SCANS, KEYS_A_SCAN = 100, 1000
local SHORTENED = 100 -- times that an index is shortened, for the same reason
local now = ARGV[1]

local prefix, history_ttl_s, reason = given(3, ''), tonumber(given(4, 3600)), given(5, 'worker lost')
local only, owner, names, reason_kind = given(6), given(7), given(9) == 'names', given(10, 'worker lost')
local active_hash = KEYS[1] or prefix .. 'cluster:active_connections'
local lifetime_hash = KEYS[2] or prefix .. 'cluster:lifetime_connections'

if owner then
  local lock, lock_ms = prefix .. 'reaper:lock', string.format('%.0f', tonumber(given(8, 60)) * 1000)
  if not redis.call('SET', lock, owner, 'NX', 'PX', lock_ms) and redis.call('GET', lock) ~= owner then
    return not names and 0
  end
  redis.call('PEXPIRE', lock, lock_ms)
end

local function stale(field)
  local beat = whole(redis.call('HGET', prefix .. 'worker:' .. field, 'lastHeartbeat'))
  return not beat or math.floor(now) - beat > tonumber(ARGV[2])
end

-- The field ("type:id") of the worker whose hash `key` is; nil if it is another program's key.
local function field_of(key)
  local field = string.sub(key, #prefix + #'worker:' + 1)
  if not string.find(field, '^[^:]+:[^:]+$') or string.find(field, '^cmd:') then return nil end
  if redis.call('TYPE', key).ok ~= 'hash' then return nil end
  local has = redis.call('HMGET', key, 'lastHeartbeat', 'wsEndpoint')
  return (has[1] or has[2]) and field
end

local function look_for_hashes(found)
  local pattern = string.gsub(prefix, '[%*%?%[%]\\]', '\\%0') .. 'worker:*:*'
  local cursor = redis.call('GET', prefix .. 'reaper:cursor') or '0'
  for _ = 1, SCANS do
    local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', KEYS_A_SCAN)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      local field = field_of(key)
      if field and stale(field) then found[field] = true end
    end
    if cursor == '0' then break end
  end
  if cursor == '0' then
    redis.call('DEL', prefix .. 'reaper:cursor')
  else
    redis.call('SET', prefix .. 'reaper:cursor', cursor)
  end
end

local fields = {}
if only then
  fields[only] = true
else
  for _, hash in ipairs({active_hash, lifetime_hash}) do
    for _, field in ipairs(redis.call('HKEYS', hash)) do
      if stale(field) then fields[field] = true end
    end
  end
  look_for_hashes(fields)
end

local reaped = {}
for field in pairs(fields) do
  local live, failed = live_in(prefix, field), {session = {}, lease = {}}
  for _, each in ipairs(live) do
    local kind, id = each[1], each[2]
    finish(prefix, active_hash, field, kind, id, 'failed', reason_kind, reason, now, history_ttl_s, true)
    table.insert(failed[kind], id)
  end
  local known = redis.call('DEL', prefix .. 'worker:' .. field)
  known = known + redis.call('HDEL', active_hash, field) + redis.call('HDEL', lifetime_hash, field)
  forget(prefix, field)
  if known > 0 or #live > 0 then reaped[#reaped + 1] = {field, failed.session, failed.lease} end
end

if only then
  redis.call('DEL', prefix .. 'worker:cmd:' .. only)
else
  for _, kind in ipairs(KINDS) do
    local newest = all_of(prefix, kind) .. 'index'
    for _, id in ipairs(redis.call('ZRANGE', newest, 0, 999)) do
      if redis.call('EXISTS', prefix .. name_of(kind, id)) == 0 then redis.call('ZREM', newest, id) end
    end
    local rounds = 0
    while rounds < SHORTENED and shorten_index(prefix, kind, given(11, 10000)) do rounds = rounds + 1 end
    for _, id in ipairs(redis.call('ZRANGE', newest .. ':live', 0, -1)) do
      local status = redis.call('HGET', prefix .. name_of(kind, id), 'status')
      if status ~= 'pending' and status ~= 'running' then redis.call('ZREM', newest .. ':live', id) end
    end
  end
end

if names then return reaped end
return #reaped
