-- Who stops a task says so before it sends the signal: whoever then notices the
-- end, in whatever process, knows that the task was stopped and did not fail.
ALTER TABLE tasks ADD COLUMN stop_requested_at INTEGER;
CREATE INDEX tasks_status ON tasks (status, created_at);
