-- Takes back the lease of a failed handoff: slot, lifetime and shutdown command become as before its selection. Needs lib.lua.
--
-- KEYS  1 cluster:active_connections      2 cluster:lifetime_connections      (full names, with the prefix if there is one)
-- ARGV  1 session id    2 key prefix    3 kind ("session", the default) or "lease"; 1 is a lease's id then
-- Returns 1 if a lease was taken back, else 0 (not known, started, or ended before).
-- Keys  session:{id} and its entry in sessions:index or sessions:index:live (removed), sessions:live:{type}:{id}, both counters (-1 once, never below
--       0; the second only if the session took of the lifetime); the shutdown command that the selection left in
--       worker:cmd:{type}:{id}, if this session used the worker up;
--       cluster:index:…; sessions:taken_back if an end of the session was only presumed; sessions:of:{…}; publishes slots:{pool} if a client
--       waits. For a lease the same under lease:{id} and leases:….
--
-- Idempotent by the session's state. A running session stays: its worker has it, even if the proxy heard otherwise.

local _, freed = roll_back(ARGV[2], KEYS[1], KEYS[2], given(3, 'session'), ARGV[1])
return freed and 1 or 0
