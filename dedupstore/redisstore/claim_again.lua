-- The second part of claim, for a key whose only run so far has ended with its lease, as all that a process had in hand
-- when it was killed. The third part says the same of them, and decides the rest.

local raw = redis.pcall('GET', KEYS[1])
local head = type(raw) == 'string' and string.sub(raw, 1, 3)
if head == '1R-' or head == '1S-' and string.sub(ARGV[1], 12, 12) ~= '1' then
  local sub = string.sub
  local at = sub(raw, 28, 28) == 'f' and 49 or 28
  local same = sub(raw, 28, at - 1) == sub(ARGV[1], 38, at + 9) -- the fingerprint, if the record has one
  at = sub(raw, at, at) == 't' and at + 26 or at
  local whole = at <= #raw - 16 and sub(raw, 4, 19) ~= '0000000000000000'
  local fence, holder, lease = sub(raw, 4, 19), sub(raw, at, -18), sub(raw, -17)
  local alone = holder == '' or tonumber(string.match(holder, '^w(%x%x)') or '', 16) == #holder - 3
  local first, ends = string.match(fence, '^%d+$'), string.match(lease, '^[lL](%d+)$')
  if whole and same and alone and first and ends and #lease == 17 and first < now
    and (sub(lease, 1, 1) == 'L' and fence or 0) + ends <= tonumber(now)
    and sub(raw, 20, 27) ~= sub(ARGV[1], 30, 37)
    and tonumber(sub(ARGV[1], 1, 10)) > 1 and sub(ARGV[1], 11, 11) ~= '1' then
    local past = 'b' .. fence .. holder
    past = string.format('H%08x%08x', 8 + #past, #past) .. past
    local after = '1R-' .. now .. sub(ARGV[1], 30, 37) .. 'a0000000002c000000011b' .. fence
      .. sub(ARGV[1], 38, -18) .. past .. string.format('l%016.0f', now + sub(ARGV[1], -16))
    local set = redis.pcall('PSETEX', KEYS[1], ARGV[2], after)
    if set.ok then
      return 'r' .. now .. string.format('%08x', #raw) .. raw .. after
    end
  end
end
