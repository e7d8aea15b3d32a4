-- rights: tell which command of the other scripts this user must not call in them, or the server does not have.
--
-- KEYS[1]  a name that no record has
-- Replies  '' or the command and the refusal
--
-- What the server refuses to everybody for a time, as at maxmemory, has a code of its own, such as OOM, and is none.
-- Idempotent: what it writes lives for a millisecond.

for _, call in ipairs({{'GET'}, {'PSETEX', '1', ''}, {'PEXPIRE', '1'}, {'PTTL'}, {'TYPE'}}) do
  local reply = redis.pcall(call[1], KEYS[1], unpack(call, 2))
  local err = type(reply) == 'table' and reply.err and refusal(reply).err
  local code = err and (string.match(err, '^(%u+) ') or 'ERR')
  if code == 'ERR' or code == 'NOPERM' then
    return call[1] .. ' ' .. err
  end
end
return ''
