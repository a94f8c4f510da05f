"""What the server does, in Lua: one script a batch, so that nobody else comes in between.

A claim is the text ``c<token>:<owner>``, which lives as long as its lease; a mark is ``d<timestamp>:<token>``, which lives for the window. So the
server's clock ends both. What reads otherwise is foreign, and stays.

The next token is the server's time in microseconds, or the last token and one, whichever is more: it rises also where the server forgot everything, or its
clock was set back. Numbers are doubles in Lua: whole up to 2**53, which the time in microseconds reaches in the year 2255.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = """
local function text(number) return string.format('%.0f', number) end
local function read_mark(value)
  local seen, token = string.match(value, '^d(-?%d+):(%d+)$')
  return tonumber(seen), token
end
local function read_claim(value) return string.match(value, '^c(%d+):(.*)$') end
"""

CLAIM: Final = (
    _COMMON
    + """
-- KEYS: last token, IDs. ARGV: owner, lease in ms, window in ms, timestamps as JSON. Returns the first token, a letter an ID, and a number for each I and D.
local owner, lease, window, timestamps = ARGV[1], ARGV[2], tonumber(ARGV[3]), cjson.decode(ARGV[4])
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if not last then return redis.error_reply('ERR the last token is not a number: ' .. KEYS[1]) end
local token = math.max(last, time[1] * 1000000 + time[2])
local first = token + 1
local known = redis.call('MGET', unpack(KEYS, 2))
local kinds, numbers = {}, {}
for i = 1, #timestamps do
  local key, value, kind = KEYS[i + 1], known[i], 'F'
  if not value then
    if redis.call('SET', key, 'c' .. text(token + 1) .. ':' .. owner, 'NX', 'PX', lease) then token = token + 1 else kind = 'X' end
  else
    local seen, writer = read_mark(value)
    local _, holder = read_claim(value)
    if seen and math.abs(timestamps[i] - seen) <= window then
      kind = 'D'
      redis.call('SET', key, 'd' .. text(math.max(seen, timestamps[i])) .. ':' .. writer, 'PX', window)
      numbers[#numbers + 1] = text(seen)
    elseif seen or holder == owner then
      token = token + 1
      redis.call('SET', key, 'c' .. text(token) .. ':' .. owner, 'PX', lease)
    elseif holder then
      kind = 'I'
      local left = redis.call('PTTL', key)
      if left < 0 then
        redis.call('PEXPIRE', key, lease)
        left = tonumber(lease)
      end
      numbers[#numbers + 1] = text(math.max(left, 1))
    else
      kind = 'X'
    end
  end
  kinds[i] = kind
end
if token >= first then redis.call('SET', KEYS[1], text(token)) end
return {text(first), table.concat(kinds), numbers}
"""
)

RENEW: Final = (
    _COMMON
    + """
-- KEYS: IDs. ARGV: owner, lease in ms, tokens as JSON. Returns 1 or 0 for each ID.
local owner, lease, tokens = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
local known = redis.call('MGET', unpack(KEYS))
local kept = {}
for i = 1, #tokens do
  local ours
  if known[i] then
    ours = read_claim(known[i]) == tokens[i]
    if ours then redis.call('PEXPIRE', KEYS[i], lease) end
  else
    ours = redis.call('SET', KEYS[i], 'c' .. tokens[i] .. ':' .. owner, 'NX', 'PX', lease)
  end
  kept[i] = ours and '1' or '0'
end
return table.concat(kept)
"""
)

COMPLETE: Final = (
    _COMMON
    + """
-- KEYS: IDs. ARGV: window in ms, timestamps as JSON, tokens as JSON. Returns 1 or 0 for each ID.
local window, timestamps, tokens = ARGV[1], cjson.decode(ARGV[2]), cjson.decode(ARGV[3])
local known = redis.call('MGET', unpack(KEYS))
local taken = {}
for i = 1, #tokens do
  local ours
  local mark = 'd' .. text(timestamps[i]) .. ':' .. tokens[i]
  if not known[i] then
    ours = redis.call('SET', KEYS[i], mark, 'NX', 'PX', window)
  else
    local seen, writer = read_mark(known[i])
    if seen then
      ours = writer == tokens[i]
      redis.call('SET', KEYS[i], 'd' .. text(math.max(seen, timestamps[i])) .. ':' .. writer, 'PX', window)
    else
      ours = read_claim(known[i]) == tokens[i]
      if ours then redis.call('SET', KEYS[i], mark, 'PX', window) end
    end
  end
  taken[i] = ours and '1' or '0'
end
return table.concat(taken)
"""
)

RELEASE: Final = (
    _COMMON
    + """
-- KEYS: IDs. ARGV: tokens as JSON. Returns 1 or 0 for each ID.
local tokens = cjson.decode(ARGV[1])
local known = redis.call('MGET', unpack(KEYS))
local given = {}
for i = 1, #tokens do
  local ours = known[i] and read_claim(known[i]) == tokens[i]
  if ours then redis.call('DEL', KEYS[i]) end
  given[i] = ours and '1' or '0'
end
return table.concat(given)
"""
)

LOAD: Final = (
    _COMMON
    + """
-- KEYS: IDs. ARGV: window in ms, timestamps as JSON. Returns 1 for each ID that is remembered now.
local window, timestamps = tonumber(ARGV[1]), cjson.decode(ARGV[2])
local known = redis.call('MGET', unpack(KEYS))
local loaded = {}
for i = 1, #timestamps do
  local ours = false
  if not known[i] then
    ours = redis.call('SET', KEYS[i], 'd' .. text(timestamps[i]) .. ':0', 'NX', 'PX', text(window))
  else
    local seen, writer = read_mark(known[i])
    if seen then
      ours = true
      local left = math.max(window, redis.call('PTTL', KEYS[i]))
      redis.call('SET', KEYS[i], 'd' .. text(math.max(seen, timestamps[i])) .. ':' .. writer, 'PX', text(left))
    end
  end
  loaded[i] = ours and '1' or '0'
end
return table.concat(loaded)
"""
)
