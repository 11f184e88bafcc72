-- Functions of several scripts. Never run by itself: the registry puts it before each script that says "Needs lib.lua".
-- A part marked as shared is also in the scripts that stand alone; a test compares the copies.

-- [shared: counters]
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
-- [end: counters]

-- [shared: tally]
-- Reasons that are counted by name (EndReason in pwgrid/common/session_lifecycle.py). Any other reason of a presumed
-- end says what happened to the worker, and counts as "worker lost"; all others count as "other".
local COUNTED = ';client disconnected;connection lost;protocol error;client closed the browser;ping timeout;idle timeout;'
  .. 'maximum duration;handshake refused;too late;ended by operator;drain timeout;drained now;worker stopped;browser crashed;'
  .. 'browser server lost;hung;memory limit;worker lost;lost by worker;lease expired;returned;expired;borrow not answered;'
local LENGTH_BOUNDS_S = {1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400}

-- Counts an end by browser type, pool, status and reason; and the session's length in seconds, unless it is unknown (nil).
local function tally(prefix, browser_type, pool, status, reason, length_s, presumed)
  local head, class = string.match(reason, '^[%a ]*%a') or '', presumed and 'worker lost' or 'other'
  if string.find(COUNTED, ';' .. head .. ';', 1, true) then class = head end
  local field = browser_type .. ':' .. pool .. ':'
  add(prefix .. 'sessions:ends', field .. status .. ':' .. class, 1)
  if not length_s then return end
  local bound = 'inf'
  for i = #LENGTH_BOUNDS_S, 1, -1 do
    if length_s <= LENGTH_BOUNDS_S[i] then bound = LENGTH_BOUNDS_S[i] end
  end
  add(prefix .. 'sessions:lengths', field .. bound, 1)
  add(prefix .. 'sessions:lengths', field .. 'ms', math.floor(math.max(0, length_s) * 1000))
end
-- [end: tally]

-- [shared: record]
-- Finds the record of a session, session:{id}, or of a borrowed lease, whose id begins with "lease:" and is the record's
-- name. The id of a session that comes with a lease is the lease's, and ~{number}; it takes no slot of its own.
-- Returns the record's key, the prefix of the keys of its totals, and whether it takes a slot.
local function record_of(prefix, id)
  if string.sub(id, 1, 6) == 'lease:' then return prefix .. id, prefix .. 'leases:', true end
  return prefix .. 'session:' .. id, prefix .. 'sessions:', not string.find(id, '~', 1, true)
end
-- [end: record]

