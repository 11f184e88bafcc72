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
--      14 most sessions in sessions:index (10000); older ones that live go to sessions:index:live      15 TTL of the shutdown command, seconds (60)
--      16 the pool whose workers may be chosen, and whose limits 2 and 3 then are ("" = all workers of the type)
--      17 kind: "session" (the default), or "lease" for a slot that is borrowed; 7 is the id of the lease then, and keys of
--       leases, lease:{id} and leases:…, take the place of session:{id}, sessions:live:… and sessions:index
--      18, 19 … further fields of the record: name, value, name, value …; these names are no fields:
--       one that begins with "max:" is a cap: its value is how many sessions and leases of the rest of the name, say
--       "run:nightly", may be live; "prefer:host" has the host whose workers come first, "avoid:hosts" those, comma-separated,
--       of whose workers none may be chosen; with "behind:line" it gets a slot only if nobody waits for the pool (16) in
--       cluster:line:{pool} (take_turn.lua), and with "turn:of" and the id of a line only if no slot came free since
--       take_turn.lua said that it is that line's turn: then another one's client may be next; with the
--       field "lifetime" = "0" it takes none of its worker's lifetime, and cannot use it up
-- Returns the worker's wsEndpoint, or nil when no worker is eligible.
-- Keys  reads worker:{type}:{id}; adds 1 to both counters, or to the first alone (18); cluster:index:…, by which it finds the
--       worker (below).
--       When lifetime reaches its limit by that: sets worker:cmd:{type}:{id} to "shutdown" and publishes it; the worker's
--       field usedUp says until when its last client may be on its way; a spare of its pool becomes available, whose id is
--       the worker's field replacement, and slots:{pool} is published if a client waits.
--       With a session id: session:{id}, sessions:live:{type}:{id}, sessions:index, sessions:index:live; and when no worker is eligible
--       slots:wanted:{pool} (without a pool: the type), so that slots:{pool} is published when a slot comes free.
--       For each "max:" the set sessions:of:{rest of the name}; when it is full, slots:wanted:{pool} of every pool of its
--       members. The field "caps" of the record has the names.
--
-- A caller without a session id takes 1 from cluster:active_connections itself when its session has ended. The worker's
-- fields outside and outsideLifetime say how much of its counters comes from such callers, so that no heartbeat takes that
-- for wrong.
--
-- Serving: status available, heartbeat no older than the threshold. Eligible: serving, key with a TTL, active below the
-- concurrent limit (the worker's own `slots` where that is lower), lifetime below its limit, passes 10 to 12 and avoid:hosts.
-- margin = max(1, floor(max lifetime / workers)), where workers are all that serve, also full ones and those that 10 to 12
-- and avoid:hosts exclude: load and filters must not move the border, max lifetime - margin. Of the eligible ones below the
-- border the one with the highest lifetime wins, of equals the one with the lowest active, then the first by id; if none is
-- below it, the same among all eligible. With prefer:host all this is first done among those of that host (the field `host`
-- of the worker's hash), and among all if none of them is eligible.
--
-- This is the rule. The workers are not read for it, but an index of them, and of the one that it names the hash and the
-- counters: limits hold whatever the index says. What the scripts change counts at once, and so do counters that come or go
-- (their number is compared). Another change by hand counts with the worker's next heartbeat.lua, or after 5 to 10 s; at once
-- if the worker is the one that the index names, or if nobody else is found and no script writes this worker.
--
-- Spare: status spare, heartbeat as above. The step that uses up another worker makes a spare of its host (the first by id)
-- serve, so that there is never one worker less. Until then a spare is not chosen, and does not move the border.
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

-- [shared: reading]
-- How much of its worker's lifetime a session or lease takes, by the field "lifetime" of its record, which most do not have.
local function lifetime_taken(of_record)
  return of_record == '0' and 0 or 1
end

-- The index: all that has a counter, sorted, so that a selection reads only what it needs. It is a cache: whatever is deleted
-- of it is made again. A worker is meant by its field of the counters, "{type}:{id}"; a part of the index is
-- "{type}:{major.minor, or nothing}:{pool}", with "@{host}" behind it for workers that have one.
--   cluster:index:part:{part}    zset, worker that serves → its place
--   cluster:index:spares         hash, spare → its pool
--   cluster:index:parts          hash, part → the concurrent limit of its last selection; "size" → how many workers are known;
--                                "until" → when the first of them has to be read again, Unix seconds
--   cluster:index:known          zset, worker → until when it is believed; one that is not believed at all → UNBELIEVED + now
--   cluster:index:part_of        hash, worker → its part
--   cluster:index:foreign        set of workers that neither register.lua nor heartbeat.lua has written
-- Who may be chosen has the place active - lifetime * STEP: they stand in the order of the choice. Behind them are those at
-- the concurrent limit of the last selection (FULL), and those without a free slot, an endpoint or a TTL (BUSY).
local STEP, FULL, BUSY, BEFORE_FULL = 2 ^ 20, 2 ^ 52, 2 ^ 52 + 1, '(4503599627370496'
local BELIEVED_S, BELIEVED_AGAIN_S = 10, 5 -- longer than two heartbeats; so long if no heartbeat.lua has told of it
local UNBELIEVED = -2 ^ 40

-- What a selection has to know of a worker's hash.
local function read_hash(prefix, field)
  local has = redis.call('HMGET', prefix .. 'worker:' .. field,
    'status', 'lastHeartbeat', 'slots', 'playwrightVersion', 'wsEndpoint', 'pool', 'host')
  return {
    status = has[1], beat = whole(has[2]), slots = whole(has[3]), version = has[4] and string.match(has[4], '^%d+%.%d+') or '',
    endpoint = has[5], pool = has[6] or string.match(field, '^[^:]*'), host = has[7] and string.gsub(has[7], '@', '') or '',
  }
end

-- The part of the index to which a worker of this browser type belongs. A pool that another program has named may have an
-- @, too.
local function part_of(browser_type, worker)
  local part = browser_type .. ':' .. worker.version .. ':' .. worker.pool
  local is_told = worker.host ~= '' or string.find(worker.pool, '@', 1, true)
  return is_told and part .. '@' .. worker.host or part
end

-- A counter's value; what is no number counts as 0. The second result is whether there is one.
local function counter(hash, field)
  local value = redis.call('HGET', hash, field)
  return whole(value) or 0, value ~= false
end

-- Whether a worker's heartbeat is good; `stale_before` is the oldest that is, or nil if that is not known.
local function beats(worker, stale_before)
  return worker.beat and worker.beat >= (stale_before or worker.beat)
end

-- Whether a worker serves and is complete.
local function is_choosable(prefix, field, worker, stale_before)
  return worker.status == 'available' and beats(worker, stale_before) and worker.endpoint
    and redis.call('PTTL', prefix .. 'worker:' .. field) >= 0
end

-- The place of a worker that serves and is complete. `most` is the concurrent limit, or nil if it is not known. One with
-- counters that cannot be is left to its heartbeat, which repairs them.
local function place_by_load(active, lifetime, slots, most)
  if (slots and active >= slots) or math.abs(active) >= STEP / 2 or math.abs(lifetime) >= 2 ^ 31 then return BUSY end
  if most and active >= most then return FULL end
  return active - lifetime * STEP
end
-- [end: reading]

-- Functions that most selections do not need: to make them takes a tenth of a selection's time. They are not indented, as
-- other scripts have the same lines at their beginning.
local function rare_functions()
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

-- [shared: selections]
-- Until when to believe what was read of a worker: not at all if it is not complete, or stale, since who writes it so may be
-- about to change it.
local function believed_until(worker, is_odd, by)
  if is_odd then return UNBELIEVED + (by.now or 0) end
  local heard = worker.beat + BELIEVED_S
  if not by.now then return heard end
  return math.min(math.max(heard, by.now + BELIEVED_AGAIN_S), worker.beat + by.stale_s + 1)
end

-- Brings the index up to date with the hash and the counters of the worker at `field`. Who changes one of them calls it
-- afterwards. All of `by` is optional: `own`, the worker itself is heard; `foreign`, no script has told of it; `now` with
-- `stale_s`, and `most`, as a selection knows them. Returns whether the worker may be chosen, and could not by the index.
local function index(prefix, active_hash, lifetime_hash, field, by)
  local at, worker = prefix .. 'cluster:index:', read_hash(prefix, field)
  local active, has_active = counter(active_hash, field)
  local lifetime, has_lifetime = counter(lifetime_hash, field)
  if not has_active and not has_lifetime then
    forget(prefix, field)
    return false
  end
  local part = part_of(string.match(field, '^[^:]*'), worker)
  local key = at .. 'part:' .. part
  local was, stood = redis.call('HGET', at .. 'part_of', field), redis.call('ZSCORE', key, field)
  local place, stale_before = nil, by.now and math.floor(by.now) - by.stale_s
  if is_choosable(prefix, field, worker, stale_before) then
    place = place_by_load(active, lifetime, worker.slots, by.most)
  elseif worker.status == 'available' and beats(worker, stale_before) then
    place = BUSY
  end
  if was ~= part then
    leave_parts(at, field, was)
    redis.call('HSET', at .. 'part_of', field, part)
  end
  if place then
    redis.call('HSETNX', at .. 'parts', part, '')
    redis.call('ZADD', key, place, field)
  else
    leave_part(at, part, field)
  end
  if worker.status == 'spare' then
    redis.call('HSET', at .. 'spares', field, worker.pool)
  else
    redis.call('HDEL', at .. 'spares', field)
  end
  local is_full = worker.slots and active >= worker.slots
  local is_odd = not worker.status or not beats(worker, stale_before) or (place == BUSY and not is_full)
  local believed, is_new = believed_until(worker, is_odd, by), nil
  if by.own or by.now then
    is_new = redis.call('ZADD', at .. 'known', believed, field) == 1
  else
    is_new = redis.call('ZADD', at .. 'known', 'NX', believed, field) == 1
  end
  if is_new or is_odd then note_size(at, is_new and 1 or 0) end
  if by.own then
    redis.call('SREM', at .. 'foreign', field)
  elseif by.foreign then
    redis.call('SADD', at .. 'foreign', field)
  end
  return place ~= nil and place < FULL and (not stood or tonumber(stood) >= FULL)
end

-- Brings into the index who has a counter and is not in it, and takes out who has none. A counter that only one of the two
-- hashes has counts as 0 in the other, and is written there: they have the same fields then.
local function reconcile(prefix, active_hash, lifetime_hash, by)
  local is_known, in_hashes = {}, {}
  for _, field in ipairs(redis.call('ZRANGE', prefix .. 'cluster:index:known', 0, -1)) do is_known[field] = true end
  for _, hash in ipairs({active_hash, lifetime_hash}) do
    for _, field in ipairs(redis.call('HKEYS', hash)) do in_hashes[field] = (in_hashes[field] or 0) + 1 end
  end
  for field, count in pairs(in_hashes) do
    if count == 1 then
      redis.call('HSETNX', active_hash, field, 0)
      redis.call('HSETNX', lifetime_hash, field, 0)
    end
    if count == 1 or not is_known[field] then
      index(prefix, active_hash, lifetime_hash, field, {now = by.now, stale_s = by.stale_s, foreign = not is_known[field]})
    end
  end
  for field in pairs(is_known) do
    if not in_hashes[field] then forget(prefix, field) end
  end
  note_size(prefix .. 'cluster:index:', 0)
end

-- Brings the index up to date with the worker at `field`, of whose counters 1 was taken.
local function index_freed(prefix, active_hash, lifetime_hash, field)
  local at = prefix .. 'cluster:index:'
  local part = redis.call('HGET', at .. 'part_of', field)
  local stood = part and redis.call('ZSCORE', at .. 'part:' .. part, field)
  if stood and tonumber(stood) < BUSY then
    redis.call('ZADD', at .. 'part:' .. part, place_by_load((counter(active_hash, field)), (counter(lifetime_hash, field))), field)
  elseif stood or not part then
    index(prefix, active_hash, lifetime_hash, field, {})
  end
end

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
  local was = redis.call('HMGET', key,
    'status', 'browserType', 'workerId', 'startedAt', 'presumed', 'caps', 'pool', 'lifetime')
  local given_up = was[1] and was[1] ~= 'pending' and was[5] and not was[4]
  if was[1] ~= 'pending' and not given_up then return false, false end
  local field = was[2] .. ':' .. was[3]
  local freed = redis.call('ZREM', all .. 'live:' .. field, id) == 1
  if freed then
    take_one(active_hash, field)
    if lifetime_taken(was[8]) == 1 then take_back(prefix, lifetime_hash, field) end
    index_freed(prefix, active_hash, lifetime_hash, field)
  end
  if given_up then add(all .. 'taken_back', was[1], 1) end
  leave_caps(prefix, name, was[6], was[7] or was[2])
  redis.call('DEL', key)
  redis.call('ZREM', all .. 'index', id)
  redis.call('ZREM', all .. 'index:live', id)
  if freed then wake(prefix, field) end
  return true, freed
end
-- [end: selections]

return {add = add, index = index, join_caps = join_caps, leave_part = leave_part, reconcile = reconcile, roll_back = roll_back,
  wake = wake}
end

local call, active_hash, lifetime_hash = redis.call, KEYS[1], KEYS[2]
local browser_type, max_active, max_lifetime, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Redis takes three times as long for a number among a command's arguments as for a text.
local function as_text(number)
  return string.format('%.0f', number)
end

local stale_s, prefix, id, kind = tonumber(given(5, 30)), given(6, ''), given(7), given(17, 'session')
local only, wanted_version = given(12), string.match(given(11, ''), '^%d+%.%d+')
local wanted_pool = given(16)
local name = id and name_of(kind, id)
local record = id and prefix .. name
local excluded, excluded_count = {}, 0
if given(10) then
  for worker_id in string.gmatch(ARGV[10], '[^,]+') do
    excluded[worker_id], excluded_count = true, excluded_count + 1
  end
end

if id and call('EXISTS', record) == 1 then
  local was = call('HMGET', record, 'status', 'browserType', 'workerId')
  if was[1] == 'pending' and not excluded[was[3]] then
    local endpoint = call('HGET', prefix .. 'worker:' .. was[2] .. ':' .. was[3], 'wsEndpoint')
    if endpoint then return endpoint end
  end
  if was[1] and not rare_functions().roll_back(prefix, active_hash, lifetime_hash, kind, id) then return false end
end

local fields, caps, most_of, lived = {}, {}, {}, 1
local preferred_host, avoided = nil, {}
for i = 18, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if field == 'prefer:host' then
    preferred_host = value
  elseif field == 'avoid:hosts' then
    for host in string.gmatch(value, '[^,]+') do avoided[host] = true end
  elseif field == 'behind:line' then
    if call('EXISTS', prefix .. 'cluster:line:' .. wanted_pool) == 1 then return false end
  elseif field == 'turn:of' then
    local passed = prefix .. 'cluster:line:passed'
    local is_current = call('HGET', passed .. ':' .. wanted_pool, value) or call('HGET', passed, wanted_pool .. '/' .. value)
    if not is_current then return false end
  elseif string.find(field, '^max:.') then
    local of = string.sub(field, #'max:' + 1)
    caps[#caps + 1], most_of[of] = of, tonumber(value)
  else
    if field == 'lifetime' then lived = lifetime_taken(value) end
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
end
if #caps > 0 then fields[#fields + 1], fields[#fields + 2] = 'caps', table.concat(caps, ',') end

if id and #caps > 0 then
  -- Whether a cap leaves no room. Those whose record has run out, or does not name its caps, may have ended and be in the set
  -- until it looks full.
  local function is_full(of)
    local members, most = prefix .. 'sessions:of:' .. of, most_of[of]
    if call('SCARD', members) < most then return false end
    local live, pools = 0, {}
    for _, member in ipairs(call('SMEMBERS', members)) do
      local was = call('HMGET', prefix .. member, 'status', 'pool', 'browserType')
      if was[1] == 'pending' or was[1] == 'running' then
        live = live + 1
        pools[was[2] or was[3]] = true
      else
        call('SREM', members, member)
      end
    end
    if live < most then return false end
    for pool in pairs(pools) do call('SET', prefix .. 'slots:wanted:' .. pool, 1) end
    return true
  end

  for _, of in ipairs(caps) do
    if is_full(of) then return false end
  end
end

-- From here on it is the hot path: few calls, and none for each worker.
local at, type_prefix = prefix .. 'cluster:index:', browser_type .. ':'
local stale_before = math.floor(now) - stale_s

-- The first in these parts, by their keys, of those that may be chosen, are not excluded and have a lifetime below `limit`:
-- field, place, key of the part.
local function first_below(limit, keys)
  local least, best, best_place, best_key = (0.5 - math.ceil(limit)) * STEP, nil, nil, nil
  for i = 1, #keys do
    -- Hardly any has a lifetime that is used up, so the first of all is tried before a search by place, which takes twice as long.
    local found = limit == max_lifetime and call('ZRANGE', keys[i], '0', excluded_count, 'WITHSCORES')
    if not found or (found[1] and tonumber(found[2]) < least) then
      found = call('ZRANGEBYSCORE', keys[i], as_text(least), BEFORE_FULL, 'WITHSCORES', 'LIMIT', '0', excluded_count + 1)
    end
    for j = 1, #found, 2 do
      local field, place = found[j], tonumber(found[j + 1])
      if place >= FULL then break end
      if excluded_count == 0 or not excluded[string.sub(field, #type_prefix + 1)] then
        if not best or place < best_place or (place == best_place and field < best) then
          best, best_place, best_key = field, place, keys[i]
        end
        break
      end
    end
  end
  return best, best_place, best_key
end

-- The first below the border, or of all: field, place, key of the part. The border decides nothing where only one serves.
local function first_of(keys, border)
  local field, place, key
  if border then field, place, key = first_below(border, keys) end
  if field then return field, place, key end
  return first_below(max_lifetime, keys)
end

-- Whether what is known of a worker, or of all in a part of the index, is what was asked for.
local function is_wanted(version, pool, host)
  return (not wanted_pool or pool == wanted_pool) and (not wanted_version or version == '' or version == wanted_version)
    and not avoided[host]
end

-- The type, version, pool and host in the name of a part; nil for what is none.
local function parsed(part)
  local of_type, version, pool = string.match(part, '^([^:]*):([^:]*):(.*)$')
  if pool and string.find(pool, '@', 1, true) then
    local before, host = string.match(pool, '^(.*)@([^@]*)$')
    return of_type, version, before, host
  end
  return of_type, version, pool, ''
end

-- Adds to a counter if it is `before`, and returns whether it was.
local function count_up(hash, field, before, by)
  local value = redis.pcall('HINCRBY', hash, field, by)
  if value == before + by then return true end
  if type(value) == 'number' then
    call('HINCRBY', hash, field, 0 - by) -- not -by: Redis takes no "-0"
  elseif counter(hash, field) == before then -- it is no whole number, which HINCRBY refuses
    call('HSET', hash, field, before + by)
    return true
  end
  return false
end

-- Takes a slot of a worker if its counters are these, and returns whether they were; nil if it is none of the `count` that
-- have one.
local function take(field, active, lifetime, count)
  if not count_up(active_hash, field, active, 1) then return false end
  if active == 0 and call('HLEN', active_hash) ~= count then
    call('HDEL', active_hash, field)
    return nil
  end
  if count_up(lifetime_hash, field, lifetime, lived) then return true end
  rare_functions().add(active_hash, field, -1)
  return false
end

-- What the index says of the worker that it has found is believed only if the hash and the counters say the same. Whatever is
-- amiss with the index is mended, and the choice made again.
local READ_AGAIN = 8 -- of the workers that are not believed, each time
local chosen, worker, active, lifetime, key, is_current, has_searched
repeat
  local amiss, field, place
  local usable, own, serving, size, due = {}, {}, 0, nil, nil
  local parts, count = call('HGETALL', at .. 'parts'), call('HLEN', active_hash)
  for i = 1, #parts, 2 do
    local name, value = parts[i], parts[i + 1]
    if name == 'size' then
      size = tonumber(value)
    elseif name == 'until' then
      due = tonumber(value)
    else
      local of_type, version, pool, host = parsed(name)
      if of_type == browser_type and (not wanted_pool or pool == wanted_pool) then
        local part_key = at .. 'part:' .. name
        local here = call('ZCARD', part_key)
        serving = serving + here
        if here == 0 then
          amiss = 'lost'
        elseif value ~= ARGV[2] then
          amiss = amiss or 'limit'
        end
        if is_wanted(version, pool, host) then
          usable[#usable + 1] = part_key
          if host == preferred_host then own[#own + 1] = part_key end
        end
      end
    end
  end
  if amiss ~= 'lost' and not is_current and ((size or 0) ~= count or (due and now >= due)) then
    amiss = 'old'
  elseif not amiss and only then
    field = type_prefix .. only
    local part, has_active, has_lifetime = call('HGET', at .. 'part_of', field), nil, nil
    worker, key = read_hash(prefix, field), at .. 'part:' .. (part or '')
    active, has_active = counter(active_hash, field)
    lifetime, has_lifetime = counter(lifetime_hash, field)
    if not excluded[only] and (has_active or has_lifetime) and lifetime < max_lifetime
      and is_wanted(worker.version, worker.pool, worker.host) and is_choosable(prefix, field, worker, stale_before)
      and place_by_load(active, lifetime, worker.slots, max_active) < FULL and take(field, active, lifetime, count) then
      chosen = field
    end
  elseif not amiss and serving > 0 then
    local border = serving > 1 and max_lifetime - math.max(1, math.floor(max_lifetime / serving))
    if #own > 0 and #own < #usable then field, place, key = first_of(own, border) end
    if not field then field, place, key = first_of(usable, border) end
    if field then
      worker, lifetime = read_hash(prefix, field), -math.floor(place / STEP + 0.5)
      active = place + lifetime * STEP
      local taken = at .. 'part:' .. part_of(browser_type, worker) == key
        and is_choosable(prefix, field, worker, stale_before)
        and place_by_load(active, lifetime, worker.slots, max_active) == place and take(field, active, lifetime, count)
      if taken then
        chosen = field
      else
        amiss, is_current = 'wrong', is_current and taken ~= nil
      end
    end
  end

  if not chosen and not amiss and not only and not has_searched then amiss = 'none' end
  if amiss then
    local change = rare_functions()
    local as_now = {now = now, stale_s = stale_s}
    local of_scope = {now = now, stale_s = stale_s, most = max_active} -- for parts whose limit is this one
    local function make_anew()
      for _, name in ipairs(call('HKEYS', at .. 'parts')) do call('DEL', at .. 'part:' .. name) end
      call('DEL', at .. 'parts', at .. 'part_of', at .. 'known', at .. 'spares')
      change.reconcile(prefix, active_hash, lifetime_hash, as_now)
    end
    local function read_again(fields)
      for _, each in ipairs(fields) do
        change.index(prefix, active_hash, lifetime_hash, each, {now = now, stale_s = stale_s, foreign = true})
      end
    end
    if amiss == 'lost' then
      make_anew()
    elseif amiss == 'limit' then
      for i = 1, #parts, 2 do
        local of_type, _, pool = parsed(parts[i])
        if of_type == browser_type and (not wanted_pool or pool == wanted_pool) and parts[i + 1] ~= ARGV[2] then
          call('HSET', at .. 'parts', parts[i], ARGV[2])
          if (tonumber(parts[i + 1]) or 0) < max_active then -- who was full may have a free slot
            for _, each in ipairs(call('ZRANGEBYSCORE', at .. 'part:' .. parts[i], FULL, FULL)) do
              change.index(prefix, active_hash, lifetime_hash, each, of_scope)
            end
          end
        end
      end
    elseif amiss == 'wrong' then
      local is_lifetime, is_there = counter(lifetime_hash, field)
      if is_there and is_lifetime ~= lifetime then
        make_anew() -- no script of this grid has written that lifetime, and other workers may have got another one, too
      else
        change.leave_part(at, string.sub(key, #at + #'part:' + 1), field)
        change.index(prefix, active_hash, lifetime_hash, field, of_scope)
      end
    else
      is_current, has_searched = true, amiss == 'none'
      if (size or 0) ~= call('ZCARD', at .. 'known') then make_anew() end
      read_again(call('ZRANGEBYSCORE', at .. 'known', 0, ARGV[4]))
      read_again(call('ZRANGEBYSCORE', at .. 'known', '-inf', '(0', 'LIMIT', 0, has_searched and -1 or READ_AGAIN))
      if has_searched then read_again(call('SMEMBERS', at .. 'foreign')) end
      local known = call('ZCARD', at .. 'known')
      if known ~= call('HLEN', active_hash) or known ~= call('HLEN', lifetime_hash) then
        change.reconcile(prefix, active_hash, lifetime_hash, as_now)
      end
      local first = call('ZRANGEBYSCORE', at .. 'known', '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if first[2] then call('HSET', at .. 'parts', 'until', math.max(0, first[2])) end
    end
  end
until not amiss
if not chosen then
  if id then call('SET', prefix .. 'slots:wanted:' .. (wanted_pool or browser_type), 1) end
  return false
end
local endpoint, pool = worker.endpoint, worker.pool

local lease_until = string.format('%.3f', now + tonumber(given(8, 10)))
active, lifetime = active + 1, lifetime + lived
call('ZADD', key, 'XX', as_text(place_by_load(active, lifetime, worker.slots, max_active)), chosen)
if not id then
  local add = rare_functions().add
  add(prefix .. 'worker:' .. chosen, 'outside', 1)
  add(prefix .. 'worker:' .. chosen, 'outsideLifetime', lived)
end
if lifetime >= max_lifetime then
  local command = prefix .. 'worker:cmd:' .. chosen
  if call('SET', command, 'shutdown', 'NX', 'PX', as_text(given(15, 60) * 1000)) then
    call('HSET', prefix .. 'worker:' .. chosen, 'usedUp', lease_until) -- else there is an operator's command, which stays
  end
  call('PUBLISH', command, 'shutdown')
  local spare
  local spares = call('HGETALL', at .. 'spares')
  for i = 1, #spares, 2 do
    local field = spares[i]
    if spares[i + 1] == pool and string.find(field, type_prefix, 1, true) == 1 and (not spare or field < spare) then
      local other = read_hash(prefix, field)
      local is_of_both = other.pool == pool and other.host == worker.host
      if is_of_both and other.status == 'spare' and beats(other, stale_before) then spare = field end
    end
  end
  if spare then
    call('HSET', prefix .. 'worker:' .. spare, 'status', 'available')
    rare_functions().index(prefix, active_hash, lifetime_hash, spare, {now = now, stale_s = stale_s})
    call('HSET', prefix .. 'worker:' .. chosen, 'replacement', string.sub(spare, #type_prefix + 1))
    rare_functions().wake(prefix, spare)
  end
end

if id then
  if worker.host ~= '' then fields[#fields + 1], fields[#fields + 2] = 'host', worker.host end
  call('HSET', record,
    'kind', kind, 'browserType', browser_type, 'workerId', string.sub(chosen, #type_prefix + 1), 'status', 'pending',
    'createdAt', ARGV[4], 'client', given(9, ''), 'pool', pool, unpack(fields))
  call('PEXPIRE', record, as_text(given(13, 900) * 1000))
  local all = all_of(prefix, kind)
  call('ZADD', all .. 'live:' .. chosen, lease_until, id)
  call('ZADD', all .. 'index', ARGV[4], id)
  shorten_index(prefix, kind, given(14, 10000))
  if #caps > 0 then rare_functions().join_caps(prefix, name, table.concat(caps, ',')) end
end
return endpoint
