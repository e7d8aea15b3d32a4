-- The third part of claim, for any key that is known.

now = tonumber(now)
local rec, problem = read(raw)
if problem then
  return problem
end
if not rec then -- SET was refused, although there is nothing
  local refused = refusal(set or {err = 'ERR SET NX was refused for a key that does not exist'})
  return string.find(refused.err, '^OOM ') and 'F' or refused
end

local most, suspect = tonumber(string.sub(ARGV[1], 1, 10)), tonumber(string.sub(ARGV[1], 11, 11))
local park, rerun = string.sub(ARGV[1], 12, 12) == '1', tonumber(string.sub(ARGV[1], 13, 28))
local touch, owner, request, before = string.sub(ARGV[1], 29, 29) == '1', string.sub(ARGV[1], 30, 37), {}, rec.raw
sections(request, ARGV[1], 38)

local function answer(letter, after)
  return letter .. digits(now) .. string.format('%08x', #before) .. before .. (after or '')
end

-- remember moves the attempt of the last owner into the history, with the reason that the record had. It leaves out what
-- cannot be read there: that decides nothing.
local function remember(reason)
  local past, history = {}, rec.H or ''
  while true do
    local size = tonumber(string.match(history, '^%x%x%x%x%x%x%x%x') or '', 16)
    if not size or 8 + size > #history then
      break
    end
    past[#past + 1], history = string.sub(history, 1, 8 + size), string.sub(history, 9 + size)
  end
  local last = pack({b = rec.fence, k = rec.k, w = rec.w, M = reason and string.sub(reason, 1, 96)})
  past[#past + 1] = string.format('%08x', #last) .. last
  rec.H = table.concat(past, '', math.max(1, #past - 3))
end

local reason = rec.M

-- own makes the caller the owner, with a fence above all before, and writes the record.
local function own(letter)
  remember(reason)
  rec.b = digits(rec.first)
  if letter == 'p' then
    rec.e = rec.e or rec.fence
  end
  if string.find(before, '^1[PDT]') then
    rec.S = string.sub((rec.S or '') .. rec.owner, -8 * REMEMBERED)
  end
  rec.fence = digits(math.max(tonumber(rec.fence) + 1, now))
  rec.owner, rec.w, rec.k = owner, request.w, nil
  rec.l, rec.L, rec.d = digits(now + tonumber(request.L)), nil, nil
  if rec.e == '' then -- decided by this claim
    rec.e = nil
  end
  local after, refused = write(rec, tonumber(ARGV[2]))
  return refused or answer(letter, after)
end

local function run(attempts)
  rec.state, rec.kind, rec.a = 'R', '-', attempts ~= 1 and count(attempts) or nil
  rec.t, rec.T, rec.f = request.t, request.T, request.f or rec.f
  rec.e, rec.h, rec.M, rec.X, rec.o, rec.B, rec.K, rec.C = nil, nil, nil, nil, nil, nil, nil, nil
  return own('r')
end

-- finish ends what nobody owns. The claimer makes the dead letter: nothing is produced yet.
local function finish(kind, reason)
  rec.state, rec.kind, rec.M, rec.e = 'Q', kind, reason, ''
  return own('p')
end

local state, publishing = rec.state, string.find(rec.state, '[PQ]')
local running = string.find(state, '[RS]')
if request.f and rec.f and string.sub(request.f, 1, 4) == string.sub(rec.f, 1, 4) and request.f ~= rec.f then
  return answer('m')
end
if string.find(state, '[DE]') then
  if rerun > 0 and rerun == tonumber(rec.e or rec.fence) and rec.kind ~= 's' then
    again(rec)
    return run(1)
  end
  return answer('d')
end
if rec.owner == owner and (running or publishing) then -- it asks again
  return touch and rewrite() or answer(running and 'r' or 'p')
end
if settled(rec, owner) or now < rec.ends or now < rec.due then
  return answer('b')
end
if publishing then
  if rec.h and rec.h ~= string.sub(redis.sha1hex((rec.K or '') .. (rec.C or '')), 1, 8) or rec.K and not rec.h then
    return unreadable('has produced messages that cannot be read')
  end
  rec.state = 'Q'
  return own('p')
end
if state == 'S' and park then
  return finish('u', 'the lease of a started run expired')
end
if rec.attempts >= most then
  return finish('x', string.format('%.0f of %.0f attempts spent', rec.attempts, most))
end
local crashes = (tonumber(rec.c) or 0) + (running and 1 or 0)
if suspect > 0 and crashes >= suspect then
  return answer('s')
end
rec.c = crashes > 0 and string.format('%.0f', crashes) or nil
return run(rec.attempts + 1)
