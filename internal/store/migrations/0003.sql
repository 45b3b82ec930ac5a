-- Snapshots: saved states of instances, in which others begin. A snapshot
-- outlives its source, and remembers what an instance that begins there takes
-- over from it. Kind fork is a state that only its children need. The row comes
-- before the directory, and goes after it.
CREATE TABLE snapshots (
    snapshot_id     TEXT    NOT NULL PRIMARY KEY,
    kind            TEXT    NOT NULL CHECK (kind IN ('snapshot', 'fork')),
    status          TEXT    NOT NULL CHECK (status IN ('creating', 'ready', 'deleting')),
    generation      INTEGER NOT NULL CHECK (generation > 0),
    name            TEXT    NOT NULL DEFAULT '',
    description     TEXT    NOT NULL DEFAULT '',
    instance_id     TEXT    NOT NULL,
    parent_snapshot TEXT    NOT NULL DEFAULT '',
    backend         TEXT    NOT NULL,
    dir             TEXT    NOT NULL UNIQUE,
    owner_session   TEXT    NOT NULL DEFAULT '',
    holder_session  TEXT    NOT NULL DEFAULT '',
    holder_pid      INTEGER NOT NULL DEFAULT 0,
    holder_boot     TEXT    NOT NULL DEFAULT '',
    holder_start    TEXT    NOT NULL DEFAULT '',
    created_at      INTEGER NOT NULL,
    reserved_bytes  INTEGER NOT NULL DEFAULT 0 CHECK (reserved_bytes >= 0),
    memory_bytes    INTEGER NOT NULL DEFAULT 0 CHECK (memory_bytes >= 0),
    disk_bytes      INTEGER NOT NULL DEFAULT 0 CHECK (disk_bytes >= 0),
    pause_us        INTEGER NOT NULL DEFAULT 0,
    running_tasks   INTEGER NOT NULL DEFAULT 0,
    profile_name    TEXT    NOT NULL DEFAULT '',
    workspace_root  TEXT    NOT NULL DEFAULT '',
    workspace_id    TEXT    NOT NULL DEFAULT '',
    vm_memory_mib   INTEGER NOT NULL DEFAULT 0,
    vm_disk_bytes   INTEGER NOT NULL DEFAULT 0,
    vm_cpus         INTEGER NOT NULL DEFAULT 0,
    accelerator     TEXT    NOT NULL DEFAULT '',
    runtime_name    TEXT    NOT NULL DEFAULT '',
    runtime_ready   INTEGER NOT NULL DEFAULT 0,
    docker_command  TEXT    NOT NULL DEFAULT '',
    remote_path     TEXT    NOT NULL DEFAULT '',
    request_id      TEXT    NOT NULL DEFAULT '',
    config          TEXT    CHECK (config IS NULL OR json_valid(config)),
    spec            TEXT    CHECK (spec IS NULL OR json_valid(spec))
) STRICT;
CREATE INDEX snapshots_instance ON snapshots (instance_id);

-- A state that is being deleted may be missing parts: only one whose removal
-- was refused is whole again.
CREATE TRIGGER snapshots_never_made_again BEFORE UPDATE OF status ON snapshots
WHEN NEW.status = 'creating' AND OLD.status <> 'creating'
BEGIN
    SELECT RAISE(ABORT, 'a snapshot is made once');
END;

-- Lineage: the snapshot in which an instance began, and that snapshot's source.
ALTER TABLE leases ADD COLUMN parent_snapshot TEXT NOT NULL DEFAULT '';
ALTER TABLE leases ADD COLUMN parent_instance TEXT NOT NULL DEFAULT '';
CREATE INDEX leases_parent ON leases (parent_snapshot) WHERE parent_snapshot <> '';

ALTER TABLE requests ADD COLUMN snapshot_id TEXT NOT NULL DEFAULT '';
