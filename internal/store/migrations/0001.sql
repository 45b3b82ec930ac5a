-- Leases, tasks, requests, events. Times: integer milliseconds since 1970 UTC.

CREATE TABLE leases (
    instance_id           TEXT    NOT NULL PRIMARY KEY,
    kind                  TEXT    NOT NULL CHECK (kind <> ''),
    status                TEXT    NOT NULL CHECK (status IN
        ('creating', 'running', 'destroying', 'destroyed', 'expiring', 'expired', 'error')),
    generation            INTEGER NOT NULL CHECK (generation > 0),
    backend               TEXT    NOT NULL,
    backend_instance_name TEXT    NOT NULL UNIQUE,
    profile_name          TEXT    NOT NULL DEFAULT '',
    workspace_root        TEXT    NOT NULL DEFAULT '',
    workspace_id          TEXT    NOT NULL DEFAULT '',
    owner_session         TEXT    NOT NULL DEFAULT '',
    holder_session        TEXT    NOT NULL DEFAULT '',
    holder_pid            INTEGER NOT NULL DEFAULT 0,
    holder_boot           TEXT    NOT NULL DEFAULT '',
    holder_start          TEXT    NOT NULL DEFAULT '',
    created_at            INTEGER NOT NULL,
    expires_at            INTEGER NOT NULL,
    last_used_at          INTEGER NOT NULL,
    ended_at              INTEGER,
    end_reason            TEXT    NOT NULL DEFAULT '',
    error                 TEXT    CHECK (error IS NULL OR json_valid(error)),
    memory_mib            INTEGER NOT NULL DEFAULT 0 CHECK (memory_mib >= 0),
    disk_bytes            INTEGER NOT NULL DEFAULT 0 CHECK (disk_bytes >= 0),
    cpus                  INTEGER NOT NULL DEFAULT 0 CHECK (cpus >= 0),
    accelerator           TEXT    NOT NULL DEFAULT '',
    start_kind            TEXT    NOT NULL DEFAULT '',
    ssh_port              INTEGER NOT NULL DEFAULT 0,
    runtime_name          TEXT    NOT NULL DEFAULT '',
    runtime_ready         INTEGER NOT NULL DEFAULT 0,
    docker_command        TEXT    NOT NULL DEFAULT '',
    remote_path           TEXT    NOT NULL DEFAULT '',
    auto_bootstrap        INTEGER NOT NULL DEFAULT 0,
    request_id            TEXT    NOT NULL DEFAULT '',
    config                TEXT    CHECK (config IS NULL OR json_valid(config)),
    spec                  TEXT    CHECK (spec IS NULL OR json_valid(spec)),
    timings               TEXT    CHECK (timings IS NULL OR json_valid(timings)),
    CHECK ((status IN ('destroyed', 'expired')) = (ended_at IS NOT NULL))
) STRICT;
CREATE INDEX leases_status ON leases (status, expires_at);
CREATE INDEX leases_created ON leases (created_at);

-- The referee of last resort, for every program that ever opens this file: an
-- ended lease stays ended, only a lease in creation becomes running, and
-- nothing returns to creation.
CREATE TRIGGER leases_no_revival BEFORE UPDATE OF status ON leases
WHEN (OLD.status IN ('destroyed', 'expired') AND NEW.status <> OLD.status)
  OR (NEW.status = 'running'  AND OLD.status NOT IN ('creating', 'running'))
  OR (NEW.status = 'creating' AND OLD.status <> 'creating')
BEGIN
    SELECT RAISE(ABORT, 'a lease that clean-up owns cannot be revived');
END;

