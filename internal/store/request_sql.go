package store

const requestColumns = `scope, request_id, fingerprint, state, attempt, instance_id, task_id, snapshot_id, result, created_at, finished_at,
	holder_session, holder_pid, holder_boot, holder_start`

func scanRequest(row scanner) (Request, error) {
	var r Request
	err := row.Scan(&r.Scope, &r.ID, &r.Fingerprint, &r.State, &r.attempt, &r.InstanceID, &r.TaskID, &r.SnapshotID, untext{&r.Result},
		unstamp{&r.CreatedAt}, unstamp{&r.FinishedAt}, &r.Holder.Session, &r.Holder.PID, &r.Holder.Boot, &r.Holder.Start)
	return r, err
}

const sqlRequest = `SELECT ` + requestColumns + ` FROM requests WHERE scope = ? AND request_id = ?`

const sqlInsertRequest = `INSERT INTO requests (scope, request_id, fingerprint, state, attempt, created_at,
	holder_session, holder_pid, holder_boot, holder_start)
	VALUES (?, ?, ?, 'pending', 1, ?, ?, ?, ?, ?) RETURNING ` + requestColumns

const mine = ` WHERE scope = ?1 AND request_id = ?2 AND attempt = ?3 AND state = 'pending'`

const sqlTakeOverRequest = `UPDATE requests SET attempt = attempt + 1,
	holder_session = ?4, holder_pid = ?5, holder_boot = ?6, holder_start = ?7` + mine + ` RETURNING ` + requestColumns

const sqlBindRequest = `UPDATE requests SET instance_id = ?4, task_id = ?5` + mine + ` RETURNING ` + requestColumns

const sqlBindSnapshot = `UPDATE requests SET snapshot_id = ?4` + mine + ` RETURNING ` + requestColumns

// What a snapshot that was never ready leaves of it in a request that is open.
const sqlUnbindSnapshot = `UPDATE requests SET snapshot_id = '' WHERE snapshot_id = ? AND state = 'pending'`

// The process of id 0 is nobody's.
const sqlReleaseRequest = `UPDATE requests SET holder_session = '', holder_pid = 0, holder_boot = '', holder_start = ''` + mine

const sqlFinishRequest = `UPDATE requests SET state = ?4, result = ?5, finished_at = ?6` + mine

const sqlForgetRequest = `DELETE FROM requests` + mine

// 1 cut-off time, 2 how many of the newest to keep. A pending request stays as
// long as a repetition may come.
const sqlPruneRequests = `DELETE FROM requests WHERE created_at < ?1
	OR (state <> 'pending' AND rowid NOT IN (SELECT rowid FROM requests ORDER BY created_at DESC, rowid DESC LIMIT ?2))`
