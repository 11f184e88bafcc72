-- Functions of several scripts. Never run by itself: the registry puts what is called of it before each script that says
-- "Needs lib.lua", or where that has a line [lib.lua].
-- The parts of reaper.lua and selector.lua that are marked as shared come before it: these two stand alone, so they have all
-- that they use.

-- Completes the record of a session or lease by what its worker was told of its client: JSON of fields and values, or "".
-- Counts it towards its caps.
local function describe(prefix, kind, id, client_fields)
  local name = name_of(kind, id)
  local key = prefix .. name
  for field, value in pairs(client_fields == '' and {} or cjson.decode(client_fields)) do
    redis.call('HSETNX', key, field, value)
  end
  join_caps(prefix, name, redis.call('HGET', key, 'caps'))
end

-- Puts a session or lease that has begun at `since` into the index that lists read. The reaper keeps that short.
local function list(prefix, kind, id, since)
  local newest = all_of(prefix, kind) .. 'index'
  redis.call('ZADD', newest, since, id)
  redis.call('ZREM', newest .. ':live', id)
end

-- Writes the record of a session or lease that runs, or ran, and that Redis does not know: it was away, or came back empty.
-- `lease` is the one that a session came with, or nil.
local function write_anew(prefix, field, kind, id, lease, since, client, client_fields)
  local key, browser_type, worker_id = prefix .. name_of(kind, id), string.match(field, '^([^:]*):(.*)$')
  redis.call('HSET', key, 'kind', kind, 'browserType', browser_type, 'workerId', worker_id, 'pool', pool_of(prefix, field),
    'status', 'running', 'createdAt', since, 'startedAt', since, 'client', client)
  note_lease(prefix, id, lease)
  describe(prefix, kind, id, client_fields)
  list(prefix, kind, id, since)
end

-- Brings the index up to date with a worker of which a script has changed something.
local function note_change(prefix, field)
  index(prefix, prefix .. 'cluster:active_connections', prefix .. 'cluster:lifetime_connections', field, {})
end

-- Counts that a counter was wrong.
local function note_repair(prefix)
  local key = prefix .. 'cluster:counter_repairs'
  redis.call('SET', key, math.max(0, whole(redis.call('GET', key)) or 0) + 1)
end

-- What a lease takes of its worker's lifetime is known once its client comes: has the counter and the record follow when that
-- is not what the record says.
local function note_lifetime(prefix, field, key, client_fields)
  local told, was = client_fields ~= '' and cjson.decode(client_fields).lifetime, redis.call('HGET', key, 'lifetime')
  if not told or told == was then return end
  local more, counter = lifetime_taken(told) - lifetime_taken(was), prefix .. 'cluster:lifetime_connections'
  if more > 0 then add(counter, field, more) elseif more < 0 then take_one(counter, field) end
  redis.call('HSET', key, 'lifetime', told)
end

-- Takes a session or lease that its worker reports into the live set, or a session that came with a `lease` into
-- sessions:leased: the worker is the authority for its slots. Writes a missing record anew as running (Redis was away, or
-- came back empty), and takes back an end that was only presumed. `lease`, `since`, `client` and `client_fields` are what
-- the worker knows of it; each may be "". Returns 1 if it holds a slot now and held none before, else 0; the caller changes the counter.
local function adopt(prefix, field, kind, id, lease, now, record_ttl_s, since, client, client_fields)
  if since == '' then since = now end
  if lease == '' then lease = nil end
  local key, all = prefix .. name_of(kind, id), all_of(prefix, kind)
  local live = all .. 'live:' .. field
  local was = redis.call('HMGET', key, 'status', 'browserType', 'workerId', 'presumed')
  local mine = was[1] and was[2] .. ':' .. was[3] == field
  if mine and kind == 'lease' then note_lifetime(prefix, field, key, client_fields) end
  if mine and was[1] == 'pending' then
    local lease_until = tonumber(redis.call('ZSCORE', live, id)) or 0
    if lease_until > tonumber(now) then return 0 end -- its start is on the way
    redis.call('HSET', key, 'status', 'running', 'startedAt', since)
  elseif mine and was[4] and was[1] ~= 'running' then
    add(all .. 'taken_back', was[1], 1)
    redis.call('HDEL', key, 'reason', 'reasonKind', 'endedAt', 'presumed')
    redis.call('HSETNX', key, 'startedAt', since)
    redis.call('HSET', key, 'status', 'running')
    list(prefix, kind, id, redis.call('HGET', key, 'createdAt') or since) -- newer ones may have pushed it out meanwhile
    describe(prefix, kind, id, client_fields)
  elseif not was[1] then
    write_anew(prefix, field, kind, id, lease, since, client, client_fields)
  end
  if redis.call('HGET', key, 'status') == 'running' and (mine or not was[1]) then
    redis.call('PEXPIRE', key, string.format('%.0f', record_ttl_s * 1000))
  end
  local leased = prefix .. 'sessions:leased:' .. field
  if lease then
    redis.call('HSET', leased, id, lease)
    return 0
  end
  local is_new = redis.call('ZADD', live, '+inf', id)
  if is_new == 1 then redis.call('HDEL', leased, id) end -- its worker's successor knows no such lease
  return is_new
end

-- Takes in all that a worker reports as live: n, then for each its kind, id, lease, since, client and client_fields, as for
-- `adopt`, from ARGV[first] on. Returns their names (see name_of) as keys of a table, and the index of the last of these arguments.
local function adopt_all(prefix, field, first, now, record_ttl_s)
  local own, last = {}, first + 6 * tonumber(ARGV[first])
  for i = first + 1, last, 6 do
    own[name_of(ARGV[i], ARGV[i + 1])] = true
    adopt(prefix, field, ARGV[i], ARGV[i + 1], ARGV[i + 2], now, record_ttl_s, ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
  end
  return own, last
end

-- How many slots of a worker are taken.
local function slots_taken(prefix, field)
  local taken = 0
  for _, kind in ipairs(KINDS) do taken = taken + redis.call('ZCARD', all_of(prefix, kind) .. 'live:' .. field) end
  return taken
end