CREATE TABLE tasks (
    task_id         TEXT    NOT NULL PRIMARY KEY,
    instance_id     TEXT    NOT NULL REFERENCES leases (instance_id) ON DELETE CASCADE,
    kind            TEXT    NOT NULL CHECK (kind <> ''),
    status          TEXT    NOT NULL CHECK (status IN ('running', 'succeeded', 'failed', 'stopped')),
    command         TEXT    NOT NULL,
    cwd             TEXT    NOT NULL DEFAULT '',
    user            TEXT    NOT NULL DEFAULT '',
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    finished_at     INTEGER,
    pid             INTEGER NOT NULL DEFAULT 0,
    exit_code       INTEGER,
    signal          TEXT    NOT NULL DEFAULT '',
    error_message   TEXT    NOT NULL DEFAULT '',
    outcome_unknown INTEGER NOT NULL DEFAULT 0,
    log_path        TEXT    NOT NULL DEFAULT '',
    stdout_bytes    INTEGER NOT NULL DEFAULT 0,
    stderr_bytes    INTEGER NOT NULL DEFAULT 0,
    request_id      TEXT    NOT NULL DEFAULT '',
    owner_session   TEXT    NOT NULL DEFAULT '',
    holder_session  TEXT    NOT NULL DEFAULT '',
    holder_pid      INTEGER NOT NULL DEFAULT 0,
    holder_boot     TEXT    NOT NULL DEFAULT '',
    holder_start    TEXT    NOT NULL DEFAULT '',
    CHECK ((status = 'running') = (finished_at IS NULL))
) STRICT;
CREATE INDEX tasks_instance ON tasks (instance_id, created_at);
CREATE INDEX tasks_created ON tasks (created_at);

CREATE TRIGGER tasks_end_once BEFORE UPDATE OF status, exit_code, finished_at ON tasks
WHEN OLD.status <> 'running'
BEGIN
    SELECT RAISE(ABORT, 'a finished task never changes');
END;

-- The last bytes of a task's output, kept when its instance is gone. Apart from
-- tasks so that listing never reads them and pruning never rewrites a task.
CREATE TABLE task_tails (
    task_id  TEXT    NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
    saved_at INTEGER NOT NULL,
    stdout   BLOB    NOT NULL,
    stderr   BLOB    NOT NULL
) STRICT;
CREATE INDEX task_tails_saved ON task_tails (saved_at);

-- Calls that carry a request_id: one row per (tool, id).
CREATE TABLE requests (
    scope          TEXT    NOT NULL,
    request_id     TEXT    NOT NULL,
    fingerprint    TEXT    NOT NULL,
    state          TEXT    NOT NULL CHECK (state IN ('pending', 'done', 'failed')),
    attempt        INTEGER NOT NULL CHECK (attempt > 0),
    instance_id    TEXT    NOT NULL DEFAULT '',
    task_id        TEXT    NOT NULL DEFAULT '',
    result         TEXT    CHECK (result IS NULL OR json_valid(result)),
    created_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    holder_session TEXT    NOT NULL DEFAULT '',
    holder_pid     INTEGER NOT NULL DEFAULT 0,
    holder_boot    TEXT    NOT NULL DEFAULT '',
    holder_start   TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (scope, request_id),
    CHECK ((state = 'pending') = (finished_at IS NULL))
) STRICT;
CREATE INDEX requests_created ON requests (created_at);

-- Who did what to what, when, with which outcome. No foreign keys: an event
-- outlives the rows it speaks of.
CREATE TABLE events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    instance_id TEXT    NOT NULL DEFAULT '',
    task_id     TEXT    NOT NULL DEFAULT '',
    session     TEXT    NOT NULL DEFAULT '',
    pid         INTEGER NOT NULL DEFAULT 0,
    what        TEXT    NOT NULL CHECK (what <> ''),
    from_status TEXT    NOT NULL DEFAULT '',
    to_status   TEXT    NOT NULL DEFAULT '',
    outcome     TEXT    NOT NULL DEFAULT '',
    detail      TEXT    CHECK (detail IS NULL OR json_valid(detail))
) STRICT;
CREATE INDEX events_instance ON events (instance_id, id);
CREATE INDEX events_at ON events (at);
