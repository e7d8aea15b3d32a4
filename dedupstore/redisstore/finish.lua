-- The second part of finish: any record.

local rec, problem = read(raw)
if problem then
  return problem
end
if not held(rec, string.sub(ARGV[1], 4, 27)) or rec.state == 'T' then
  return lost()
end
if not string.find(rec.state, '[RS]') then -- an owner that only got the outcome to publish has not stored it
  return settled(rec, rec.owner) and 1 or lost()
end
rec.state, rec.kind, rec.l, rec.L = string.sub(ARGV[1], 2, 2), string.sub(ARGV[1], 3, 3), nil, nil
rec.h, rec.k, rec.M, rec.X, rec.B, rec.K, rec.C = nil, nil, nil, nil, nil, nil, nil
sections(rec, ARGV[1], 28)
local ms = tonumber(ARGV[2])
if ARGV[3] then
  rec.l, ms = digits(now_us() + ARGV[3] * 1000), ms + ARGV[3]
end
local _, refused = write(rec, ms)
return refused or 1
