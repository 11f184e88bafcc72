-- Tells who waits in one proxy's line for a pool, and answers whose turn it is there. Stands alone.
--
-- KEYS  1 cluster:line:{pool} (full name, with the prefix if there is one)
-- ARGV  1 key prefix    2 pool    3 id of the line: that proxy's    4 now, in ms of a clock that only this proxy has
--       5 for how many ms a line is waited for that says nothing    6 the party that has just got a slot ("")
--       7 "1" if one of the waiting clients has a cap, else ""    8 now, Unix ms ("" = Redis's own clock)
--       9, 10, 11 … for each party that waits: its name, since when its first client waits, and since when the first of those
--       that may ask for a slot, both by the clock of 4; "" if all have asked in vain since a slot last came free
-- Returns three things: the party that is to ask for a slot now, "" for none; 1 if one of these may ask after another
--       proxy's, else 0; 1 if a slot came free since this line was last here, so that all of them may ask again, else 0.
-- Keys  cluster:line:{pool}: hash, id of a line → its parties, as JSON; kept 10 minutes
--       cluster:line:served:{pool}: zset, party → when it last got a slot
--       cluster:line:passed:{pool}: hash, id of a line → the party that is to ask next of those in it, "" for none; deleted when
--       a slot comes free. For lines with clients that have a cap the same in cluster:line:passed, {pool}/{id} →, since
--       room under a cap may come free in any pool.
--       publishes slots:{pool}@{id} to a line that was told to wait, when it is its turn.
--
-- The rule is that of one line (proxy/policy/fair_line.py): that party is next which waits longest since it came or last got
-- a slot, and in a party the client that waits longest. One whose clients cannot have the slot is passed over. A line that is
-- waited for too long is taken out: its proxy is gone, or comes again.

local KEPT_MS, MOST_SERVED = 600000, 1000

local call, key, prefix, pool, id = redis.call, KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local clock, patience, served = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local served_key, passed_key = prefix .. 'cluster:line:served:' .. pool, prefix .. 'cluster:line:passed'
local now = tonumber(ARGV[8])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function as_text(number)
  return string.format('%.0f', number)
end

-- A line as it stands in Redis: `heads` are its parties, {name, 10, 11 or else 10} each; `offset` added to that is Unix time; `held`
-- says that it was told to wait, `waited` since when others wait for it. Nil for what is none.
local function read(text)
  local is_json, line = pcall(cjson.decode, text)
  if is_json and type(line) == 'table' and type(line.heads) == 'table' and type(line.offset) == 'number' then return line end
end

local function write(of, line)
  call('HSET', key, of, cjson.encode(line))
end

-- Where it stands which party of a line is to ask next: key and field.
local function passed_of(of, line)
  if line.capped then return passed_key, pool .. '/' .. of end
  return passed_key .. ':' .. pool, of
end

local lines, entries = {}, call('HGETALL', key)
for i = 1, #entries, 2 do
  lines[entries[i]] = read(entries[i + 1])
  if not lines[entries[i]] then call('HDEL', key, entries[i]) end
end

-- What told it fastest knows best how far that proxy's clock is behind this one.
local offset = math.min(now - clock, lines[id] and lines[id].offset or math.huge)
local own = {offset = offset, capped = ARGV[7] == '1', heads = {}}
local may_ask = {}
local is_new_round = not call('HGET', passed_of(id, own))
for i = 9, #ARGV, 3 do
  local since, asks_since = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  if is_new_round then asks_since = since end
  own.heads[#own.heads + 1] = {ARGV[i], since, asks_since or since}
  may_ask[ARGV[i]] = asks_since ~= nil
end
lines[id] = #own.heads > 0 and own or nil

if served ~= '' then
  local last = call('ZREVRANGE', served_key, 0, 0, 'WITHSCORES')[2]
  call('ZADD', served_key, as_text(math.max(now, (tonumber(last) or 0) + 1)), served) -- Redis's clock may have been put back
  call('ZREMRANGEBYRANK', served_key, 0, -1 - MOST_SERVED)
  call('PEXPIRE', served_key, KEPT_MS)
end

-- Since when each party waits, over all lines, for its turn.
local function turns()
  local since = {}
  for _, line in pairs(lines) do
    for _, head in ipairs(line.heads) do
      local arrival = head[2] + line.offset
      if not since[head[1]] or arrival < since[head[1]] then since[head[1]] = arrival end
    end
  end
  for party, arrival in pairs(since) do
    since[party] = math.max(arrival, tonumber(call('ZSCORE', served_key, party) or 0))
  end
  return since
end

-- Whether one place in the order of turns is before another one, or there is no other one.
local function is_before(place, other)
  for i = 1, other and #place or 0 do
    if place[i] ~= other[i] then return place[i] < other[i] end
  end
  return not other
end

-- The place in the order of turns of that party of a line which is to ask next: turn, party, arrival, id of the line. Nil if
-- none of it may ask.
local function place_of(of, line, since)
  local passed
  if of ~= id then passed = call('HGET', passed_of(of, line)) end
  local best
  for _, head in ipairs(line.heads) do
    local party, may = head[1], nil
    if of == id then may = may_ask[party] else may = not passed or passed == party end
    local place = {since[party], party, head[(of == id or passed) and 3 or 2] + line.offset, of}
    if may and is_before(place, best) then best = place end
  end
  return best
end

-- Of all lines the place that is first, and that of this line.
local function first_and_own()
  local since, first, mine = turns(), nil, nil
  for of, line in pairs(lines) do
    local place = place_of(of, line, since)
    if of == id then mine = place end
    if place and is_before(place, first) then first = place end
  end
  return first, mine
end

local first, mine = first_and_own()
while first and mine and first[4] ~= id do
  local waited = lines[first[4]].waited
  if not waited or now - waited < patience then break end
  call('HDEL', key, first[4])
  lines[first[4]] = nil
  first, mine = first_and_own()
end

if lines[id] then
  local hash, field = passed_of(id, own)
  call('HSET', hash, field, mine and mine[2] or '')
  call('PEXPIRE', hash, KEPT_MS)
end

local is_next = first and first[4] == id
if first and not is_next then
  local other = lines[first[4]]
  if other.held then call('PUBLISH', prefix .. 'slots:' .. pool .. '@' .. first[4], 'turn') end
  other.held = nil
  if mine then other.waited = other.waited or now end
  write(first[4], other)
end
if lines[id] then
  own.held = mine and not is_next or nil
  write(id, own)
  call('PEXPIRE', key, KEPT_MS)
else
  call('HDEL', key, id)
end
return {is_next and mine[2] or '', mine and not is_next and 1 or 0, is_new_round and 1 or 0}
