package store

const leaseColumns = `instance_id, kind, status, generation, backend, backend_instance_name, profile_name,
	workspace_root, workspace_id, owner_session, holder_session, holder_pid, holder_boot, holder_start,
	created_at, expires_at, last_used_at, ended_at, end_reason, error, memory_mib, disk_bytes, cpus,
	accelerator, start_kind, ssh_port, runtime_name, runtime_ready, docker_command, remote_path,
	auto_bootstrap, request_id, parent_snapshot, parent_instance, config, spec, timings, connection`

func scanLease(row scanner) (Lease, error) {
	var l Lease
	err := row.Scan(&l.InstanceID, &l.Kind, &l.Status, &l.Generation, &l.Backend, &l.BackendInstanceName, &l.ProfileName,
		&l.WorkspaceRoot, &l.WorkspaceID, &l.OwnerSession, &l.Holder.Session, &l.Holder.PID, &l.Holder.Boot, &l.Holder.Start,
		unstamp{&l.CreatedAt}, unstamp{&l.ExpiresAt}, unstamp{&l.LastUsedAt}, unstamp{&l.EndedAt}, &l.EndReason, untext{&l.Error},
		&l.MemoryMiB, &l.DiskBytes, &l.CPUs,
		&l.Accelerator, &l.StartKind, &l.SSHPort, &l.RuntimeName, &l.RuntimeReady, &l.DockerCommand, &l.RemotePath,
		&l.AutoBootstrap, &l.RequestID, &l.ParentSnapshot, &l.ParentInstance, untext{&l.Config}, untext{&l.Spec}, untext{&l.Timings}, untext{&l.Connection})
	return l, err
}

const sqlLeaseByID = `SELECT ` + leaseColumns + ` FROM leases WHERE instance_id = ?`

const sqlLeaseByName = `SELECT ` + leaseColumns + ` FROM leases WHERE backend_instance_name = ?`

// 1 statuses as JSON, 2 kind or empty, 3 workspace id or empty, 4 deadline or NULL, 5 limit,
// 6 parent snapshot or empty.
const sqlLeases = `SELECT ` + leaseColumns + ` FROM leases
	WHERE status IN (SELECT value FROM json_each(?1))
	  AND (?2 = '' OR kind = ?2)
	  AND (?3 = '' OR workspace_id = ?3)
	  AND (?4 IS NULL OR expires_at <= ?4)
	  AND (?6 = '' OR parent_snapshot = ?6)
	ORDER BY created_at DESC, rowid DESC LIMIT ?5`

const sqlInsertLease = `INSERT INTO leases (instance_id, kind, status, generation, backend, backend_instance_name,
	profile_name, workspace_root, workspace_id, owner_session, holder_session, holder_pid, holder_boot, holder_start,
	created_at, expires_at, last_used_at, memory_mib, disk_bytes, cpus, accelerator, start_kind, runtime_name,
	remote_path, auto_bootstrap, request_id, config, spec, runtime_ready, docker_command, parent_snapshot, parent_instance, connection)
	VALUES (?, ?, 'creating', 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	RETURNING ` + leaseColumns

// The compare-and-set of a lease's life: id, generation and status are judged,
// and the row changed, by one statement.
const sqlMoveLease = `UPDATE leases SET
	status = ?3, generation = generation + 1,
	holder_session = ?4, holder_pid = ?5, holder_boot = ?6, holder_start = ?7,
	ended_at = CASE WHEN ?3 IN ('destroyed', 'expired') THEN ?8 END,
	end_reason = CASE WHEN ?9 <> '' THEN ?9 ELSE end_reason END,
	error = coalesce(?10, error)
	WHERE instance_id = ?1 AND (?2 = 0 OR generation = ?2)
	  AND status IN (SELECT value FROM json_each(?11))
	RETURNING ` + leaseColumns

const patchSet = ` ssh_port = coalesce(?, ssh_port), runtime_name = coalesce(?, runtime_name),
	runtime_ready = coalesce(?, runtime_ready), docker_command = coalesce(?, docker_command),
	remote_path = coalesce(?, remote_path), accelerator = coalesce(?, accelerator),
	start_kind = coalesce(?, start_kind), config = coalesce(?, config), spec = coalesce(?, spec),
	timings = coalesce(?, timings), connection = coalesce(?, connection) `

const sqlPatchLease = `UPDATE leases SET` + patchSet + `
	WHERE instance_id = ? AND status NOT IN ('destroyed', 'expired') RETURNING ` + leaseColumns

// As sqlPatchLease, for the row that a move in the same transaction has won.
const sqlPatchMoved = `UPDATE leases SET` + patchSet + `WHERE instance_id = ? RETURNING ` + leaseColumns

func (p Patch) args() []any {
	return []any{p.SSHPort, p.RuntimeName, p.RuntimeReady, p.DockerCommand, p.RemotePath, p.Accelerator, p.StartKind,
		text(p.Config), text(p.Spec), text(p.Timings), text(p.Connection)}
}

func (p Patch) empty() bool {
	return p.SSHPort == nil && p.RuntimeName == nil && p.RuntimeReady == nil && p.DockerCommand == nil && p.RemotePath == nil &&
		p.Accelerator == nil && p.StartKind == nil && p.Config == nil && p.Spec == nil && p.Timings == nil && p.Connection == nil
}

const sqlExtendLease = `UPDATE leases SET expires_at = ?, generation = generation + 1
	WHERE instance_id = ? AND status = 'running' AND generation = ? RETURNING ` + leaseColumns

const sqlRestateDeadline = `UPDATE leases SET expires_at = ?, generation = generation + 1
	WHERE instance_id = ? AND status = 'running' AND expires_at = ? RETURNING ` + leaseColumns

const sqlLastUsed = `SELECT last_used_at FROM leases WHERE instance_id = ?`

const sqlTouchLease = `UPDATE leases SET last_used_at = max(last_used_at, ?)
	WHERE instance_id = ? AND status NOT IN ('destroyed', 'expired')`

// 1 cut-off time, 2 how many of the newest to keep.
const sqlPruneLeases = `DELETE FROM leases WHERE status IN ('destroyed', 'expired')
	AND (ended_at < ?1 OR instance_id NOT IN (SELECT instance_id FROM leases
		WHERE status IN ('destroyed', 'expired') ORDER BY ended_at DESC, rowid DESC LIMIT ?2))`

// The compare-and-set of a claim: of the ready VMs of a shape the one that ends
// last is taken, and changed, by one statement.
// 1 backend, 2 shape, 3 earliest deadline, 4 now, 5 new deadline, 6 profile,
// 7 workspace root, 8 workspace id, 9 session, 10 to 12 process, 13 request,
// 14 auto bootstrap, 15 config, 16 spec, 17 start kind.
const sqlClaimLease = `UPDATE leases SET kind = 'instance', generation = generation + 1,
	created_at = ?4, expires_at = ?5, last_used_at = ?4, profile_name = ?6, workspace_root = ?7, workspace_id = ?8,
	owner_session = ?9, holder_session = ?9, holder_pid = ?10, holder_boot = ?11, holder_start = ?12, request_id = ?13,
	auto_bootstrap = ?14, config = ?15, spec = ?16, start_kind = ?17
	WHERE kind = 'pool' AND status = 'running' AND instance_id = (SELECT instance_id FROM leases
		WHERE kind = 'pool' AND status = 'running' AND backend = ?1 AND json_extract(spec, '$.shape') = ?2 AND expires_at >= ?3
		ORDER BY expires_at DESC, rowid LIMIT 1)
	RETURNING ` + leaseColumns