-- [shared: note_lease]
-- Copies fields of a lease's record into the record of a session that came with the lease.
local function note_lease(prefix, id)
  local lease = string.match(id, '^(.-)~')
  if not lease then return end
  local names = {'pool', 'labels', 'name', 'run', 'token'}
  local record = {'lease', lease}
  for i, value in ipairs(redis.call('HMGET', prefix .. 'lease:' .. lease, unpack(names))) do
    if value then
      record[#record + 1] = names[i]
      record[#record + 1] = value
    end
  end
  redis.call('HSET', prefix .. 'session:' .. id, unpack(record))
end
-- [end: note_lease]

-- [shared: tell]
-- Tells the proxies that a slot in this pool may have come free, if a selection found none since the last time. Clients that
-- name no pool wait for a browser type instead.
local function tell(prefix, pool)
  if redis.call('DEL', prefix .. 'slots:wanted:' .. pool) == 1 then
    redis.call('PUBLISH', prefix .. 'slots:' .. pool, 'free')
  end
end
-- [end: tell]

-- [shared: caps]
local CAP_KEPT_MS = '2592000000' -- 30 days, longer than any session: after so long without a new member none of them is live

-- Counts a session towards its caps: `caps` is the field of its record, comma-separated, or nil.
local function join_caps(prefix, id, caps)
  for of in string.gmatch(caps or '', '[^,]+') do
    redis.call('SADD', prefix .. 'sessions:of:' .. of, id)
    redis.call('PEXPIRE', prefix .. 'sessions:of:' .. of, CAP_KEPT_MS)
  end
end
-- [end: caps]

-- [shared: leave_caps]
-- A session that has ended, or never began, counts towards its caps no longer. `caps` is as for join_caps; records of earlier
-- versions do not have it, and the selector finds out which of their sessions have ended. Who waits for a cap listens to the
-- pools of its sessions; the worker's own pool need not have a free slot now.
local function leave_caps(prefix, id, caps, pool)
  if not caps then return end
  for of in string.gmatch(caps, '[^,]+') do redis.call('SREM', prefix .. 'sessions:of:' .. of, id) end
  tell(prefix, pool)
end
-- [end: leave_caps]

-- Completes a session's record by what its worker was told of its client: JSON of fields and values, or "". Counts it towards
-- its caps.
local function describe(prefix, id, told)
  local key = record_of(prefix, id)
  for name, value in pairs(told == '' and {} or cjson.decode(told)) do redis.call('HSETNX', key, name, value) end
  join_caps(prefix, id, redis.call('HGET', key, 'caps'))
end

-- [shared: finish]
-- Ends session `id` of the worker at `field` ("type:id"): gives its lease back, counts its outcome, keeps its record.
-- A session has its slot by being in the live set, so the slot is given back once, and the counter never falls below 0.
-- `presumed`: the worker did not report the end itself, and may prove it wrong. Returns whether this call ended the
-- session, and whether a slot came free.
local function finish(prefix, active_hash, field, id, status, reason, now, history_ttl_s, presumed)
  local key, totals, takes_slot = record_of(prefix, id)
  local freed = redis.call('ZREM', prefix .. 'sessions:live:' .. field, id) == 1 and takes_slot
  if freed then take_one(active_hash, field) end
  local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'startedAt', 'pool', 'caps')
  if was[1] and (was[2] .. ':' .. was[3] ~= field or (was[1] ~= 'pending' and was[1] ~= 'running')) then
    return false, freed
  end
  local browser_type, worker_id = string.match(field, '^([^:]*):(.*)$')
  if not was[1] then
    redis.call('HSET', key, 'browserType', browser_type, 'workerId', worker_id, 'createdAt', now)
    note_lease(prefix, id)
    redis.call('ZADD', totals .. 'index', now, id)
  end
  redis.call('HSET', key, 'status', status, 'reason', reason, 'endedAt', now)
  if presumed then redis.call('HSET', key, 'presumed', 1) end
  redis.call('PEXPIRE', key, string.format('%.0f', history_ttl_s * 1000))
  add(totals .. 'outcomes', status, 1)
  leave_caps(prefix, id, was[6], was[5] or browser_type)
  if totals ~= prefix .. 'sessions:' then return true, freed end
  local length_s = not presumed and tonumber(was[4]) and tonumber(now) - tonumber(was[4]) or nil
  tally(prefix, browser_type, was[5] or browser_type, status, reason, length_s, presumed)
  return true, freed
end
-- [end: finish]

-- [shared: wake]
-- The pool of the worker at `field` ("type:id"): that in its hash, or else its browser type.
local function pool_of(prefix, field)
  return redis.call('HGET', prefix .. 'worker:' .. field, 'pool') or string.match(field, '^[^:]*')
end

-- Tells the proxies that the worker at `field` may be eligible again.
local function wake(prefix, field)
  tell(prefix, pool_of(prefix, field))
  tell(prefix, string.match(field, '^[^:]*'))
end
-- [end: wake]

-- [shared: take_back]
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
-- [end: take_back]

-- Counts that a counter was wrong.
local function note_repair(prefix)
  local key = prefix .. 'cluster:counter_repairs'
  redis.call('SET', key, math.max(0, whole(redis.call('GET', key)) or 0) + 1)
end

-- Takes a session that its worker reports into the live set: the worker is the authority for its slots. Writes a missing
-- record anew as running (Redis was away, or came back empty), and takes back an end that was only presumed. `since`,
-- `client` and `told` are what the worker knows of the session; each may be "". Returns 1 if the session holds a slot now
-- and held none before, else 0; the caller changes the counter.
local function adopt(prefix, field, id, now, record_ttl_s, since, client, told)
  if since == '' then since = now end
  local key, totals, takes_slot = record_of(prefix, id)
  local live = prefix .. 'sessions:live:' .. field
  local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'presumed')
  local mine = was[1] and was[2] .. ':' .. was[3] == field
  if mine and was[1] == 'pending' then
    local lease_until = tonumber(redis.call('ZSCORE', live, id)) or 0
    if lease_until > tonumber(now) then return 0 end -- its start is on the way
    redis.call('HSET', key, 'status', 'running', 'startedAt', since)
  elseif mine and was[4] and was[1] ~= 'running' then
    add(totals .. 'taken_back', was[1], 1)
    redis.call('HDEL', key, 'reason', 'endedAt', 'presumed')
    redis.call('HSETNX', key, 'startedAt', since)
    redis.call('HSET', key, 'status', 'running')
    describe(prefix, id, told)
  elseif not was[1] then
    local browser_type, worker_id = string.match(field, '^([^:]*):(.*)$')
    redis.call('HSET', key, 'browserType', browser_type, 'workerId', worker_id, 'pool', pool_of(prefix, field), 'status',
      'running', 'createdAt', since, 'startedAt', since, 'client', client)
    note_lease(prefix, id)
    describe(prefix, id, told)
    redis.call('ZADD', totals .. 'index', since, id)
  end
  if redis.call('HGET', key, 'status') == 'running' and (mine or not was[1]) then
    redis.call('PEXPIRE', key, string.format('%.0f', record_ttl_s * 1000))
  end
  return redis.call('ZADD', live, '+inf', id) == 1 and takes_slot and 1 or 0
end

-- How many slots the sessions and leases in a worker's live set take.
local function slots_taken(live)
  local taken = 0
  for _, id in ipairs(redis.call('ZRANGE', live, 0, -1)) do
    local _, _, takes_slot = record_of('', id)
    if takes_slot then taken = taken + 1 end
  end
  return taken
end

