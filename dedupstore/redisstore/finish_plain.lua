-- finish: store the outcome of a run. This is its first part: nothing is to be published, and no
-- heartbeat has marked it as started.
--
-- KEYS[1]  record
-- ARGV     1 the record as it will be, without what is kept of the run: its head, and the sections of the outcome
--          2 retention ms
--          3 lease ms of the publish step; absent if nothing is to be published
-- Replies  1
--          0: another owner came, or the record is gone, released, or finished by another
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: the owner that finds its run finished already is told so, and nothing is written.

local raw = redis.pcall('GET', KEYS[1])
if not ARGV[3] and type(raw) == 'string' and string.sub(raw, 1, 3) == '1R-'
  and string.sub(raw, 4, 27) == string.sub(ARGV[1], 4, 27) and string.find('lL', string.sub(raw, -17, -17), 1, true) then
  -- The lease is the last section of a run, and all that is not kept.
  local set = redis.pcall('PSETEX', KEYS[1], ARGV[2], ARGV[1] .. string.sub(raw, 28, -18))
  if set.ok then
    return 1
  end
end
