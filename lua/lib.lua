-- Functions of several scripts. Never run by itself: the registry puts it before each script that says "Needs lib.lua".
-- The parts of reaper.lua and selector.lua that are marked as shared come before it: these two stand alone, so they have all
-- that they use.

-- Completes a session's record by what its worker was told of its client: JSON of fields and values, or "". Counts it towards
-- its caps.
local function describe(prefix, id, told)
  local key = record_of(prefix, id)
  for name, value in pairs(told == '' and {} or cjson.decode(told)) do redis.call('HSETNX', key, name, value) end
  join_caps(prefix, id, redis.call('HGET', key, 'caps'))
end

-- Writes the record of a session that runs, or ran, and that Redis does not know: it was away, or came back empty.
local function write_anew(prefix, field, id, since, client, told)
  local key, totals = record_of(prefix, id)
  local browser_type, worker_id = string.match(field, '^([^:]*):(.*)$')
  redis.call('HSET', key, 'browserType', browser_type, 'workerId', worker_id, 'pool', pool_of(prefix, field), 'status',
    'running', 'createdAt', since, 'startedAt', since, 'client', client)
  note_lease(prefix, id)
  describe(prefix, id, told)
  redis.call('ZADD', totals .. 'index', since, id)
end

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
    redis.call('HDEL', key, 'reason', 'reasonKind', 'endedAt', 'presumed')
    redis.call('HSETNX', key, 'startedAt', since)
    redis.call('HSET', key, 'status', 'running')
    describe(prefix, id, told)
  elseif not was[1] then
    write_anew(prefix, field, id, since, client, told)
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

