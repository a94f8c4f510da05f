"""The Lua scripts that the server runs: one per batch, so that each batch is atomic.

A claim is the text ``c<token>:<lease in ms>:<owner>``, and expires with its lease; a mark is
``d<timestamp>:<token>``, and expires with the window. Both expire by the server's clock. Any other value is
foreign, and is left unchanged.

If the server's clock is set back, or an old file is restored, a claim would live longer by the same amount.
So a caller that finds a claim with more time left than its own lease shortens it to that lease, from now.

The next token is the server's time in microseconds, or the last token plus one, whichever is larger: tokens
ascend also if the server lost its data, or its clock was set back. Lua's numbers are doubles, exact up to
2**53; the time in microseconds reaches that in the year 2255.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = """
local function text(number) return string.format('%.0f', number) end
local function read_mark(value)
  local seen, token = string.match(value, '^d(-?%d+):(%d+)$')
  return tonumber(seen), token
end
local function write_claim(token, lease, owner) return 'c' .. token .. ':' .. lease .. ':' .. owner end
local function read_claim(value)
  local token, lease, owner = string.match(value, '^c(%d+):(%d+):(.*)$')
  if token and #lease <= 15 then return token, tonumber(lease), owner end
end
"""

CLAIM: Final = (
    _COMMON
    + """
-- KEYS: last token, IDs. ARGV: owner, lease in ms, window in ms, timestamps as JSON.
-- Returns the first token, a letter per ID, and a number for each I and D.
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
    if redis.call('SET', key, write_claim(text(token + 1), lease, owner), 'NX', 'PX', lease) then
      token = token + 1
    else
      kind = 'X'
    end
  else
    local seen, writer = read_mark(value)
    local _, longest, holder = read_claim(value)
    if seen and math.abs(timestamps[i] - seen) <= window then
      kind = 'D'
      redis.call('SET', key, 'd' .. text(math.max(seen, timestamps[i])) .. ':' .. writer, 'PX', window)
      numbers[#numbers + 1] = text(seen)
    elseif seen or holder == owner then
      token = token + 1
      redis.call('SET', key, write_claim(text(token), lease, owner), 'PX', lease)
    elseif holder then
      kind = 'I'
      local left = redis.call('PTTL', key)
      if left < 0 or left > longest then
        redis.call('PEXPIRE', key, text(longest))
        left = longest
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


def _for_each_id(arguments: str, body: str) -> str:
    """Return a script that returns a 1 or a 0 for each key.

    ``body`` is run for each ``key`` and its ``value``, and sets ``ours``, which is returned.
    """
    return f"""{_COMMON}
{arguments}
local known = redis.call('MGET', unpack(KEYS))
local flags = {{}}
for i = 1, #KEYS do
  local key, value, ours = KEYS[i], known[i], false
{body}
  flags[i] = ours and '1' or '0'
end
return table.concat(flags)
"""


RENEW: Final = _for_each_id(
    """
-- KEYS: IDs. ARGV: owner, lease in ms, tokens as JSON. Returns whether each is the caller's.
local owner, lease, tokens = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
""",
    """
  if not value then
    ours = redis.call('SET', key, write_claim(tokens[i], lease, owner), 'NX', 'PX', lease)
  elseif read_claim(value) == tokens[i] then
    ours = redis.call('SET', key, write_claim(tokens[i], lease, owner), 'PX', lease)
  end
""",
)

COMPLETE: Final = _for_each_id(
    """
-- KEYS: IDs. ARGV: owner, window in ms, timestamps as JSON, tokens as JSON.
-- Returns whether each was the caller's to complete.
local owner, window, timestamps, tokens = ARGV[1], ARGV[2], cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
""",
    """
  local mark = 'd' .. text(timestamps[i]) .. ':' .. tokens[i]
  if not value then
    ours = redis.call('SET', key, mark, 'NX', 'PX', window)
  else
    local seen, writer = read_mark(value)
    local token, _, holder = read_claim(value)
    if seen then
      ours = writer == tokens[i]
      redis.call('SET', key, 'd' .. text(math.max(seen, timestamps[i])) .. ':' .. writer, 'PX', window)
    elseif token and (token == tokens[i] or tokens[i] == '0' and holder == owner) then
      ours = redis.call('SET', key, mark, 'PX', window)
    end
  end
""",
)

RELEASE: Final = _for_each_id(
    """
-- KEYS: IDs. ARGV: tokens as JSON. Returns whether each was the caller's to release.
local tokens = cjson.decode(ARGV[1])
""",
    """
  ours = value and read_claim(value) == tokens[i]
  if ours then redis.call('DEL', key) end
""",
)

LOAD: Final = _for_each_id(
    """
-- KEYS: IDs. ARGV: window in ms, timestamps as JSON. Returns whether each is remembered now.
local window, timestamps = tonumber(ARGV[1]), cjson.decode(ARGV[2])
""",
    """
  if not value then
    ours = redis.call('SET', key, 'd' .. text(timestamps[i]) .. ':0', 'NX', 'PX', text(window))
  else
    local seen, writer = read_mark(value)
    if seen then
      local left = math.max(window, redis.call('PTTL', key))
      ours = redis.call('SET', key, 'd' .. text(math.max(seen, timestamps[i])) .. ':' .. writer, 'PX', text(left))
    end
  end
""",
)
